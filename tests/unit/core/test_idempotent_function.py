"""`idempotent_function`: the forms of its key, what is compared, and what nobody would await."""

from __future__ import annotations

import asyncio
import concurrent.futures
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
)
from django_idempotency.arguments import key_maker
from django_idempotency.codecs import JSONCodec
from django_idempotency.conf import store_for
from django_idempotency.policy import UNSET
from django_idempotency.records import State
from tests.app.models import Effect
from tests.unit.core.conftest import begin, kept, never, run

pytestmark = pytest.mark.usefixtures("memory")

once = partial(idempotent_function, scope="s")


def guarded(key, function=lambda tenant, order=1: None, **arguments):
    """Return `function`, guarded and with nothing compared, and the keys that it ran under."""
    keys = []

    def noting(*args, **kwargs):
        keys.append(current().request.key)
        return [*args, *kwargs.values()]

    noting.__signature__ = inspect.signature(function)
    wrapped = once(key=key, **{"payload": None, **arguments})(noting)
    wrapped.keys = keys
    return wrapped


def keys_of(function, *calls):
    """Return the keys of calls, each given as a tuple, or a dict by name."""
    for call in calls:
        function(**call) if isinstance(call, dict) else function(*call)
    return function.keys


async def acall(order):
    return order


class AsyncCall:
    async def __call__(self, order):
        return order


# The key.


