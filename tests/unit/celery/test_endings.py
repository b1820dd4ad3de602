"""How a task can end besides with a result: retries, Ignore, Reject, failures (C7)."""

from __future__ import annotations

import sys
from contextlib import suppress
from copy import deepcopy
from decimal import Decimal
from types import ModuleType
from typing import Any

import pytest
from celery import Task
from celery.exceptions import Ignore, MaxRetriesExceededError, Reject, SoftTimeLimitExceeded
from django.db import IntegrityError, transaction

from django_idempotency import InProgress, TaskFailed, WorkRolledBack
from django_idempotency.contrib.celery import DuplicateTask, idempotent_task
from django_idempotency.contrib.celery_codec import Failed
from django_idempotency.models import IdempotencyRecord
from tests.app.models import Effect, Unique
from tests.unit.celery.local import Done, Local

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(params=["joined", "single", "separate"])
def mode(request: Any, settings: Any) -> str:
    settings.IDEMPOTENCY = {"default": {"TRANSACTION": request.param}}
    return str(request.param)


@pytest.fixture(autouse=True)
def default(settings: Any) -> None:
    settings.IDEMPOTENCY = {"default": {}}


def state() -> str:
    return str(IdempotencyRecord.objects.get().state)


def effects() -> list[str]:
    return [effect.name for effect in Effect.objects.order_by("pk")]


class Flaky:
    """A task that leaves an effect in each run, and raises in the first ones."""

    def __init__(self, local: Local, *, failures: int = 2, **options: Any) -> None:
        self.runs = 0
        #: What it raises; a callable gets the task.
        self.error: Any = ConnectionError("no luck")
        task_options = {
            name: options.pop(name)
            for name in ("autoretry_for", "dont_autoretry_for", "retry_kwargs", "max_retries")
            if name in options
        }

        @local.app.task(bind=True, name="flaky", default_retry_delay=0, **task_options)
        @idempotent_task(**options)
        def flaky(task: Task, order_id: int = 1) -> str:
            self.runs += 1
            Effect.objects.create(name=f"run {self.runs}")
            if self.runs <= failures:
                raise self.error if isinstance(self.error, BaseException) else self.error(task)
            return f"result {self.runs}"

        self.task = flaky
        self.message = local.send(flaky)


class TestRollbacks:
    @pytest.mark.parametrize("wished", [False, True], ids=["swallowed", "wished"])
    def test_R91_a_success_that_can_only_be_rolled_back_is_a_failed_task(
        self, local: Local, wished: bool
    ) -> None:
        @local.app.task
        @idempotent_task
        def work() -> str:
            Effect.objects.create(name="run")
            Unique.objects.create(name="taken")
            with suppress(IntegrityError):
                Unique.objects.create(name="taken")
            if wished:
                transaction.set_rollback(True)
            return "done"

        done = local.deliver(local.send(work))

        if wished:
            assert done == Done("SUCCESS", "done")
        else:
            assert done.state == "FAILURE"
            assert isinstance(done.value, WorkRolledBack)
        assert (effects(), state()) == ([], "FAILED")


