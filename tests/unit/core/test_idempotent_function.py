"""`idempotent_function`: the three forms of its key, its payload, and coroutines."""

from __future__ import annotations

import asyncio
import inspect
import operator
import sys
from datetime import date, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import pytest
from asgiref.sync import async_to_sync
from django.utils.translation import gettext_lazy
from hypothesis import given
from hypothesis import strategies as st

from django_idempotency import (
    FingerprintMismatch,
    InvalidKey,
    attempt,
    current,
    derive_key,
    idempotent_function,
    run,
)
from django_idempotency.arguments import key_maker
from django_idempotency.codecs import JSONCodec, pack
from django_idempotency.conf import store_for
from django_idempotency.keys import record_id
from django_idempotency.models import IdempotencyRecord
from django_idempotency.policy import UNSET
from django_idempotency.records import State
from tests import version_1
from tests.app.models import Effect

pytestmark = pytest.mark.usefixtures("memory")

#: Texts of signs that templates and escapes are made of.
texts = st.text(st.sampled_from("ab#-%25 {é日\x00\ud800\udcff"), max_size=5)


def guarded(key, **arguments):
    """Return a guarded function over (tenant, order) and the keys it ran under."""
    keys = []

    @idempotent_function(key=key, scope="s", **{"payload": lambda **_: None, **arguments})
    def function(tenant, order=1):
        keys.append(current().request.key)
        return [tenant, order]

    function.keys = keys
    return function


