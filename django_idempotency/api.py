"""The public calls: run, arun, attempt, idempotent_function, current, derive_key."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
)
from datetime import timedelta
from typing import Any, ParamSpec, TypeVar

from django_idempotency import keys
from django_idempotency.arguments import bind, is_context, key_maker, payload_maker, without_first
from django_idempotency.callables import is_coroutine_function, name_of
from django_idempotency.codecs import Codec, JSONCodec
from django_idempotency.conf import DEFAULT_ALIAS, engine_for, fingerprint_secrets, policy_for
from django_idempotency.context import current
from django_idempotency.engine import transactions
from django_idempotency.engine.attempt import Attempt, Operation
from django_idempotency.exceptions import InvalidKey
from django_idempotency.fingerprint import Fingerprint, canonical_payload, version_1
from django_idempotency.leases import Lease
from django_idempotency.logs import log_refusal
from django_idempotency.policy import UNSET, merge
from django_idempotency.records import Outcome
from django_idempotency.stores.base import BaseStore

__all__ = ["arun", "attempt", "current", "derive_key", "idempotent_function", "run"]

P = ParamSpec("P")
R = TypeVar("R")

_KIND = "call"
_JSON = JSONCodec()
#: What the calls of this module take beside the fields of the policy.
_OWN = ("key", "scope", "payload", "operation", "store", "codec")


def run(
    func: Callable[[Lease], Any],
    /,
    *,
    key: str,
    scope: str,
    payload: Any = None,
    operation: str = "",
    store: str = DEFAULT_ALIAS,
    codec: Codec | None = None,
    **policy: Any,
) -> Outcome:
    """
    Call ``func(lease)`` once per key and scope, and return its outcome or the stored one.

    `payload` is what the call asks for (JSON values), `operation` what is done: the same key with
    another payload or operation raises FingerprintMismatch. Raises InvalidKey, InProgress,
    LeaseLost, ResultTooLarge, ResultUnavailable, StoreError, TransactionOpen, and what `func`
    raises, after which the key may be used again for the same payload.
    """
    if is_coroutine_function(func):
        raise TypeError("run() awaits nothing: await arun() for a coroutine function.")
    guarded = call_operation(key, scope, payload, operation, store, codec, policy, coroutine=False)
    return engine_for(store).run(guarded, func)


async def arun(
    func: Callable[[Lease], Awaitable[Any]],
    /,
    *,
    key: str,
    scope: str,
    payload: Any = None,
    operation: str = "",
    store: str = DEFAULT_ALIAS,
    codec: Codec | None = None,
    **policy: Any,
) -> Outcome:
    """Await ``func(lease)`` once per key and scope; see `run`. The default is ``separate``."""
    engine = engine_for(store)
    guarded = await engine.store.in_thread(
        functools.partial(call_operation, coroutine=True),
        key,
        scope,
        payload,
        operation,
        store,
        codec,
        policy,
    )
    return await engine.arun(guarded, func)


class attempt(AbstractContextManager["Attempt"], AbstractAsyncContextManager["Attempt"]):
    """
    Open a block that runs once: ``with attempt(key=…, scope=…) as attempt``, or ``async with``.

    Call ``attempt.complete(result)`` unless ``attempt.replayed``; it takes effect when the block
    ends. An exception rolls back and fails; a block left without ``complete`` rolls back and
    releases. Entered once: a second entry is a RuntimeError. See `run` for the arguments and for
    what is raised.
    """

    def __init__(
        self,
        *,
        key: str,
        scope: str,
        payload: Any = None,
        operation: str = "",
        store: str = DEFAULT_ALIAS,
        codec: Codec | None = None,
        **policy: Any,
    ) -> None:
        self._arguments: list[Any] = [(key, scope, payload, operation, store, codec, policy)]
        self._store = store

    def _taken(self) -> tuple[Any, ...]:
        try:
            arguments: tuple[Any, ...] = self._arguments.pop()
        except IndexError:
            raise RuntimeError("An attempt() is entered once; make a new one.") from None
        return arguments

    def __enter__(self) -> Attempt:
        engine = engine_for(self._store)
        self._block = engine.attempt(call_operation(*self._taken(), coroutine=False))
        return self._block.__enter__()

    def __exit__(self, *exc_info: Any) -> bool | None:
        return self._block.__exit__(*exc_info)

    async def __aenter__(self) -> Attempt:
        engine = engine_for(self._store)
        guarded = await engine.store.in_thread(
            functools.partial(call_operation, coroutine=True), *self._taken()
        )
        self._ablock = engine.aattempt(guarded)
        return await self._ablock.__aenter__()

    async def __aexit__(self, *exc_info: Any) -> bool | None:
        return await self._ablock.__aexit__(*exc_info)


def idempotent_function(
    *,
    key: str | Callable[..., str],
    scope: str,
    payload: Callable[..., Any] | None = UNSET,
    operation: str = "",
    store: str = DEFAULT_ALIAS,
    codec: Codec | None = None,
    **policy: Any,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """
    Make a function, or a coroutine function, run once per key.

    `key` is an argument's name, a template over the arguments (``"{tenant}#{order_id}"``, values
    escaped), or a callable over them, by name or in their order. The arguments are compared,
    unless `payload` (a callable over them, too, or None for no comparison) says otherwise; with a
    key of `contrib.events` nothing is, since receipts and delivery counts differ each time.
    `operation` is what is done, the function's qualified name by default: another one never gets
    its result, and given, it survives a rename. The decorated function returns its result, the
    stored one for a duplicate; see `run` for what it raises.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)
        signatures = [signature]
        if next(iter(signature.parameters), "") == "context":  # as Django wants to have it
            signatures.append(without_first(signature))
        key_of = key_maker(key, *signatures)
        payload_of = payload_maker(key, payload, *signatures)
        name = operation or name_of(function)

        def operation_of(args: Any, kwargs: Any, *, coroutine: bool) -> Operation:
            bound = bind(signature, args, kwargs, own_first=bool(args) and is_context(args[0]))
            return call_operation(
                key_of(bound),
                scope,
                payload_of(bound),
                name,
                store,
                codec,
                policy,
                coroutine=coroutine,
                named_before=operation,
            )

        if is_coroutine_function(function):

            @functools.wraps(function)
            async def aguarded(*args: P.args, **kwargs: P.kwargs) -> Any:
                def work(lease: Lease) -> Any:
                    return function(*args, **kwargs)

                engine = engine_for(store)
                declared = functools.partial(operation_of, coroutine=True)
                guarded = await engine.store.in_thread(declared, args, kwargs)
                return (await engine.arun(guarded, work)).result

            return aguarded  # type: ignore[return-value]

        @functools.wraps(function)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> Any:
            guarded = operation_of(args, kwargs, coroutine=False)
            return engine_for(store).run(guarded, lambda _: function(*args, **kwargs)).result

        return guarded

    return decorate


