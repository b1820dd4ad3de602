"""The public calls: what runs once, and what belongs inside of it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
)
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from asgiref.sync import sync_to_async

from django_idempotency import keys
from django_idempotency.arguments import bind, is_context, key_maker, payload_maker, without_first
from django_idempotency.callables import is_coroutine_function, name_of, signature_problem
from django_idempotency.codecs import Codec, JSONCodec, check_codec
from django_idempotency.conf import (
    DEFAULT_ALIAS,
    Declaration,
    Plan,
    fingerprint_secrets,
    stores,
)
from django_idempotency.context import current
from django_idempotency.engine.attempt import Attempt
from django_idempotency.engine.operation import OpenTransactions, Operation
from django_idempotency.exceptions import InvalidKey
from django_idempotency.fingerprint import Fingerprint, canonical_payload
from django_idempotency.leases import Lease, Uncertainty
from django_idempotency.logs import log_refusal
from django_idempotency.policy import UNSET, merge
from django_idempotency.records import Outcome

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from django_idempotency.options import PolicyOptions

__all__ = [
    "aexternal",
    "arun",
    "astep",
    "attempt",
    "current",
    "derive_key",
    "external",
    "idempotent_function",
    "run",
    "step",
]

P = ParamSpec("P")
R = TypeVar("R")

_KIND = "call"
_JSON = JSONCodec()
#: The parameters of these calls that are not fields of the policy.
_OWN = ("key", "scope", "payload", "operation", "store", "codec")


def run(
    func: Callable[[Lease], R],
    /,
    *,
    key: str,
    scope: str,
    payload: Any = None,
    operation: str = "",
    store: str = DEFAULT_ALIAS,
    codec: Codec | None = None,
    **policy: Unpack[PolicyOptions],
) -> Outcome[R]:
    """
    Call ``func(lease)`` once per key and scope, and return its outcome or the stored one.

    `payload` is what the call asks for (JSON values), and `operation` names what is done: the same
    key with another payload or operation raises FingerprintMismatch. Raises InvalidKey, InProgress,
    LeaseLost, ResultTooLarge, ResultUnavailable, StoreError, TransactionOpen and
    WorkRolledBack. Raises what `func` raises, too; the same payload may then use the key again.
    Raises UnknownField and ValueError for an unknown or invalid field of the policy.
    """
    if is_coroutine_function(func):
        raise TypeError("run() does not await: await arun() for a coroutine function.")
    plan = plan_of_call(store, policy)
    guarded = call_operation(
        plan, key, scope, payload, operation, codec, coroutine=False, label=name_of(func)
    )
    try:
        return plan.engine.run(guarded, func)
    except TypeError as error:
        _explain(error, func)
        raise


async def arun(
    func: Callable[[Lease], Awaitable[R]],
    /,
    *,
    key: str,
    scope: str,
    payload: Any = None,
    operation: str = "",
    store: str = DEFAULT_ALIAS,
    codec: Codec | None = None,
    **policy: Unpack[PolicyOptions],
) -> Outcome[R]:
    """Await ``func(lease)`` once per key and scope; see `run`. The default mode is ``separate``."""
    plan = plan_of_call(store, policy)
    guarded = await sync_to_async(call_operation)(
        plan, key, scope, payload, operation, codec, coroutine=True, label=name_of(func)
    )
    try:
        return await plan.engine.arun(guarded, func)
    except TypeError as error:
        _explain(error, func)
        raise


def _explain(error: TypeError, func: Callable[[Lease], Any]) -> None:
    """Raise an error that says what to write, if `func` cannot have been called with a lease."""
    what = "The function that runs once"
    problem = signature_problem(what, func, "lease", follow_wrapped=False)
    if problem is not None:
        raise TypeError(f"{problem} Write 'lambda lease: ...'.") from error


class attempt(AbstractContextManager["Attempt"], AbstractAsyncContextManager["Attempt"]):
    """
    Open a block that runs once: ``with attempt(key=…, scope=…) as attempt``, or ``async with``.

    Call ``attempt.complete(result)`` unless ``attempt.replayed``. The completion takes effect when
    the block ends. An exception rolls the work back and fails the record. A block that ends without
    ``complete`` rolls the work back and releases the record. A second entry raises RuntimeError.
    See `run` for the arguments and the other errors.
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
        **policy: Unpack[PolicyOptions],
    ) -> None:
        self._arguments: list[Any] = [(key, scope, payload, operation, codec)]
        self._declared = CallPlans(store, policy)

    def _taken(self) -> tuple[Any, ...]:
        try:
            arguments: tuple[Any, ...] = self._arguments.pop()
        except IndexError:
            raise RuntimeError("An attempt() is entered once; make a new one.") from None
        return arguments

    def __enter__(self) -> Attempt:
        plan = self._declared.plan()
        operation = call_operation(plan, *self._taken(), coroutine=False)
        self._block = plan.engine.attempt(operation)
        return self._block.__enter__()

    def __exit__(self, *exc_info: Any) -> bool | None:
        return self._block.__exit__(*exc_info)

    async def __aenter__(self) -> Attempt:
        plan = self._declared.plan()
        operation = await sync_to_async(call_operation)(plan, *self._taken(), coroutine=True)
        self._ablock = plan.engine.aattempt(operation)
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
    **policy: Unpack[PolicyOptions],
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """
    Make a function, or a coroutine function, run once per key.

    `key` is an argument's name, a template over the arguments (``"{tenant}#{order_id}"``, values
    escaped), or a callable that gets the same arguments as the function. By default the arguments
    are compared. `payload` is a callable over the arguments that returns what is compared instead,
    or None for no comparison. With a key of `contrib.events` the default is no comparison, because
    receipts and delivery counts differ each time. `operation` names what is done, by default the
    function's qualified name; give it before you rename the function. The decorated function
    returns its result, or the stored result for a duplicate. See `run` for the errors.
    """

    _check_names(scope, operation, codec)

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)
        signatures = [signature]
        if next(iter(signature.parameters), "") == "context":  # as Django's tasks require
            signatures.append(without_first(signature))
        key_of = key_maker(key, *signatures)
        payload_of = payload_maker(key, payload, *signatures)
        name = operation or name_of(function)

        declared = CallPlans(store, policy)

        def operation_of(plan: Plan, args: Any, kwargs: Any, *, coroutine: bool) -> Operation:
            bound = bind(signature, args, kwargs, own_first=bool(args) and is_context(args[0]))
            return call_operation(
                plan,
                key_of(bound),
                scope,
                payload_of(bound),
                name,
                codec,
                coroutine=coroutine,
            )

        if is_coroutine_function(function):

            @functools.wraps(function)
            async def aguarded(*args: P.args, **kwargs: P.kwargs) -> Any:
                def work(lease: Lease) -> Any:
                    return function(*args, **kwargs)

                plan = declared.plan()
                guarded = await sync_to_async(operation_of)(plan, args, kwargs, coroutine=True)
                return (await plan.engine.arun(guarded, work)).result

            return aguarded  # type: ignore[return-value]

        @functools.wraps(function)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> Any:
            plan = declared.plan()
            guarded = operation_of(plan, args, kwargs, coroutine=False)
            return plan.engine.run(guarded, lambda _: function(*args, **kwargs)).result

        return guarded

    return decorate


