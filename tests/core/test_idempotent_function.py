"""`idempotent_function`: the three forms of its key, its payload, and coroutines."""

from __future__ import annotations

import inspect
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import pytest
from asgiref.sync import async_to_sync
from django.utils.translation import gettext_lazy

from django_idempotency import (
    FingerprintMismatch,
    InvalidKey,
    current,
    derive_key,
    idempotent_function,
)
from django_idempotency.conf import store_for
from django_idempotency.records import State
from tests.app.models import Effect

pytestmark = pytest.mark.usefixtures("memory")


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
        function = guarded("order", payload=None)
        function("a", 5)
        assert function("a", order=5) == ["a", 5]
        with pytest.raises(FingerprintMismatch):
            function("b", 5)

    def test_defaults_are_part_of_the_payload(self):
        function = guarded("tenant", payload=None)
        function("a")
        assert function("a", 1) == ["a", 1]
        with pytest.raises(FingerprintMismatch):
            function("a", 2)

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

    def test_its_name_is_no_part_of_the_operation(self):
        @idempotent_function(key="order", scope="s", payload=lambda **_: None)
        def renamed(order):
            pytest.fail("ran")

        guarded("order")("a", 5)
        assert renamed(5) == ["a", 5]

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
