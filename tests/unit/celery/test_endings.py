"""How a task can end besides with a result: retries, Ignore, Reject, failures (C7)."""

from __future__ import annotations

import sys
from copy import deepcopy
from decimal import Decimal
from functools import partial
from types import ModuleType
from typing import Any

import pytest
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded

from django_idempotency import InProgress, TaskFailed
from django_idempotency.contrib.celery import DuplicateTask, idempotent_task
from django_idempotency.contrib.celery.codec import Failed, KombuCodec, TaskCodec
from django_idempotency.models import IdempotencyRecord
from tests.app.models import Effect
from tests.unit.celery.conftest import Done

TASK_OPTIONS = ("autoretry_for", "dont_autoretry_for", "retry_kwargs", "max_retries")


class NotEnough(Exception):
    """A refusal, with an amount."""


class Peculiar(Exception):
    """Cannot be made of its ``args``."""

    def __init__(self, *, code: Any) -> None:
        super().__init__(f"code {code}")
        self.code = code


class Loud(Exception):
    """Runs code when it is made, whatever of."""

    def __new__(cls, *args: Any) -> Loud:
        return super().__new__(cls, *args)


class Outer:
    class Nested(Exception):
        """Importable, though not at the top of its module."""


class Flaky:
    """A task that raises in its first runs: an exception, or what a callable of the task raises."""

    def __init__(self, local, error, *, failures=9, work=lambda: None, **options):
        self.runs = 0
        task = {name: options.pop(name) for name in TASK_OPTIONS if name in options}

        @idempotent_task(**options)
        def flaky(task, order_id=1):
            self.runs += 1
            work()
            if self.runs <= failures:
                raise error if isinstance(error, BaseException) else error(task)
            return f"result {self.runs}"

        name = f"flaky {len(local.app.tasks)}"
        self.task = local.app.task(flaky, bind=True, name=name, default_retry_delay=0, **task)
        self.message = local.send(self.task)


def retry(task):
    return task.retry()


def give_up(task):
    try:
        task.retry(exc=NotEnough("retried"), max_retries=0)
    except NotEnough as error:
        return error


CODEC = TaskCodec(KombuCodec("json"))
LOST = ConnectionError("no luck")
AUTO = {"autoretry_for": (ConnectionError,)}
KEPT = {"on_failed": "replay"}
AUTO_KEPT = {**AUTO, **KEPT}
BUT_KEPT = {"autoretry_for": (OSError,), "dont_autoretry_for": (ConnectionError,), **KEPT}
ANY = {"key": lambda order_id: "one", "payload": None}