class TestKey:
    def test_name_of_an_argument(self):
        function = guarded("order")
        function("a", 5)
        function("a", order=6)
        function("a")
        assert function.keys == ["5", "6", "1"]

    def test_template_over_arguments(self):
        function = guarded("{tenant}#{order}")
        function("a", 5)
        assert function.keys == ["a#5"]

    def test_template_with_text_around(self):
        function = guarded("order/{order}/of/{tenant}/")
        function("a", 5)
        assert function.keys == ["order/5/of/a/"]

    def test_callable_over_the_arguments_by_name(self):
        function = guarded(lambda tenant, order: f"{order}!{tenant}")
        function("a")
        assert function.keys == ["1!a"]

    @pytest.mark.parametrize(
        "key",
        [
            lambda first, second: f"{second}!{first}",
            lambda *values: f"{values[1]}!{values[0]}",
            lambda *values, **more: f"{values[1]}!{values[0]}",
            "{1}!{0}".format,
            lambda order, tenant: f"{order}!{tenant}",
            lambda *, order, tenant: f"{order}!{tenant}",
            lambda **names: f"{names['order']}!{names['tenant']}",
        ],
        ids=["other names", "*", "* and **", "of C", "another order", "keywords only", "**"],
    )
    def test_C1_callable_over_the_arguments_by_name_or_in_their_order(self, key):
        function = guarded(key)
        function("a", order=5)
        function(order=6, tenant="a")
        assert function.keys == ["5!a", "6!a"]

    @pytest.mark.parametrize(
        "key", [str, lambda x: x, operator.itemgetter(slice(None))], ids=["str", "x", "itemgetter"]
    )
    def test_C1_callable_over_one_argument_whatever_its_name(self, key):
        keys = []

        @idempotent_function(key=key, scope="s")
        def function(order_id):
            keys.append(current().request.key)

        function("5")
        function(order_id="6")
        assert keys == ["5", "6"]

    @pytest.mark.parametrize(
        "key",
        [
            lambda order_id, **more: f"{order_id} {more['x']}",
            lambda order_id, x: f"{order_id} {x}",
            lambda number, **more: f"{number} {more['x']}",
        ],
        ids=["**", "its name", "in order"],
    )
    def test_C1_what_kwargs_has_gathered_has_its_own_names(self, key):
        keys = []

        @idempotent_function(key=key, scope="s")
        def function(order_id, **kwargs):
            keys.append(current().request.key)

        function(1, x=2)
        assert keys == ["1 2"]

    def test_C1_what_kwargs_has_gathered_may_have_the_name_of_an_argument(self):
        keys = []

        @idempotent_function(key=lambda first, **more: f"{first} {more['order']}", scope="s")
        def function(order, /, **more):
            keys.append(current().request.key)

        function(1, order=2)
        assert keys == ["1 2"]

    def test_C1_of_two_arguments_of_one_name_none_is_lost(self):
        @idempotent_function(key=lambda **names: str(names["order"]), scope="s")
        def function(order, /, **more):
            pytest.fail("ran")

        with pytest.raises(TypeError):
            function(1, order=2)

    @pytest.mark.parametrize(
        "key", [lambda *numbers: str(sum(numbers)), lambda numbers: str(sum(numbers))]
    )
    def test_C1_what_args_has_gathered(self, key):
        keys = []

        @idempotent_function(key=key, scope="s")
        def function(*numbers):
            keys.append(current().request.key)

        function(1, 2)
        assert keys == ["3"]

    @pytest.mark.parametrize("what", ["key", "payload"])
    @pytest.mark.parametrize(
        "function",
        [
            lambda: "k",
            lambda one, two, three: "k",
            lambda *, amount: "k",
            lambda order, tennant: "k",
        ],
        ids=["none", "too many", "unknown", "misspelt, in another order"],
    )
    def test_C1_callable_that_fits_no_call_is_a_TypeError_where_it_is_written(self, what, function):
        with pytest.raises(TypeError, match=f"{what} must be a callable over .* tenant, order"):
            guarded(**{"key": "order", what: function})

    @pytest.mark.parametrize("what", ["key", "payload"])
    def test_C1_callable_is_no_coroutine_function(self, what):
        async def function(tenant, order):
            pytest.fail("ran")

        with pytest.raises(TypeError, match=f"{what} must not be a coroutine function"):
            guarded(**{"key": "order", what: function})

    @pytest.mark.parametrize("key", [5, None, "", b"order"], ids=repr)
    def test_C1_key_of_another_kind_is_a_TypeError_where_it_is_written(self, key):
        with pytest.raises(TypeError, match="key must be an argument's name, a template or a"):
            guarded(key)

    def test_C1_template_escapes_its_own_signs_and_no_letters(self):
        function = guarded("of {tenant}#{order}")
        function("日本 f%#", "a-b\n")
        assert function.keys == ["of 日本%20f%25%23#a-b%0A"]

    def test_C1_template_over_much_text_beyond_ASCII_is_a_key(self):
        function = guarded("{tenant}#{order}")
        function("日" * 120, "本" * 120)
        assert function.keys == ["日" * 120 + "#" + "本" * 120]

    @given(
        st.sampled_from(["{tenant}#{order}", "é{tenant}a-b{order}-", "%{tenant} % {order}{{"]),
        st.tuples(texts, texts),
        st.tuples(texts, texts),
    )
    def test_C1_any_two_values_of_a_template_differ(self, template, one, other):
        make_key = key_maker(template, signature := inspect.signature(lambda tenant, order: None))
        keys = [make_key(signature.bind(*values)) for values in (one, other)]
        assert (keys[0] == keys[1]) == (one == other)

    def test_an_argument_alone_is_taken_as_it_stands(self):
        function = guarded("tenant")
        function("a b/#%ü")
        assert function.keys == ["a b/#%ü"]

    @pytest.mark.parametrize(
        ("template", "one", "other"),
        [
            ("{tenant}#{order}", ("a#b", "c"), ("a", "b#c")),
            ("{tenant}#{order}", ("a%23b", "c"), ("a#b", "c")),
            ("{tenant}-{order}", ("a-b", "c"), ("a", "b-c")),
            ("{tenant}_{order}", ("a_b", "c"), ("a", "b_c")),
            ("{tenant}.{order}", ("a.b", "c"), ("a", "b.c")),
            ("{tenant}#{order}", (" AC", "c"), ("\u20ac", "c")),
            ("{tenant}#{order}", ("\u00e9", "c"), ("e\u0301", "c")),
        ],
        ids=["#", "%", "-", "_", ".", "beyond latin-1", "composed"],
    )
    def test_values_in_a_template_do_not_run_together(self, template, one, other):
        function = guarded(template)
        assert function(*one) == list(one)
        assert function(*other) == list(other)
        assert len(set(function.keys)) == 2

    @pytest.mark.parametrize("between", ["", "x", "5", "%", "of", "0%"])
    def test_what_stands_between_fields_is_a_sign_that_values_never_have(self, between):
        with pytest.raises(TypeError, match="sign between"):
            guarded(f"{{tenant}}{between}{{order}}")

    @pytest.mark.parametrize("between", ["#", "-", "x-", "/of/", "é", " "])
    def test_such_a_sign_will_do(self, between):
        function = guarded(f"{{tenant}}{between}{{order}}")
        function("a", 5)
        assert function.keys == [f"a{between}5"]

    @pytest.mark.parametrize("template", ["{order:05d}", "{order!r}", "{order.id}", "{order[0]}"])
    def test_a_template_has_plain_names_only(self, template):
        with pytest.raises(TypeError):
            guarded(template)

    @pytest.mark.parametrize("key", ["order", "{tenant}#{order}", lambda tenant, order: order])
    def test_None_makes_no_key(self, key):
        with pytest.raises(InvalidKey):
            guarded(key)("a", None)

    def test_R79_the_message_names_the_argument_and_not_the_values(self):
        with pytest.raises(InvalidKey, match="'order' is None") as caught:
            guarded("{tenant}#{order}")("secret", None)
        assert "secret" not in str(caught.value)

    @pytest.mark.parametrize("key", ["order", "{tenant}#{order}"])
    @pytest.mark.parametrize(
        "value",
        [
            {"b": 1, "a": 2},
            [1],
            (1,),
            {1},
            object(),
            SimpleNamespace(a=1),
            guarded,
            memoryview(b"k"),
            Effect(name="a row"),
        ],
        ids=lambda value: value if isinstance(value, str) else type(value).__name__,
    )
    def test_what_has_no_text_of_its_own_makes_no_key(self, key, value):
        with pytest.raises(InvalidKey, match=f"'order' is a {type(value).__name__}"):
            guarded(key)("a", value)

    @pytest.mark.parametrize(
        ("value", "text"),
        [
            (True, "True"),
            (1.5, "1.5"),
            (Decimal("1.10"), "1.10"),
            (UUID(int=7), str(UUID(int=7))),
            (date(2026, 7, 1), "2026-07-01"),
            (timedelta(seconds=5), "0:00:05"),
            (State.FAILED, str(State.FAILED)),
            (Path("a/b"), "a/b"),
            (gettext_lazy("lazy"), "lazy"),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_what_has_makes_one(self, value, text):
        function = guarded("order")
        function("a", value)
        assert function.keys == [text]

    @pytest.mark.parametrize("value", ["", " ", "x" * 256])
    def test_R8_R9_a_value_that_is_no_key(self, value):
        with pytest.raises(InvalidKey):
            guarded("tenant")(value)

    def test_R9_a_template_that_gets_too_long(self):
        with pytest.raises(InvalidKey):
            guarded("{tenant}#{order}")("x" * 255)

    @pytest.mark.parametrize("key", [lambda tenant, order: 5, lambda tenant, order: b"k"])
    def test_a_callable_gives_a_str(self, key):
        with pytest.raises(InvalidKey):
            guarded(key)("a")

    @pytest.mark.parametrize("key", ["ordr", "{tenant}#{ordr}", "{}", "{0}"])
    def test_a_name_that_is_no_argument_is_a_TypeError_where_it_is_written(self, key):
        with pytest.raises(TypeError, match="tenant, order"):
            guarded(key)


class TestCall:
    def test_returns_the_result_and_the_stored_one(self):
        function = guarded("order")
        assert function("a", 5) == ["a", 5]
        assert function("a", 5) == ["a", 5]
        assert function.keys == ["5"]

    def test_the_arguments_are_the_payload(self):
        function = guarded("order", payload=UNSET)
        function("a", 5)
        assert function("a", order=5) == ["a", 5]
        with pytest.raises(FingerprintMismatch):
            function("b", 5)

    def test_defaults_are_part_of_the_payload(self):
        function = guarded("tenant", payload=UNSET)
        function("a")
        assert function("a", 1) == ["a", 1]
        with pytest.raises(FingerprintMismatch):
            function("a", 2)

    def test_C3_argument_that_has_its_default_does_not_count(self):
        """A message may be older than an argument that the code has gained since."""

        @idempotent_function(key="order", scope="s", operation="o")
        def old(order):
            return order

        @idempotent_function(key="order", scope="s", operation="o")
        def new(order, currency="EUR", *tags, **more):
            pytest.fail("ran")

        old(5)
        assert new(5) == 5
        with pytest.raises(FingerprintMismatch):
            new(5, "USD")

    def test_C3_payload_None_compares_nothing(self):
        function = guarded("order", payload=None)
        function("a", 5)
        assert function("b", 5) == ["a", 5]

    def test_C3_payload_of_another_kind_is_a_TypeError_where_it_is_written(self):
        with pytest.raises(TypeError, match="payload must be a callable over the arguments"):
            guarded("order", payload="tenant")

    def test_a_payload_of_ones_own(self):
        function = guarded("order", payload=lambda tenant, order: {"order": order})
        function("a", 5)
        assert function("b", 5) == ["a", 5]

    def test_wrong_arguments_are_a_TypeError_as_ever(self):
        with pytest.raises(TypeError, match="unexpected keyword argument 'x'"):
            guarded("order")("a", x=1)

    def test_keeps_name_and_signature(self):
        function = guarded("order")
        assert function.__name__ == "function"
        assert list(inspect.signature(function).parameters) == ["tenant", "order"]

    @pytest.mark.parametrize("key", ["order", lambda order: str(order)], ids=["name", "callable"])
    @pytest.mark.parametrize("package", ["django.tasks", "django_tasks"])
    def test_C3_context_that_a_task_of_Django_takes_is_no_argument(self, monkeypatch, package, key):
        class TaskContext:
            pass

        base = SimpleNamespace(TaskContext=TaskContext)
        monkeypatch.setitem(sys.modules, f"{package}.base", base)
        contexts = []

        @idempotent_function(key=key, scope="s")
        def function(context, order):
            contexts.append(context)
            return order

        first = TaskContext()
        assert function(first, 5) == function(TaskContext(), order=5) == 5
        assert contexts == [first]

    @pytest.mark.parametrize("payload", [UNSET, None, lambda order: order])
    def test_C3_I11_another_function_never_gets_its_result(self, payload):
        @idempotent_function(key="order", scope="orders", payload=payload)
        def charge(order):
            return "charged"

        @idempotent_function(key="order", scope="orders", payload=payload)
        def refund(order):
            pytest.fail("ran")

        assert charge("1") == "charged"
        with pytest.raises(FingerprintMismatch):
            refund("1")

    def test_C3_a_coroutine_function_never_gets_anothers_result(self, in_loop):
        @idempotent_function(key="order", scope="orders")
        async def charge(order):
            return "charged"

        @idempotent_function(key="order", scope="orders")
        async def refund(order):
            pytest.fail("ran")

        async def both():
            assert await charge("1") == "charged"
            with pytest.raises(FingerprintMismatch):
                await refund("1")

        in_loop(both)

    def test_C3_its_operation_survives_a_new_name(self):
        @idempotent_function(key="order", scope="s", operation="shop.charge")
        def charge(order):
            return "charged"

        @idempotent_function(key="order", scope="s", operation="shop.charge")
        def renamed(order):
            pytest.fail("ran")

        assert [charge("1"), renamed("1")] == ["charged"] * 2

    def test_C3_its_qualified_name_is_the_operation(self):
        def charge(order, lease=None):
            return current().request.operation

        name = f"{__name__}.{charge.__qualname__}"
        decorate = idempotent_function(key="order", scope="s")

        assert decorate(charge)("1") == name
        assert decorate(partial(charge, lease=1))("2") == name

    def test_R47_a_result_of_version_1_is_replayed(self):
        """Its fingerprint was that of an empty operation, and so was its record's."""
        [old] = version_1.of_call({"order": 1})
        held = version_1.claimed("call", "s", "1", old)
        stored = pack(JSONCodec(), "stored", max_bytes=1000)
        store_for().complete(held, stored, retention=timedelta(days=1))

        @idempotent_function(key="order", scope="s")
        def function(order):
            pytest.fail("ran")

        assert function(1) == "stored"

    def test_an_error_passes_on_and_the_next_call_runs(self):
        results = [ValueError("boom"), "done"]

        @idempotent_function(key="order", scope="s")
        def function(order):
            result = results.pop(0)
            if isinstance(result, Exception):
                raise result
            return result

        with pytest.raises(ValueError, match="boom"):
            function(1)
        assert function(1) == "done"

    def test_policy_and_store_are_passed_on(self, settings, memory):
        settings.IDEMPOTENCY = {"default": {}, "fast": settings.IDEMPOTENCY["default"]}
        requests = []

        @idempotent_function(
            key="order", scope="s", operation="charge", store="fast", lease=7, retention=9
        )
        def function(order):
            requests.append(current().request)

        function(1)
        [request] = requests
        assert (request.operation, request.scope) == ("charge", "s")
        assert (request.lease.seconds, request.retention.seconds) == (7, 9)
        assert store_for("fast").get(request.record_id).state is State.COMPLETED

    def test_unknown_policy_with_a_suggestion(self):
        with pytest.raises(TypeError, match="Did you mean 'lease'"):
            guarded("order", leese=5)("a")


class TestCoroutines:
    def test_stays_a_coroutine_function(self):
        @idempotent_function(key="order", scope="s")
        async def function(order):
            return order

        assert inspect.iscoroutinefunction(function)

    def test_runs_once(self):
        runs = []

        @idempotent_function(key="{tenant}#{order}", scope="s")
        async def function(tenant, order):
            runs.append(current().request.key)
            return [tenant, order]

        async def main():
            return [await function("a#", 5), await function("a#", order=5)]

        assert async_to_sync(main)() == [["a#", 5], ["a#", 5]]
        assert runs == ["a%23#5"]

    @pytest.mark.django_db(transaction=True)
    @pytest.mark.parametrize("mode", ["joined", "single", "separate"])
    def test_in_each_mode_on_the_database(self, settings, in_loop, mode):
        settings.IDEMPOTENCY = {}

        @idempotent_function(key="order", scope="s", transaction=mode)
        async def function(order):
            effect = await Effect.objects.acreate(name=order)
            return effect.pk

        async def main():
            return {await function("5"), await function("5")}

        assert len(in_loop(main)) == 1
        assert Effect.objects.count() == 1


class AsyncCall:
    async def __call__(self, order):
        return order


async def acall(order):
    return order


class TestAwaitables:
    """Work that nobody awaits is not done, so it must not be recorded as done (I1)."""

    @pytest.mark.parametrize(
        "function", [partial(acall), AsyncCall()], ids=["partial", "async __call__"]
    )
    def test_I1_what_is_async_within_stays_a_coroutine_function(self, function):
        function = idempotent_function(key="order", scope="s")(function)

        async def main():
            return [await function(5), await function(order=5)]

        assert inspect.iscoroutinefunction(function)
        assert async_to_sync(main)() == [5, 5]

    @pytest.mark.parametrize("transaction", ["joined", "separate"])
    @pytest.mark.django_db(transaction=True)
    def test_I1_function_that_returns_an_awaitable_fails(self, settings, transaction):
        settings.IDEMPOTENCY = {}
        function = idempotent_function(key="order", scope="s", transaction=transaction)(
            lambda order: acall(order)
        )

        with pytest.raises(TypeError, match="nobody awaits"):
            function(5)

        assert IdempotencyRecord.objects.get().state == "FAILED"

    @pytest.mark.django_db(transaction=True)
    @pytest.mark.parametrize(
        "lazy", [acall, lambda order: (n for n in [order])], ids=["coroutine", "generator"]
    )
    def test_I1_so_does_an_attempt_that_is_given_one(self, settings, lazy):
        settings.IDEMPOTENCY = {}

        with (
            pytest.raises(TypeError, match="nobody awaits"),
            attempt(key="k", scope="s", transaction="separate") as tried,
        ):
            tried.complete(lazy(5))

        assert IdempotencyRecord.objects.get().state == "FAILED"

    def test_I1_future_is_an_awaitable(self):
        loop = asyncio.new_event_loop()
        future = loop.create_future()
        with pytest.raises(TypeError, match="nobody awaits"):
            run(lambda lease: future, key="k", scope="s")
        loop.close()

    @pytest.mark.parametrize("function", [acall, AsyncCall()], ids=["def", "async __call__"])
    def test_I1_run_refuses_a_coroutine_function(self, function, memory):
        with pytest.raises(TypeError, match=r"await arun\(\)"):
            run(function, key="k", scope="s")

        assert memory.get(record_id("call", "s", "k")) is None


class TestCurrent:
    def test_outside_of_work_there_is_no_lease(self):
        assert current() is None

    def test_derive_key_outside_of_work_is_an_error(self):
        with pytest.raises(RuntimeError, match="inside idempotent work"):
            derive_key("charge")

    def test_derive_key_is_that_of_the_lease(self):
        @idempotent_function(key="order", scope="s")
        def function(order):
            return [derive_key("charge"), current().derive_key("charge"), derive_key("mail")]

        charge, same, mail = function(1)
        assert charge == same != mail

    def test_derive_key_is_equal_in_the_retry(self):
        keys = []

        @idempotent_function(key="order", scope="s")
        def function(order):
            keys.append(derive_key("charge"))
            if len(keys) == 1:
                raise ValueError("boom")

        with pytest.raises(ValueError, match="boom"):
            function(1)
        function(1)
        assert keys[0] == keys[1]

    def test_there_is_no_lease_left_after_an_error(self):
        @idempotent_function(key="order", scope="s")
        def function(order):
            raise ValueError("boom")

        with pytest.raises(ValueError, match="boom"):
            function(1)
        assert current() is None