class TestRetries:
    def test_C7_a_retry_runs_and_after_success_nothing_does(self, local: Local, mode: str) -> None:
        flaky = Flaky(local)
        flaky.error = lambda task: task.retry()

        done = [local.deliver(flaky.message), *local.deliver_all()]

        assert [one.state for one in done] == ["RETRY", "RETRY", "SUCCESS"]
        assert local.deliver(flaky.message) == done[-1] == Done("SUCCESS", "result 3")
        assert flaky.runs == 3

    def test_C7_C11_what_a_retried_attempt_did_is_rolled_back(
        self, local: Local, mode: str
    ) -> None:
        flaky = Flaky(local, failures=1)
        flaky.error = lambda task: task.retry()

        local.deliver(flaky.message)

        assert effects() == (["run 1"] if mode == "separate" else [])
        assert state() == "FAILED"

    def test_C7_autoretry_runs_and_after_success_nothing_does(
        self, local: Local, mode: str
    ) -> None:
        flaky = Flaky(local, autoretry_for=(ConnectionError,))

        done = [local.deliver(flaky.message), *local.deliver_all()]

        assert [one.state for one in done] == ["RETRY", "RETRY", "SUCCESS"]
        assert local.deliver(flaky.message) == Done("SUCCESS", "result 3")
        assert flaky.runs == 3

    @pytest.mark.parametrize(
        "options", [{"max_retries": 1}, {"retry_kwargs": {"max_retries": 1}}], ids=str
    )
    def test_C7_retries_come_to_their_end(self, local: Local, options: Any) -> None:
        flaky = Flaky(local, failures=9, autoretry_for=(ConnectionError,), **options)

        done = [local.deliver(flaky.message), *local.deliver_all()]

        assert [one.state for one in done] == ["RETRY", "FAILURE"]
        assert str(done[-1].value) == "no luck"
        assert (flaky.runs, state()) == (2, "FAILED")

    def test_C7_a_retry_that_does_not_end_the_task_runs(
        self, local: Local, mode: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        @local.app.task(bind=True, default_retry_delay=0)
        @idempotent_task(on_failed="replay")
        def work(self: Task, end: str) -> str:
            retries = self.request.retries
            Effect.objects.create(name=f"run {retries}")
            if not retries:
                self.retry(throw=False)
            if not retries and end == "Ignore":
                raise Ignore
            if not retries and end == "an error":
                raise ValueError
            return f"run {retries}"

        ends = {"a result": "SUCCESS", "Ignore": "IGNORED", "an error": "FAILURE"}
        for end, expected in ends.items():
            message = local.send(work, end)
            first, *rest = [local.deliver(message), *local.deliver_all()]

            assert first.state == expected
            assert rest == [Done("SUCCESS", "run 1")]
            assert local.deliver(message) == rest[0]
        once = ["run 1"] if mode != "separate" else ["run 0", "run 1"]
        assert effects() == once * 3
        warned = [line for line in caplog.records if "has sent a retry" in line.getMessage()]
        assert len(warned) == 2

    def test_C7_a_task_that_sends_itself_as_a_child_is_completed(self, local: Local) -> None:
        @local.app.task(bind=True)
        @idempotent_task
        def work(self: Task) -> int:
            if self.request.replaced_task_nesting < 1:
                return self.replace(work.s())  # type: ignore[no-any-return]
            return 1

        message = local.send(work)
        local.deliver(message)

        assert state() == "COMPLETED"
        assert local.deliver_all() == [Done("SUCCESS", 1)]

    @pytest.mark.parametrize("how", ["worker", "C12 apply"])
    def test_C7_C3_a_retry_has_the_arguments_that_were_sent(self, local: Local, how: str) -> None:
        seen = []

        @local.app.task(bind=True, default_retry_delay=0)
        @idempotent_task(key="order_id")
        def work(self: Task, order_id: int, lines: list[Any], *, more: Any) -> int:
            seen.append(deepcopy([lines, more]))
            lines[0].append(5)
            more["tags"].clear()
            if not self.request.retries:
                raise self.retry()
            return self.request.retries

        arguments = {"args": [1, [[4]]], "kwargs": {"more": {"tags": ["a"]}}}
        if how == "worker":
            message = local.send(work, 1, [[4]], more={"tags": ["a"]})
            done = [local.deliver(message), *local.deliver_all()][-1]
        else:
            result = work.apply(**arguments)
            done = Done(result.state, result.result)

        assert done == Done("SUCCESS", 1)
        assert seen == [[[[4]], {"tags": ["a"]}]] * 2

    def test_C3_a_direct_call_works_on_its_own_arguments(self, local: Local) -> None:
        @local.app.task
        @idempotent_task(key=lambda lines: "one")
        def work(lines: list[int]) -> None:
            lines.append(5)

        lines: list[int] = []
        work(lines)

        assert lines == [5]

    def test_C7_a_retry_of_the_task_needs_the_same_arguments_or_no_comparison(
        self, local: Local
    ) -> None:
        flaky = Flaky(local, failures=1, key=lambda order_id: "one", payload=None)
        flaky.error = lambda task: task.retry(args=(2,))

        local.deliver(flaky.message)

        assert local.deliver_all() == [Done("SUCCESS", "result 2")]


class TestIgnore:
    def test_C7_an_ignored_task_is_completed_with_its_work(self, local: Local, mode: str) -> None:
        flaky = Flaky(local)
        flaky.error = Ignore("nothing to say")

        first, again = local.deliver(flaky.message), local.deliver(flaky.message)

        assert (first.state, again.state) == ("IGNORED", "IGNORED")
        assert str(first.value) == "nothing to say"
        assert (effects(), state(), flaky.runs) == (["run 1"], "COMPLETED", 1)

    def test_C7_a_task_that_was_replaced_is_not_replaced_again(
        self, local: Local, mode: str
    ) -> None:
        @local.app.task(name="instead")
        @idempotent_task
        def instead() -> str:
            Effect.objects.create(name="instead")
            return "instead"

        flaky = Flaky(local)
        flaky.error = lambda task: task.replace(instead.s())

        first, *rest = [local.deliver(flaky.message), *local.deliver_all()]
        again = [local.deliver(flaky.message), *local.deliver_all()]

        assert (first.state, rest) == ("IGNORED", [Done("SUCCESS", "instead")])
        assert [one.state for one in again] == ["IGNORED"]
        assert effects() == ["run 1", "instead"]


class TestReject:
    @pytest.mark.parametrize(
        ("requeue", "left"), [(True, "RELEASED"), (False, "FAILED")], ids=["requeue", "reject"]
    )
    def test_C7_a_rejected_task_may_run_again(
        self, local: Local, mode: str, requeue: bool, left: str
    ) -> None:
        flaky = Flaky(local, failures=1)
        flaky.error = Reject("not now", requeue=requeue)

        assert local.deliver(flaky.message).state == "REJECTED"
        assert state() == left
        assert local.deliver(flaky.message) == Done("SUCCESS", "result 2")
        assert effects() == (["run 1", "run 2"] if mode == "separate" else ["run 2"])


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


class TestFailure:
    def test_C7_a_failure_runs_again(self, local: Local, mode: str) -> None:
        flaky = Flaky(local, failures=1)

        first = local.deliver(flaky.message)

        assert (first.state, str(first.value), state()) == ("FAILURE", "no luck", "FAILED")
        assert local.deliver(flaky.message) == Done("SUCCESS", "result 2")

    def test_C7_a_final_failure_can_be_kept(self, local: Local, mode: str) -> None:
        flaky = Flaky(local, on_failed="replay")
        flaky.error = NotEnough("missing", Decimal("1.10"))

        first, again = local.deliver(flaky.message), local.deliver(flaky.message)

        assert first.value is flaky.error
        assert (again.state, type(again.value)) == ("FAILURE", NotEnough)
        assert again.value.args == ("missing", Decimal("1.10"))
        assert (flaky.runs, state()) == (1, "COMPLETED")
        assert effects() == (["run 1"] if mode == "separate" else [])

    @pytest.mark.parametrize(
        "options",
        [{"max_retries": 2}, {"retry_kwargs": {"max_retries": 2}, "max_retries": 9}],
        ids=str,
    )
    def test_C7_it_is_final_once_no_retry_follows(self, local: Local, options: Any) -> None:
        flaky = Flaky(
            local, failures=9, on_failed="replay", autoretry_for=(ConnectionError,), **options
        )

        states = []
        messages = [flaky.message]
        while messages:
            [last] = messages
            done = local.deliver(last)
            states.append((done.state, state()))
            messages = local.sent()

        assert states == [("RETRY", "FAILED"), ("RETRY", "FAILED"), ("FAILURE", "COMPLETED")]
        assert type(local.deliver(last).value) is ConnectionError
        assert flaky.runs == 3

    @pytest.mark.parametrize("on_duplicate", ["result", "raise"])
    @pytest.mark.parametrize("how", ["worker", "C12 apply"])
    def test_C7_a_duplicate_of_a_final_failure_is_not_retried(
        self, local: Local, on_duplicate: str, how: str
    ) -> None:
        flaky = Flaky(
            local,
            failures=9,
            on_failed="replay",
            on_duplicate=on_duplicate,
            key="order_id",
            autoretry_for=(ConnectionError, DuplicateTask),
            max_retries=2,
        )
        local.deliver(flaky.message)
        local.deliver_all()

        if how == "worker":
            again = local.deliver(local.send(flaky.task))
        else:
            result = flaky.task.apply()
            again = Done(result.state, result.result)

        expected = {"result": ConnectionError, "raise": DuplicateTask}[on_duplicate]
        assert (again.state, type(again.value)) == ("FAILURE", expected)
        assert (local.sent(), flaky.runs) == ([], 3)

    def test_C7_the_limit_may_be_none_at_all(self, local: Local) -> None:
        flaky = Flaky(
            local,
            failures=9,
            on_failed="replay",
            autoretry_for=(ConnectionError,),
            retry_kwargs={"max_retries": 0},
        )

        done = local.deliver(flaky.message)

        assert (done.state, state()) == ("FAILURE", "COMPLETED")

    def test_C7_a_retry_that_overrides_the_limit_counts(self, local: Local) -> None:
        flaky = Flaky(local, failures=9, on_failed="replay", autoretry_for=(NotEnough,))

        def give_up(task: Task) -> Exception:
            try:
                task.retry(exc=NotEnough("retried"), max_retries=0)
            except NotEnough as error:
                return error
            raise AssertionError

        flaky.error = give_up
        done = local.deliver(flaky.message)

        assert (done.state, state()) == ("FAILURE", "COMPLETED")

    def test_C7_what_is_never_retried_is_final(self, local: Local) -> None:
        flaky = Flaky(
            local,
            failures=9,
            on_failed="replay",
            autoretry_for=(OSError,),
            dont_autoretry_for=(ConnectionError,),
        )

        local.deliver(flaky.message)

        assert state() == "COMPLETED"

    def test_C7_a_retry_of_its_own_is_not_final_its_end_is(self, local: Local) -> None:
        flaky = Flaky(local, failures=9, on_failed="replay", max_retries=1)
        flaky.error = lambda task: task.retry()

        first = local.deliver(flaky.message)
        assert (first.state, state()) == ("RETRY", "FAILED")

        [second] = local.deliver_all()
        again = local.deliver(flaky.message)
        assert (type(second.value), state()) == (MaxRetriesExceededError, "COMPLETED")
        assert (type(again.value), flaky.runs) == (MaxRetriesExceededError, 2)

    class Local(Exception):
        """Importable, though not at the top of its module."""

    @pytest.mark.parametrize("how", ["worker", "call"])
    def test_I1_a_task_that_returns_an_awaitable_fails(
        self, local: Local, mode: str, how: str
    ) -> None:
        async def later() -> None:
            pytest.fail("ran")

        @local.app.task
        @idempotent_task(key=lambda: "one")
        def work() -> Any:
            return later()

        if how == "worker":
            done = local.deliver(local.send(work))
            assert (done.state, type(done.value)) == ("FAILURE", TypeError)
        else:
            with pytest.raises(TypeError, match="nobody awaits"):
                work()

        assert state() == "FAILED"

    def test_C7_a_nested_type_comes_back(self, local: Local) -> None:
        flaky = Flaky(local, on_failed="replay")
        flaky.error = self.Local("x")

        local.deliver(flaky.message)

        assert type(local.deliver(flaky.message).value) is self.Local

    def unmakeable() -> list[Any]:  # type: ignore[misc]
        class Unreachable(Exception):
            pass

        return [
            pytest.param(Unreachable("oh"), "Unreachable: oh", id="cannot be imported"),
            pytest.param(Loud("oh"), "Loud: oh", id="R95 runs code to be made"),
            pytest.param(NotEnough(object), "NotEnough: <class", id="cannot be serialised"),
            pytest.param(Peculiar(code=object), "Peculiar: code", id="attribute of its own"),
        ]

    @pytest.mark.parametrize(("error", "text"), unmakeable())
    def test_C7_a_type_that_cannot_be_made_again_is_task_failed(
        self, local: Local, error: Exception, text: str
    ) -> None:
        flaky = Flaky(local, on_failed="replay")
        flaky.error = error

        first, again = local.deliver(flaky.message), local.deliver(flaky.message)

        assert first.value is error
        assert type(again.value) is TaskFailed
        assert text in str(again.value)
        assert flaky.runs == 1

    @pytest.mark.parametrize(
        "error",
        [Peculiar(code=7), OSError(2, "No such file"), KeyError("a"), ValueError()],
        ids=["by keyword", "OSError", "KeyError", "nothing"],
    )
    def test_C7_an_exception_comes_back_with_its_attributes(
        self, local: Local, error: Exception
    ) -> None:
        flaky = Flaky(local, on_failed="replay")
        flaky.error = error

        local.deliver(flaky.message)
        again = local.deliver(flaky.message).value

        assert type(again) is type(error)
        assert (str(again), again.args, vars(again)) == (str(error), error.args, vars(error))
        assert getattr(again, "errno", None) == getattr(error, "errno", None)

    def test_R95_a_record_runs_no_code_of_a_class_and_imports_nothing(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Forged: the class of another module, its arguments and its attributes."""
        ran: list[Any] = []
        monkeypatch.setattr(Peculiar, "__init__", lambda *args, **named: ran.append(args))
        lazy = ModuleType("tests_lazy")
        monkeypatch.setattr(lazy, "__getattr__", ran.append, raising=False)
        monkeypatch.setitem(sys.modules, "tests_lazy", lazy)
        monkeypatch.delitem(sys.modules, "this", raising=False)

        def made(module: str, name: str, *arguments: Any) -> Exception:
            return Failed(module, name, arguments, {}, "text").exception()

        assert type(made(__name__, "Peculiar", "rm -rf")) is Peculiar
        for module, name in [
            ("pathlib", "Path"),
            ("this", "s"),
            ("tests_lazy", "Anything"),
            ("builtins", "SystemExit"),
            ("builtins", "print"),
            ("builtins", "Exception.with_traceback"),
            ("celery.exceptions", "Reject"),
            ("django_idempotency.exceptions", "InProgress"),
            ("json", "JSONDecodeError"),
            ("", ""),
        ]:
            assert type(made(module, name, "x")) is TaskFailed
        assert type(made("builtins", "UnicodeDecodeError", "x")) is TaskFailed
        assert ran == []
        assert "this" not in sys.modules

    @pytest.mark.parametrize(
        "error",
        [
            pytest.param(SoftTimeLimitExceeded(), id="C9 a soft time limit"),
            pytest.param(InProgress(), id="an idempotent call of the work"),
            pytest.param(NotEnough("x" * 2000), id="larger than a result may be"),
        ],
    )
    def test_C7_what_may_come_out_better_is_not_kept(self, local: Local, error: Any) -> None:
        flaky = Flaky(local, failures=1, on_failed="replay", max_result_bytes=500)
        flaky.error = error

        first = local.deliver(flaky.message)

        assert (first.value, state()) == (error, "FAILED")
        assert local.deliver(flaky.message) == Done("SUCCESS", "result 2")

    def test_C7_the_end_of_the_process_is_not_kept(self, local: Local) -> None:
        flaky = Flaky(local, failures=1, on_failed="replay")
        flaky.error = SystemExit(1)

        with pytest.raises(SystemExit):
            local.deliver(flaky.message)

        assert state() == "FAILED"
        assert local.deliver(flaky.message) == Done("SUCCESS", "result 2")
