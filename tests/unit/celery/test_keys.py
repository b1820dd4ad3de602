"""The key of a task, its scope, and what is compared (C1 to C3)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from celery import Task

from django_idempotency import FingerprintMismatch, InvalidKey
from django_idempotency.codecs import pack
from django_idempotency.conf import store_for
from django_idempotency.contrib.celery import idempotent_task
from django_idempotency.contrib.events import sqs_message_id
from django_idempotency.models import IdempotencyRecord
from django_idempotency.policy import UNSET
from tests import version_1
from tests.unit.celery.local import Local

pytestmark = pytest.mark.usefixtures("memory")


class Runs(list[tuple[Any, ...]]):
    """What the body of a task was called with, one entry per run."""

    def __call__(self, *arguments: Any) -> int:
        self.append(arguments)
        return len(self)


@pytest.fixture
def runs() -> Runs:
    return Runs()


class TestKey:
    def test_C1_an_argument_by_its_name(self, app: Any, runs: Runs) -> None:
        @app.task
        @idempotent_task(key="order_id")
        def charge(order_id: int) -> int:
            return runs(order_id)

        assert [charge(1), charge(1), charge(2)] == [1, 1, 2]

    def test_C1_the_name_may_be_given_by_position(self, app: Any, runs: Runs) -> None:
        @app.task
        @idempotent_task("order_id")
        def charge(order_id: int) -> int:
            return runs(order_id)

        assert [charge(1), charge(1)] == [1, 1]

    def test_C1_a_template_over_the_arguments(self, app: Any, runs: Runs) -> None:
        @app.task
        @idempotent_task(key="{tenant}#{order_id}")
        def charge(tenant: str, order_id: str) -> int:
            return runs(tenant, order_id)

        assert [charge("a", "1"), charge("b", "1"), charge("a", "1")] == [1, 2, 1]

    def test_C1_the_values_of_a_template_are_escaped(self, app: Any, runs: Runs) -> None:
        @app.task
        @idempotent_task(key="{tenant}#{order_id}")
        def charge(tenant: str, order_id: str) -> int:
            return runs(tenant, order_id)

        assert [charge("a#b", "c"), charge("a", "b#c")] == [1, 2]

    def test_C1_a_callable_over_the_arguments(self, app: Any, runs: Runs) -> None:
        @app.task
        @idempotent_task(key=lambda order, note: order["id"], payload=None)
        def charge(order: dict[str, str], note: str = "") -> int:
            return runs(order)

        assert [charge({"id": "x", "at": "1"}), charge({"id": "x", "at": "2"})] == [1, 1]

    @pytest.mark.parametrize("bind", [False, True], ids=["function", "bind"])
    @pytest.mark.parametrize(
        "key",
        [str, lambda x: str(x), lambda *args: str(args[0]), lambda order_id: str(order_id)],
        ids=["str", "another name", "*args", "its name"],
    )
    def test_C1_a_callable_may_have_names_of_its_own(
        self, local: Local, runs: Runs, key: Any, bind: bool
    ) -> None:
        def bound(self: Task, order_id: int) -> int:
            return runs(order_id)

        def function(order_id: int) -> int:
            return runs(order_id)

        charge = local.app.task(idempotent_task(key=key)(bound if bind else function), bind=bind)
        messages = [local.send(charge, 1), local.send(charge, order_id=1)]

        assert [local.deliver(message).value for message in messages] == [1, 1]

    @pytest.mark.parametrize(
        ("args", "kwargs"),
        [
            pytest.param((1, "EUR"), {}, id="by position"),
            pytest.param((), {"currency": "EUR", "order_id": 1}, id="by name, in another order"),
            pytest.param((1,), {}, id="by default"),
        ],
    )
    def test_C1_the_way_of_calling_makes_no_difference(
        self, app: Any, runs: Runs, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        @app.task
        @idempotent_task(key="{order_id} {currency}")
        def charge(order_id: int, currency: str = "EUR") -> int:
            return runs(order_id, currency)

        charge(1, "EUR")

        assert charge(*args, **kwargs) == 1

    def test_C1_without_a_key_it_is_the_id_of_the_task(self, local: Local, runs: Runs) -> None:
        @local.app.task
        @idempotent_task
        def charge(order_id: int) -> int:
            return runs(order_id)

        first, other = local.send(charge, 1), local.send(charge, 1)
        results = [local.deliver(message).value for message in (first, other, first)]

        assert results == [1, 2, 1]

    @pytest.mark.parametrize("decorator", [idempotent_task, idempotent_task()], ids=["bare", "()"])
    def test_C1_a_direct_call_without_a_key_has_no_id_and_runs_unguarded(
        self, app: Any, runs: Runs, decorator: Any
    ) -> None:
        @app.task
        @decorator
        def charge(order_id: int) -> int:
            return runs(order_id)

        assert [charge(1), charge(1), charge.run(1)] == [1, 2, 3]

    def test_C1_a_task_that_calls_itself_calls_a_function(self, local: Local, runs: Runs) -> None:
        @local.app.task
        @idempotent_task
        def walk(depth: int) -> int:
            runs(depth)
            return 1 + (walk(depth - 1) + walk(depth - 1) if depth else 0)

        message = local.send(walk, 2)

        assert [local.deliver(message).value, local.deliver(message).value] == [7, 7]
        assert len(runs) == 7

    def test_C1_a_task_whose_base_wraps_the_call_keeps_its_id(self, app: Any, runs: Runs) -> None:
        class Base(Task):
            def __call__(self, *args: Any, **kwargs: Any) -> Any:
                return super().__call__(*args, **kwargs)

        @app.task(base=Base)
        @idempotent_task
        def charge(order_id: int) -> int:
            return runs(order_id)

        assert [charge.apply([1], task_id="1").get() for _ in range(2)] == [1, 1]

    @pytest.mark.parametrize(
        ("key", "order"),
        [
            pytest.param("order", None, id="a name"),
            pytest.param("x {order}", None, id="a template"),
            pytest.param(lambda order: order, None, id="a callable"),
            pytest.param(lambda order: order, 5, id="not a string"),
            pytest.param("order", "", id="empty"),
        ],
    )
    def test_C1_no_key_fails_the_task_loudly(
        self, local: Local, runs: Runs, key: Any, order: Any
    ) -> None:
        @local.app.task
        @idempotent_task(key=key)
        def charge(order: Any) -> int:
            return runs(order)

        done = local.deliver(local.send(charge, order))

        assert (done.state, type(done.value), runs) == ("FAILURE", InvalidKey, [])

    def test_C1_the_task_itself_is_not_an_argument(self, app: Any, runs: Runs) -> None:
        @app.task(bind=True)
        @idempotent_task(key=lambda order_id: str(order_id))
        def charge(self: Task, order_id: int) -> int:
            assert self.name == charge.name
            return runs(order_id)

        assert [charge(1), charge(order_id=1)] == [1, 1]

    def test_C1_a_class_task_decorates_run(self, local: Local, runs: Runs) -> None:
        class Charge(Task):
            name = "charge"

            @idempotent_task(key="order_id")
            def run(self, order_id: int) -> int:
                assert isinstance(self, Charge)
                return runs(order_id)

        charge = local.app.register_task(Charge())
        results = [local.deliver(local.send(charge, 1)).value for _ in range(2)]

        assert results == [1, 1]

    def test_C1_the_body_called_outside_of_its_task_finds_it(self, app: Any, runs: Runs) -> None:
        @app.task
        @idempotent_task(key="order_id")
        def charge(order_id: int) -> int:
            return runs(order_id)

        @app.task
        def other() -> Any:
            return charge.run(1)

        assert [charge.run(1), other(), charge(1)] == [1, 1, 1]

    def test_C1_a_body_of_no_task_says_what_is_missing(self) -> None:
        @idempotent_task(key="order_id")
        def charge(order_id: int) -> None: ...

        with pytest.raises(RuntimeError, match="put @shared_task or"):
            charge(1)

    @pytest.fixture
    def crawl(self, app: Any, runs: Runs) -> Any:
        @app.task(bind=True)
        @idempotent_task
        def crawl(self: Task, page: int) -> Any:
            runs(page)
            return self.replace(self.s(page + 1)) if page < 3 else "end"

        return crawl

    def test_C1_C12_a_task_that_replaces_itself_eagerly(self, crawl: Any, runs: Runs) -> None:
        assert [crawl.apply([1], task_id="1").get() for _ in range(2)] == ["end", "end"]
        assert runs == [(1,), (2,), (3,)]

    def test_C1_a_task_that_replaces_itself_runs_each_time(
        self, local: Local, crawl: Any, runs: Runs
    ) -> None:
        first = local.send(crawl, 1)
        local.deliver(first)
        done = local.deliver_all()
        again = local.deliver(first)

        assert runs == [(1,), (2,), (3,)]
        assert done[-1].value == "end"
        assert again.state == "IGNORED"


class TestScope:
    @pytest.fixture
    def two(self, app: Any, runs: Runs) -> Any:
        def make(**options: Any) -> list[Any]:
            @idempotent_task(key="order_id", **options)
            def charge(order_id: int) -> int:
                return runs("charge", order_id)

            @idempotent_task(key="order_id", **options)
            def refund(order_id: int) -> int:
                return runs("refund", order_id)

            return [app.task(charge, name="charge"), app.task(refund, name="refund")]

        return make

    def test_C2_two_tasks_never_meet(self, two: Any) -> None:
        charge, refund = two()

        assert [charge(1), refund(1)] == [1, 2]

    @pytest.mark.parametrize("payload", [UNSET, None], ids=["arguments", "None"])
    def test_C3_I11_two_tasks_of_one_scope_never_get_each_others_result(
        self, two: Any, runs: Runs, payload: Any
    ) -> None:
        charge, refund = two(scope="money", payload=payload)

        assert charge(1) == 1
        with pytest.raises(FingerprintMismatch):
            refund(1)
        assert runs == [("charge", 1)]

    def test_C3_two_tasks_of_one_operation_are_one(self, two: Any) -> None:
        charge, refund = two(scope="money", operation="move")

        assert [charge(1), refund(1)] == [1, 1]

    @pytest.mark.parametrize("task", ["charge", "refund"])
    def test_R47_a_record_of_version_1_is_replayed_by_its_own_task(
        self, two: Any, runs: Runs, task: str
    ) -> None:
        charge, _ = two(scope="money")
        [old] = version_1.of_task({"order_id": 1})
        held = version_1.claimed("task", "money", "1", old, task)
        stored = pack(charge.run.idempotency.codec_for(charge), "stored", max_bytes=1000)
        store_for().complete(held, stored, retention=timedelta(days=1))

        if task == "charge":
            assert charge(1) == "stored"
        else:
            with pytest.raises(FingerprintMismatch):
                charge(1)
        assert runs == []

    def test_C2_it_survives_a_new_name(self, app: Any, runs: Runs) -> None:
        @idempotent_task(key="order_id", scope="charges", operation="charge")
        def charge(order_id: int) -> int:
            return runs(order_id)

        old, new = app.task(charge, name="shop.charge"), app.task(charge, name="billing.charge")

        assert [old(1), new(1)] == [1, 1]

    @pytest.mark.django_db
    def test_C2_the_record_says_whose_it_is_and_what_it_did(self, settings: Any, app: Any) -> None:
        settings.IDEMPOTENCY = {"default": {}}

        @app.task(name="shop.charge")
        @idempotent_task(key="order_id")
        def charge(order_id: int) -> None: ...

        charge(7)

        record = IdempotencyRecord.objects.get()
        assert (record.scope, record.key, record.operation) == ("shop.charge", "7", "shop.charge")


class TestFingerprint:
    def test_C3_other_arguments_are_a_mismatch(self, app: Any, runs: Runs) -> None:
        @app.task
        @idempotent_task(key="order_id")
        def charge(order_id: int, amount: int) -> int:
            return runs(order_id, amount)

        charge(1, 100)

        with pytest.raises(FingerprintMismatch):
            charge(1, 101)
        assert runs == [(1, 100)]

    def test_C3_payload_says_what_counts(self, app: Any, runs: Runs) -> None:
        @app.task
        @idempotent_task(key="order_id", payload=lambda order_id, amount, at: amount)
        def charge(order_id: int, amount: int, at: str) -> int:
            return runs(amount)

        assert [charge(1, 100, "noon"), charge(1, 100, "night")] == [1, 1]
        with pytest.raises(FingerprintMismatch):
            charge(1, 101, "noon")

    def test_C3_none_compares_nothing(self, app: Any, runs: Runs) -> None:
        @app.task
        @idempotent_task(key="order_id", payload=None)
        def charge(order_id: int, amount: int) -> int:
            return runs(amount)

        assert [charge(1, 100), charge(1, 101)] == [1, 1]

    @pytest.mark.parametrize(
        "lines",
        [
            {2: 2, None: 3, True: 4, 1.5: [{0: {False: 5}}]},
            [{1e22: 1, float("inf"): 2}],
            {"1": {"a": ({7: 8},)}},
        ],
        ids=["names", "floats", "nested"],
    )
    def test_C3_a_direct_call_and_a_message_ask_for_the_same(
        self, local: Local, runs: Runs, lines: Any
    ) -> None:
        """JSON makes a text of each member's name."""

        @local.app.task
        @idempotent_task(key="order_id")
        def charge(order_id: int, lines: Any, **more: Any) -> int:
            return runs(order_id)

        charge(1, lines, more=lines)

        done = local.deliver(local.send(charge, 1, lines, more=lines))

        assert (done.value, runs) == (1, [(1,)])

    def test_C3_other_names_of_members_are_a_mismatch(self, app: Any, runs: Runs) -> None:
        @app.task
        @idempotent_task(key="order_id")
        def charge(order_id: int, lines: Any) -> int:
            return runs(order_id)

        charge(1, {1: 2})

        with pytest.raises(FingerprintMismatch):
            charge(1, {2: 2})

    @pytest.mark.parametrize(
        "payload", [{}, {"payload": lambda message: message["body"]}], ids=["", "payload"]
    )
    def test_C3_a_key_of_a_message_does_not_compare_its_receipt(
        self, app: Any, runs: Runs, payload: Any
    ) -> None:
        @app.task
        @idempotent_task(key=sqs_message_id, **payload)
        def handle(message: dict[str, str]) -> None:
            runs.append((message["body"],))

        message = {"messageId": "m-1", "body": "order 1"}
        handle({**message, "receiptHandle": "r-1"})
        handle({**message, "receiptHandle": "r-2"})

        assert runs == [("order 1",)]
        if payload:
            with pytest.raises(FingerprintMismatch):
                handle({**message, "body": "another"})

    def test_C3_the_id_of_the_task_needs_none(self, local: Local, runs: Runs) -> None:
        @local.app.task
        @idempotent_task
        def charge(order: Any) -> int:
            return runs(order)

        first = charge.apply([object()], task_id="1").get()
        again = charge.apply([object()], task_id="1").get()

        assert [first, again] == [1, 1]

    def test_C3_a_retry_may_meet_code_that_has_gained_an_argument(
        self, app: Any, runs: Runs
    ) -> None:
        @idempotent_task(key="order_id", scope="charges", operation="charge")
        def old(order_id: int) -> None:
            raise ConnectionError

        @idempotent_task(key="order_id", scope="charges", operation="charge")
        def new(order_id: int, currency: str = "EUR", *tags: str, **more: str) -> int:
            return runs(order_id, currency)

        with pytest.raises(ConnectionError):
            app.task(old, name="old")(1)

        assert app.task(new, name="new")(1) == 1
        with pytest.raises(FingerprintMismatch):
            app.tasks["new"](1, "USD")

    def test_C3_arguments_without_a_canonical_form_are_named(self, app: Any) -> None:
        @app.task
        @idempotent_task(key="order_id")
        def charge(order_id: int, order: object) -> None: ...

        with pytest.raises(TypeError, match="type object"):
            charge(1, object())