@pytest.mark.parametrize(
    ("key", "made"),
    [
        ("order", "5"),
        ("order/{order}/of/{tenant}/", "order/5/of/a/"),
        *((f"{{tenant}}{sign}{{order}}", f"a{sign}5") for sign in ("-", "x-", "é", " ")),
        (lambda first, second: f"{second}!{first}", "5!a"),
        (lambda *values, **more: f"{values[1]}!{values[0]}", "5!a"),
        ("{1}!{0}".format, "5!a"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_C1_is_a_name_a_template_or_a_callable_that_is_called_as_the_function_is(key, made):
    found = keys_of(guarded(key), ("a", 5), {"order": 5, "tenant": "a"}, ("a",))
    assert found == [made, made.replace("5", "1")]


def test_C1_callable_takes_what_the_call_gives():
    """What kwargs has gathered may have the name of an argument."""
    by_name = lambda i, **kw: f"{i} {kw['x']}"  # noqa: E731
    for function, key, call, made in (
        (lambda order_id: 0, str, ("5",), "5"),
        (lambda order_id: 0, operator.itemgetter(slice(None)), ("5",), "5"),
        (lambda i, **kw: 0, by_name, {"i": 1, "x": 2}, "1 2"),
        (lambda i, **kw: 0, lambda i, x: f"{i} {x}", {"i": 1, "x": 2}, "1 2"),
        (lambda x, /, **more: 0, by_name, None, "1 2"),
        (lambda *numbers: 0, lambda *numbers: str(sum(numbers)), (1, 2), "3"),
        (lambda *, i, n: 0, lambda n, i: f"{i} {n}", {"i": "1", "n": 2}, "1 2"),
        (lambda i, *, n=2: 0, lambda i, n: f"{i} {n}", {"i": "1"}, "1 2"),
    ):
        wrapped = guarded(key, function)
        keys_of(wrapped, call) if call else wrapped(1, x=2)
        assert wrapped.keys == [made]
        store_for()._records.clear()


def test_C1_what_fits_no_call_is_a_TypeError_where_it_is_written():
    one_too_few, one_too_many = (lambda: "k"), (lambda one, two, three: "k")
    by_name = [lambda order, tenant: "k", lambda *, tenant, order: "k", lambda **names: "k"]
    for what in ("key", "payload"):
        for function in (one_too_few, one_too_many, lambda order, tennant: "k", *by_name):
            with pytest.raises(TypeError, match=f"{what} must be a callable over .* tenant, order"):
                guarded(**{"key": "order", what: function})
        with pytest.raises(TypeError, match=f"{what} must be a callable over .* order, rest"):
            guarded(function=lambda order, *rest: 0, **{"key": "order", what: one_too_few})
        with pytest.raises(TypeError, match=f"{what} must not be a coroutine function"):
            guarded(**{"key": "order", what: acall})
    for keys, told in (
        ((5, None, "", b"order"), "key must be an argument's name, a template or a"),
        (("ordr", "{tenant}#{ordr}", "{}", "{0}"), "tenant, order"),
        (("{order:05d}", "{order!r}", "{order.id}", "{order[0]}"), "."),
        ([f"{{tenant}}{it}{{order}}" for it in ("", "x", "5", "%", "of")], "separator between"),
    ):
        for key in keys:
            with pytest.raises(TypeError, match=told):
                guarded(key)


def test_C1_template_escapes_its_own_signs_and_no_letters():
    found = keys_of(guarded("of {tenant}#{order}"), ("日本 f%#", "a-b\n"))
    assert found == ["of 日本%20f%25%23#a-b%0A"]
    [key] = keys_of(guarded("{tenant}#{order}"), ("日" * 120, "本" * 120))
    assert key == "日" * 120 + "#" + "本" * 120
    assert keys_of(guarded("tenant"), ("a b/#%ü",)) == ["a b/#%ü"]  # alone, as it stands


texts = st.text(st.sampled_from("ab#-%25 {é日\x00\ud800\udcff€\u0301"), max_size=5)


@given(
    st.sampled_from(["{tenant}#{order}", "é{tenant}a-b{order}-", "%{tenant} % {order}{{"]),
    st.tuples(texts, texts),
    st.tuples(texts, texts),
)
def test_C1_any_two_values_of_a_template_differ(template, one, other):
    make_key = key_maker(template, signature := inspect.signature(lambda tenant, order: None))
    keys = [make_key(signature.bind(*values)) for values in (one, other)]
    assert (keys[0] == keys[1]) == (one == other)


def test_R8_R9_R79_what_has_no_text_of_its_own_or_is_no_key_makes_none():
    values = [{"b": 1}, (1,), object(), guarded, memoryview(b"k"), Effect(name="a row"), None]
    for key in ("order", "{tenant}#{order}"):
        for value in values:
            kind = "None" if value is None else f"a {type(value).__name__}"
            with pytest.raises(InvalidKey, match=f"'order' is {kind}") as caught:
                guarded(key)("secret", value)
            assert "secret" not in str(caught.value)
    for key in ("tenant", "{tenant}#{order}", lambda tenant, order: 5):
        for value in ("x" * 256, *(("", " ") if key == "tenant" else ())):
            with pytest.raises(InvalidKey):
                guarded(key)(value)
    texts = {
        **{True: "True", 1.5: "1.5", Decimal("1.10"): "1.10", UUID(int=7): str(UUID(int=7))},
        **{date(2026, 7, 1): "2026-07-01", timedelta(seconds=5): "0:00:05"},
        **{State.FAILED: str(State.FAILED), Path("a/b"): "a/b", gettext_lazy("lazy"): "lazy"},
    }
    assert keys_of(guarded("order"), *(("a", it) for it in texts)) == list(texts.values())


# What is compared.


def test_C3_the_arguments_are_the_payload_and_one_that_has_its_default_does_not_count():
    """A message may be older than an argument that the code has gained since."""
    function = guarded("order", payload=UNSET)
    assert function("a", 1) == function("a") == function(order=1, tenant="a") == ["a", 1]
    with pytest.raises(FingerprintMismatch):
        function("b", 1)
    store_for()._records.clear()
    once(key="order", operation="o")(lambda order: order)(5)
    new = once(key="order", operation="o")(lambda order, currency="EUR", *tags, **more: never())
    assert new(5) == 5
    with pytest.raises(FingerprintMismatch):
        new(5, "USD")


def test_C3_payload_of_ones_own_or_None_for_no_comparison():
    for payload in (None, lambda tenant, order: {"order": order}):
        store_for()._records.clear()
        function = guarded("order", payload=payload)
        assert function("a", 5) == function("b", 5) == ["a", 5]
    with pytest.raises(TypeError, match="payload must be a callable over the arguments"):
        guarded("order", payload="tenant")


@pytest.mark.parametrize("coroutine", [True, False])
def test_C3_I11_another_function_never_gets_its_result(coroutine):
    async def arefund(order):
        never()

    for payload in (UNSET, None, lambda order: order):
        store_for()._records.clear()
        declare = once(key="order", payload=payload)
        if coroutine:
            charge, refund = (async_to_sync(declare(it)) for it in (acall, arefund))
        else:
            charge, refund = declare(lambda order: order), declare(never_of_order)
        assert charge("1") == "1"
        with pytest.raises(FingerprintMismatch):
            refund("1")


def never_of_order(order):
    never()


def test_C3_its_qualified_name_is_the_operation_unless_that_is_given():
    def charge(order, lease=None):
        return current().request.operation

    name = f"{__name__}.{charge.__qualname__}"
    assert once(key="order")(charge)("1") == name
    assert once(key="order")(partial(charge, lease=1))("2") == name
    for function in (charge, never_of_order):
        assert once(key="order", operation="shop.charge")(function)("3") == "shop.charge"


@pytest.mark.parametrize("package", ["django.tasks", "django_tasks"])
def test_C3_context_that_a_task_of_Django_takes_is_no_argument(monkeypatch, package):
    class TaskContext:
        pass

    base = SimpleNamespace(TaskContext=TaskContext)
    monkeypatch.setitem(sys.modules, f"{package}.base", base)
    first, contexts = TaskContext(), []

    def function(context, order):
        contexts.append(context)
        return order

    for key, order in (("order", 5), (lambda order: str(order), 6)):
        task = once(key=key)(function)
        assert task(first, order) == task(TaskContext(), order=order) == order
    assert contexts == [first, first]


# The function that is declared, and what it returns.


def test_policy_and_store_are_passed_on_and_mistakes_are_a_TypeError_as_ever(settings):
    settings.IDEMPOTENCY = {"default": {}, "fast": settings.IDEMPOTENCY["default"]}
    request = []
    declared = once(key="order", store="fast", lease=7, retention=9)
    declared(lambda order: request.append(current().request))(1)
    assert (request[0].lease.seconds, request[0].retention.seconds) == (7, 9)
    assert store_for("fast").get(request[0].record_id).state is State.COMPLETED
    with pytest.raises(TypeError, match="unexpected keyword argument 'x'"):
        guarded("order")("a", x=1)
    with pytest.raises(TypeError, match="Did you mean 'lease'"):
        guarded("order", leese=5)("a")


class Named(JSONCodec):
    """One whose id makes no envelope, unless it is text of up to 255 bytes."""

    def __init__(self, name):
        self.id = name


@pytest.mark.parametrize(
    "codec",
    [
        JSONCodec,
        "json",
        5,
        object(),
        SimpleNamespace(id="x", encode=str),
        Named(5),
        Named(""),
        Named("x" * 256),
    ],
)
def test_R62_what_is_no_codec_is_a_TypeError_before_the_work(codec):
    """Once it is done, its result could not be kept, and a retry would do it again."""
    with pytest.raises(TypeError, match="codec must be an object with"):
        run(never, codec=codec)
    with (
        pytest.raises(TypeError, match="codec must be an object with"),
        attempt(key="k", scope="s", codec=codec),
    ):
        never()
    with pytest.raises(TypeError, match="codec must be an object with"):
        once(key="order", codec=codec)
    assert run(lambda lease: [1], codec=Named("x" * 255)).result == [1]


@pytest.mark.parametrize("name", [None, 5])
def test_an_operation_or_a_scope_that_is_no_text_is_told_where_it_is_declared(name):
    for argument in ("operation", "scope"):
        with pytest.raises(TypeError, match=f"{argument} must be a string"):
            idempotent_function(**{"key": "order", "scope": "s", argument: name})


def test_keeps_name_and_signature_and_stays_a_coroutine_function():
    for order, function in enumerate([acall, partial(acall), AsyncCall()]):
        wrapped = once(key="order")(function)
        assert inspect.iscoroutinefunction(wrapped)
        assert list(inspect.signature(wrapped).parameters) == ["order"]
        assert async_to_sync(wrapped)(order) == async_to_sync(wrapped)(order=order) == order
    assert once(key="order")(acall).__name__ == "acall"


def test_I1_work_that_nobody_awaits_is_not_recorded_as_done():
    def complete(make):
        with begin() as attempt:
            attempt.complete(make(5))

    loop = asyncio.new_event_loop()
    lazy = [lambda order: acall(order), lambda order: (n for n in [order])]
    lazy += [lambda order: map(str, [order]), lambda order: concurrent.futures.Future()]
    for make in (*lazy, lambda order: loop.create_future()):
        for call in (lambda make=make: once(key="order")(make)("k"), partial(complete, make)):
            store_for()._records.clear()
            with pytest.raises(TypeError, match="neither awaited"):
                call()
            assert kept().state is State.FAILED
    loop.close()
    store_for()._records.clear()
    for function in (acall, AsyncCall()):
        with pytest.raises(TypeError, match=r"await arun\(\)"):
            run(function)
    assert kept() is None


def test_C15_derived_key_is_that_of_the_lease():
    both = once(key="order")(lambda order: [derive_key("a"), current().derive_key("a")])
    assert len(set(both(1))) == 1
    with pytest.raises(RuntimeError, match="inside idempotent work"):
        derive_key("a")