def derive_key(name: str) -> str:
    """
    Return a stable key for a downstream call of the current work; see `Lease.derive_key`.

    Raises RuntimeError outside of any idempotent work.
    """
    lease = current()
    if lease is None:
        raise RuntimeError("derive_key() belongs inside idempotent work; there is no lease here.")
    return lease.derive_key(name)


def call_operation(
    key: str,
    scope: str,
    payload: Any,
    operation: str,
    store: str,
    codec: Codec | None,
    overrides: Mapping[str, Any],
    *,
    coroutine: bool,
    named_before: str | None = None,
) -> Operation:
    """
    Return the operation of a call, guarded by the alias's policy with `overrides`.

    `named_before` is the operation that version 1 fingerprinted, where it is another one.
    """
    policy = merge(policy_for(store), overrides, beside=_OWN)
    engine_store: BaseStore = engine_for(store).store
    if not keys.is_scope(scope):
        raise TypeError("scope must be a string that says whose key it is, not empty.")
    mode = transactions.mode_for(policy, engine_store, joins=not coroutine)
    asked = canonical_payload(payload)
    before = (operation if named_before is None else named_before).encode()
    try:
        keys.check(key)
    except InvalidKey as error:
        log_refusal(store, operation, error)
        raise
    return Operation(
        record_id=keys.record_id(_KIND, scope, key),
        scope=scope,
        key=key,
        name=operation,
        fingerprint=Fingerprint.of(
            (operation.encode(), asked),
            fingerprint_secrets(policy),
            version_1=version_1((before, asked), policy.fingerprint_secrets),
        ),
        policy=policy,
        codec=codec or _JSON,
        transaction=mode,
        unstorable_ok=mode == "separate",
        wait=policy.wait if transactions.may_wait() else timedelta(0),
        rest=transactions.rest,
        caller=transactions.of_caller(engine_store),
        hooks=transactions.hooks_of_caller(),
    )