#: The end of a delivery: of the task, and of its record.
MEANING = {
    "retried": ("RETRY", "FAILED"),
    "done": ("SUCCESS", "COMPLETED"),
    "failed": ("FAILURE", "FAILED"),
    "kept": ("FAILURE", "COMPLETED"),
    "ignored": ("IGNORED", "COMPLETED"),
    "requeued": ("REJECTED", "RELEASED"),
    "rejected": ("REJECTED", "FAILED"),
}
TWO, NINE = {"retry_kwargs": {"max_retries": 2}}, {"max_retries": 9}
#: What a task raises, under which options, and how its deliveries end.
ENDINGS = {
    "retry": (retry, {"failures": 2}, "retried retried done"),
    "other arguments": (lambda task: task.retry(args=(2,)), {"failures": 1, **ANY}, "retried done"),
    "max_retries": (LOST, {"max_retries": 1, **AUTO}, "retried failed"),
    "Ignore": (Ignore("nothing to say"), {}, "ignored"),
    "requeue": (Reject("", requeue=True), {}, "requeued"),
    "Reject": (Reject(""), {}, "rejected"),
    "a failure": (LOST, {}, "failed"),
    "kept": (LOST, KEPT, "kept"),
    "kept, max_retries": (LOST, {"max_retries": 2, **AUTO_KEPT}, "retried retried kept"),
    "kept, retry_kwargs": (LOST, {**TWO, **NINE, **AUTO_KEPT}, "retried retried kept"),
    "kept, none": (LOST, {"retry_kwargs": {"max_retries": 0}, **AUTO_KEPT}, "kept"),
    "kept, a limit of the call": (give_up, {"autoretry_for": (NotEnough,), **KEPT}, "kept"),
    "kept, never retried": (LOST, BUT_KEPT, "kept"),
    "kept, retries of its own": (retry, {"max_retries": 1, **KEPT}, "retried kept"),
    "C9 a soft time limit": (SoftTimeLimitExceeded(), KEPT, "failed"),
    "an idempotent call of the work": (InProgress(), KEPT, "failed"),
    "too large": (NotEnough("x" * 2000), {"max_result_bytes": 500, **KEPT}, "failed"),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_C7_how_a_task_and_its_record_end(local, state, ending):
    error, options, expected = ENDINGS[ending]
    flaky = Flaky(local, error, **options)

    dones, ends, messages = [], [], [flaky.message]
    while messages:
        dones += [local.deliver(message) for message in messages]
        ends.append((dones[-1].state, state()))
        messages = local.sent()
    ran, again = flaky.runs, local.deliver(flaky.message)

    assert ends == [MEANING[word] for word in expected.split()]
    assert expected != "kept" or error is not LOST or dones[-1].value is error
    if state() == "COMPLETED":
        assert (flaky.runs, again.state) == (ran, dones[-1].state)
        assert type(again.value) is type(dones[-1].value)
    else:
        assert flaky.runs == ran + 1


def effects():
    return [effect.name for effect in Effect.objects.order_by("pk")]


@pytest.fixture
def database(settings, transactional_db):
    settings.IDEMPOTENCY = {"default": {}}


def test_C7_C11_what_an_ending_leaves(local, database):
    for ending in ("retry", "Ignore", "requeue", "kept"):
        error, options, expected = ENDINGS[ending]
        work = partial(Effect.objects.create, name=ending)
        flaky = Flaky(local, error, work=work, **options)
        local.deliver(flaky.message)
        local.sent()

        record = IdempotencyRecord.objects.get(scope=flaky.task.name)
        assert record.state == MEANING[expected.split()[0]][1]
        assert (ending in effects()) == (ending == "Ignore")


def test_C7_a_retry_that_does_not_end_the_task_runs(local, database, caplog):
    ends = {"a result": "SUCCESS", "Ignore": "IGNORED", "an error": "FAILURE"}
    errors = {"Ignore": Ignore, "an error": ValueError}

    @local.app.task(bind=True, default_retry_delay=0)
    @idempotent_task(on_failed="replay")
    def work(self, end):
        retries = self.request.retries
        Effect.objects.create(name=f"run {retries}")
        if not retries:
            self.retry(throw=False)
            if end in errors:
                raise errors[end]
        return f"run {retries}"

    for end, expected in ends.items():
        message = local.send(work, end)
        first, *rest = [local.deliver(message), *local.deliver_all()]

        assert first.state == expected
        assert rest == [Done("SUCCESS", "run 1")]
        assert local.deliver(message) == rest[0]
    assert effects() == ["run 1"] * 3
    warned = [line for line in caplog.records if "has sent a retry" in line.getMessage()]
    assert len(warned) == 2


def test_C7_C3_a_retry_has_the_arguments_that_were_sent_and_a_direct_call_its_own(local, memory):
    seen = []

    @local.app.task(bind=True, default_retry_delay=0)
    @idempotent_task(key=lambda lines, **more: "one")
    def work(self, lines, *, more):
        seen.append(deepcopy([lines, more]))
        lines[0].append(5)
        more["tags"].clear()
        if not (self.request.retries or self.request.called_directly):
            raise self.retry()
        return self.request.retries

    message = local.send(work, [[4]], more={"tags": ["a"]})
    assert [local.deliver(message), *local.deliver_all()][-1] == Done("SUCCESS", 1)
    assert seen == [[[[4]], {"tags": ["a"]}]] * 2

    memory._records.clear()
    own = [[4]]
    work(own, more={"tags": []})
    assert own == [[4, 5]]


@pytest.mark.parametrize(
    ("how", "on_duplicate", "expected"),
    [("worker", "result", ConnectionError), ("C12 apply", "raise", DuplicateTask)],
)
def test_C7_a_duplicate_of_a_final_failure_is_not_retried(
    local, memory, how, on_duplicate, expected
):
    retried = {"autoretry_for": (ConnectionError, DuplicateTask), "max_retries": 2}
    flaky = Flaky(local, LOST, key="order_id", on_duplicate=on_duplicate, **KEPT, **retried)
    local.deliver(flaky.message)
    local.deliver_all()

    if how == "worker":
        again = local.deliver(local.send(flaky.task)).value
    else:
        again = flaky.task.apply().result

    assert type(again) is expected
    assert (local.sent(), flaky.runs) == ([], 3)


UNREACHABLE = type("Unreachable", (Exception,), {"__qualname__": "f.<locals>.Unreachable"})
#: It cannot be imported, runs code to be made, or cannot be serialised.
NOT_MADE_AGAIN = {
    "Unreachable: oh": UNREACHABLE("oh"),
    "Loud: oh": Loud("oh"),
    "NotEnough: <class": NotEnough(object),
    "Peculiar: code": Peculiar(code=object),
}
MADE_AGAIN = [
    NotEnough("missing", Decimal("1.10")),
    Peculiar(code=7),
    OSError(2, "No such file"),
    ValueError(),
    Outer.Nested("x"),
]


def test_C7_R95_an_exception_comes_back_with_its_attributes_or_is_task_failed():
    def again(error):
        return CODEC.decode(CODEC.encode(Failed.of(error))).exception()

    for error in MADE_AGAIN:
        made = again(error)
        assert type(made) is type(error)
        assert (str(made), made.args, vars(made)) == (str(error), error.args, vars(error))
        assert getattr(made, "errno", None) == getattr(error, "errno", None)
    for text, error in NOT_MADE_AGAIN.items():
        made = again(error)
        assert type(made) is TaskFailed
        assert text in str(made)


def test_R95_a_record_runs_no_code_of_a_class_and_imports_nothing(monkeypatch):
    """Forged: the class of another module, its arguments and its attributes."""
    ran = []
    monkeypatch.setattr(Peculiar, "__init__", lambda *args, **named: ran.append(args))
    lazy = ModuleType("tests_lazy")
    monkeypatch.setattr(lazy, "__getattr__", ran.append, raising=False)
    monkeypatch.setitem(sys.modules, "tests_lazy", lazy)
    monkeypatch.delitem(sys.modules, "this", raising=False)

    def made(module, name, *arguments):
        return Failed(module, name, arguments, {}, "text").exception()

    assert type(made(__name__, "Peculiar", "rm -rf")) is Peculiar
    for module, name in [
        ("pathlib", "Path"),
        ("this", "s"),
        ("tests_lazy", "Anything"),
        ("builtins", "SystemExit"),
        ("builtins", "print"),
        ("builtins", "Exception.with_traceback"),
        ("builtins", "UnicodeDecodeError"),
        ("celery.exceptions", "Reject"),
        ("django_idempotency.exceptions", "InProgress"),
        ("json", "JSONDecodeError"),
        ("", ""),
    ]:
        assert type(made(module, name, "x")) is TaskFailed
    assert ran == []
    assert "this" not in sys.modules


@pytest.mark.parametrize(
    ("ending", "told"),
    [
        ("a failure", True),
        ("C9 a soft time limit", True),
        ("kept", False),
        ("Reject", False),
        ("an autoretry", False),
        ("self.retry()", False),
    ],
)
def test_C7_a_failure_that_nothing_sends_again_is_logged(local, memory, caplog, ending, told):
    endings = {"an autoretry": (LOST, AUTO, ""), "self.retry()": (retry, {}, ""), **ENDINGS}
    error, options, _ = endings[ending]
    flaky = Flaky(local, error, **options)

    local.deliver(flaky.message)

    assert ("nothing sends it again" in caplog.text) is told


@pytest.mark.parametrize("key", [None, "order_id"])
def test_C7_a_task_with_a_key_that_replaces_itself_is_logged(local, memory, caplog, key):
    @local.app.task(bind=True)
    @idempotent_task(key=key)
    def work(self, order_id):
        raise self.replace(other.s())

    @local.app.task
    def other(): ...

    assert local.deliver(local.send(work, 1)).state == "IGNORED"
    assert ("has replaced itself" in caplog.text) is (key is not None)