def derive_key(name: str) -> str:
    """
    Return a stable key for a downstream call of the current work; see `Lease.derive_key`.

    Raises RuntimeError outside of any idempotent work.
    """
    return _lease_for("derive_key()").derive_key(name)


def step(name: str, work: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a step of the current work once; see `Lease.step`."""
    return _lease_for("step()").step(name, work, *args, **kwargs)


async def astep(name: str, work: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a step of the current work once; see `Lease.astep`."""
    return await _lease_for("astep()").astep(name, work, *args, **kwargs)


def external(name: str, call: Callable[[str], R], /, *, uncertain: Uncertainty[R]) -> R:
    """Call another service as part of the current work; see `Lease.external`."""
    return _lease_for("external()").external(name, call, uncertain=uncertain)


async def aexternal(
    name: str,
    call: Callable[[str], Awaitable[R]],
    /,
    *,
    uncertain: Uncertainty[Awaitable[R]],
) -> R:
    """Call another service as part of the current work; see `Lease.aexternal`."""
    return await _lease_for("aexternal()").aexternal(name, call, uncertain=uncertain)


def _lease_for(word: str) -> Lease:
    lease = current()
    if lease is None:
        raise RuntimeError(
            f"{word} belongs inside idempotent work; there is no lease here. To a thread of your "
            f"own, pass the lease."
        )
    return lease


@dataclass
class CallPlans(Declaration[Plan]):
    """The fields of the policy that a call of this module overrides."""

    def _plan(self, alias: Plan) -> Plan:
        return plan_of_call(alias.alias, self.overrides)


def plan_of_call(store: str, overrides: Mapping[str, Any], *, beside: Iterable[str] = _OWN) -> Plan:
    """Return the alias's plan with the `overrides` of a call; raise UnknownField, ValueError."""
    plan = stores.configured(store)
    if not overrides:
        return plan
    return replace(plan, policy=merge(plan.policy, overrides, beside=beside))


def _check_names(scope: Any, operation: Any, codec: Any) -> None:
    """Raise TypeError for arguments that no call can have."""
    if not keys.is_scope(scope):
        raise TypeError("scope must be a string that says whose key it is, not empty.")
    if not isinstance(operation, str):
        raise TypeError(f"operation must be a string that says what is done, not {operation!r}.")
    if codec is not None:
        check_codec(codec)


def call_operation(
    plan: Plan,
    key: str,
    scope: str,
    payload: Any,
    operation: str,
    codec: Codec | None,
    *,
    coroutine: bool,
    label: str = "",
) -> Operation:
    """Return the operation of a call; `label` names its function to the log."""
    _check_names(scope, operation, codec)
    policy, open_transactions = plan.policy, OpenTransactions(plan.store)
    mode = open_transactions.mode(policy, joins=not coroutine)
    asked = canonical_payload(payload)
    try:
        keys.check(key)
    except InvalidKey as error:
        log_refusal(plan.alias, operation, error, label)
        raise
    fingerprint = Fingerprint.of((operation.encode(), asked), fingerprint_secrets(policy))
    return plan.operation(
        kind=_KIND,
        scope=scope,
        key=key,
        name=operation,
        fingerprint=fingerprint,
        codec=_JSON if codec is None else codec,
        mode=mode,
        open_transactions=open_transactions,
        wait=policy.wait,
        label=label,
    )
