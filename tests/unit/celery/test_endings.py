"""How a task can end besides with a result: retries, Ignore, Reject, failures (C7)."""

from __future__ import annotations

from copy import deepcopy
from decimal import Decimal
from functools import partial, reduce
from typing import Any

import pytest
from celery import Task
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded
from celery.utils import uuid

from django_idempotency import InProgress, TaskFailed
from django_idempotency.contrib.celery import DuplicateTask, idempotent_task
from django_idempotency.contrib.celery.codec import Failed, KombuCodec, TaskCodec
from django_idempotency.models import IdempotencyRecord
from tests.app.models import Effect
from tests.unit.celery.conftest import Done

TASK_OPTIONS = ("autoretry_for", "dont_autoretry_for", "retry_kwargs", "max_retries")


class NotEnough(Exception):
    """A refusal, with an amount."""


class Outer:
    class Nested(Exception):
        """Of which the name alone says nothing."""


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
LIMIT = len(CODEC.encode(Failed.of(LOST)))
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
    "just not too large": (LOST, {"max_result_bytes": LIMIT, **KEPT}, "kept"),
    "no limit of retries": (
        LOST,
        {"failures": 1, "max_retries": None, **AUTO_KEPT},
        "retried done",
    ),
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
        raised = dones[-1].value
        kept = isinstance(raised, Exception) and again.state == "FAILURE"
        assert type(again.value) is (TaskFailed if kept else type(raised))
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
    [("worker", "result", TaskFailed), ("C12 apply", "raise", DuplicateTask)],
)
def test_C7_a_duplicate_of_a_final_failure_is_not_retried(
    local, memory, how, on_duplicate, expected
):
    retried = {"autoretry_for": (ConnectionError, TaskFailed, DuplicateTask), "max_retries": 2}
    flaky = Flaky(local, LOST, key="order_id", on_duplicate=on_duplicate, **KEPT, **retried)
    local.deliver(flaky.message)
    local.deliver_all()

    if how == "worker":
        again = local.deliver(local.send(flaky.task)).value
    else:
        again = flaky.task.apply().result

    assert type(again) is expected
    assert (local.sent(), flaky.runs) == ([], 3)


def test_C4_what_the_failure_of_a_duplicate_sends_has_the_task_for_its_parent(local, memory):
    class Telling(Task):
        def on_failure(self, *args):
            tell.delay()

    @local.app.task
    def tell(): ...

    @local.app.task(base=Telling)
    @idempotent_task(on_duplicate="raise")
    def work(): ...

    message = local.send(work)
    local.deliver(message)

    assert type(local.deliver(message).value) is DuplicateTask
    assert [told.headers["parent_id"] for told in local.sent()] == [message.id]


def test_C7_C12_a_retry_in_place_has_the_set_that_was_given(app, memory):
    seen = []

    @app.task(bind=True, default_retry_delay=0)
    @idempotent_task
    def work(self, given):
        seen.append({*given})
        given.clear()
        if not self.request.retries:
            raise self.retry()

    work.apply([{1}])

    assert seen == [{1}, {1}]


class Deep(list[Any]):
    """Nested too deeply for JSON."""

    def __repr__(self):
        return "deep"


DEEP = reduce(lambda inner, _: Deep([inner]), range(10_000), Deep())
#: An exception, and what a duplicate knows of it: arguments that JSON has no form of are its text.
FAILURES = [
    (LOST, "builtins.ConnectionError", ["no luck"]),
    (Outer.Nested(), f"{__name__}.Outer.Nested", []),
    (OSError(2, "No such file"), "builtins.FileNotFoundError", [2, "No such file"]),
    (NotEnough(("a", Decimal("1.10"))), f"{__name__}.NotEnough", [["a", "1.10"]]),
    (NotEnough(Outer), f"{__name__}.NotEnough", [str(Outer)]),
    (NotEnough(float("nan")), f"{__name__}.NotEnough", ["nan"]),
    (NotEnough(DEEP), f"{__name__}.NotEnough", ["deep"]),
]


def test_C7_a_duplicate_knows_the_class_and_the_arguments_of_an_exception():
    for error, kind, arguments in FAILURES:
        assert CODEC.decode(CODEC.encode(Failed.of(error))) == Failed(kind, arguments)


def test_C7_R95_a_duplicate_of_a_final_failure_looks_up_no_class(local, memory):
    flaky = Flaky(local, NotEnough("missing", Decimal("1.10")), **KEPT)

    first, again = (local.deliver(flaky.message).value for _ in range(2))

    assert (type(first), type(again)) == (NotEnough, TaskFailed)
    assert (again.kind, again.arguments) == (f"{__name__}.NotEnough", ["missing", "1.10"])
    assert str(again) == f"{__name__}.NotEnough: missing, 1.10"


@pytest.mark.parametrize("serializer", ["json", "pickle", "yaml"])
@pytest.mark.parametrize("backend", ["cache+memory://", "file://{}"])
def test_C7_the_error_of_a_duplicate_survives_a_result_backend(app, tmp_path, backend, serializer):
    app.conf.update(
        result_backend=backend.format(tmp_path),
        result_serializer=serializer,
        result_accept_content=[serializer],
    )
    error = TaskFailed("shop.errors.Declined", ["no money", 7, None, {"card": [1]}])

    app.backend.store_result(task := uuid(), error, "FAILURE")
    with pytest.raises(TaskFailed) as raised:
        app.AsyncResult(task).get()

    assert (raised.value.kind, raised.value.arguments) == (error.kind, error.arguments)
    assert str(raised.value) == str(error)


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


def test_C7_C12_a_retry_in_place_is_not_logged_as_a_failure(local, memory, caplog):
    flaky = Flaky(local, retry, failures=2)

    assert flaky.task.apply().get() == "result 3"

    assert "nothing sends it again" not in caplog.text


def test_C7_a_failure_of_a_direct_call_is_its_callers_and_not_logged(local, memory, caplog):
    flaky = Flaky(local, LOST, **ANY)

    with pytest.raises(ConnectionError):
        flaky.task(1)

    assert "nothing sends it again" not in caplog.text


def test_C7_a_failure_of_a_direct_call_is_final_and_kept(local, memory):
    flaky = Flaky(local, LOST, **AUTO_KEPT, **ANY)

    for error in (ConnectionError, TaskFailed):
        with pytest.raises(error):
            flaky.task(1)

    assert flaky.runs == 1


def test_C7_a_task_with_a_key_that_is_ignored_has_not_replaced_itself(local, memory, caplog):
    flaky = Flaky(local, Ignore("nothing to say"), key="order_id")

    assert local.deliver(flaky.message).state == "IGNORED"
    assert "has replaced itself" not in caplog.text


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
