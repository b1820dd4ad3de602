"""Celery tasks that take effect once, however often their messages are delivered."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from inspect import BoundArguments
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, overload

from celery import Task, current_app, current_task
from celery.local import Proxy

from django_idempotency import keys
from django_idempotency.arguments import key_maker, payload_maker, without_first
from django_idempotency.callables import is_coroutine_function
from django_idempotency.codecs import Codec, check_codec
from django_idempotency.conf import DEFAULT_ALIAS
from django_idempotency.contrib.celery.codec import serializer_problem
from django_idempotency.contrib.celery.deliveries import Delivery, DuplicateTask
from django_idempotency.contrib.celery.guard import TaskGuard
from django_idempotency.contrib.celery.parents import from_parent
from django_idempotency.policy import UNSET, Policy, check_signatures, merge, suggestion

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from django_idempotency.options import PolicyOptions

__all__ = ["DuplicateTask", "from_parent", "guard_of", "idempotent_task"]

P = ParamSpec("P")
R = TypeVar("R")

Key = str | Callable[..., str] | from_parent | None

#: The parameters of the decorator that are not fields of the policy.
_OWN = (
    *("key", "scope", "payload", "operation", "store", "codec"),
    *("on_duplicate", "on_in_progress", "on_failed"),
)
_CHOICES = {
    "on_duplicate": ("result", "ignore", "raise"),
    "on_in_progress": ("retry", "ignore", "raise", "wait"),
    "on_failed": ("run", "replay"),
}


@overload
def idempotent_task(function: Callable[P, R], /) -> Callable[P, R]: ...


@overload
def idempotent_task(
    given: str | from_parent | None = None,
    /,
    *,
    key: Key = None,
    scope: str | None = None,
    payload: Callable[..., Any] | None = UNSET,
    operation: str = "",
    store: str = DEFAULT_ALIAS,
    on_duplicate: Literal["result", "ignore", "raise"] = "result",
    on_in_progress: Literal["retry", "ignore", "raise", "wait"] = "retry",
    on_failed: Literal["run", "replay"] = "run",
    codec: Codec | str | None = None,
    **policy: Unpack[PolicyOptions],
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def idempotent_task(
    given: Any = None,
    /,
    *,
    key: Key = None,
    scope: str | None = None,
    payload: Callable[..., Any] | None = UNSET,
    operation: str = "",
    store: str = DEFAULT_ALIAS,
    on_duplicate: str = "result",
    on_in_progress: str = "retry",
    on_failed: str = "run",
    codec: Codec | str | None = None,
    **policy: Unpack[PolicyOptions],
) -> Any:
    """
    Make a Celery task run once per key: the decorator below ``@shared_task`` or ``@app.task``.

    `key` is an argument's name, a template over the arguments (``"{tenant}#{order_id}"``, values
    escaped), a callable that gets the same arguments as the function, or `from_parent`. Without
    `key` it is the id of the task. `scope` and `operation` are the task's name by default, and the
    operation is compared: give both before you rename a task. By default the arguments are
    compared. `payload` is a callable over the arguments that returns what is compared instead, or
    None for no comparison. `codec` is a codec, or the name of a serializer of kombu.

    A duplicate returns the stored result (`on_duplicate`: or "ignore", "raise"). While the first
    attempt runs, a duplicate is sent again, after as long as that attempt has been running
    (`on_in_progress`: or "ignore", "raise", "wait"). A failed task runs again (`on_failed`: or
    "replay", once no retry follows). Raises TypeError or ValueError for invalid arguments.
    """
    if given is not None and not isinstance(given, (str, from_parent)):
        return idempotent_task()(given)
    if given is not None and key is not None:
        raise TypeError("idempotent_task() takes one key.")
    key = given if given is not None else key
    choices = {
        "on_duplicate": on_duplicate,
        "on_in_progress": on_in_progress,
        "on_failed": on_failed,
    }
    _check_options(choices, scope, operation, codec, policy)

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        _check_function(function)
        signature = inspect.signature(function)
        # The id of a task belongs to one message, so by default nothing is compared.
        by_id = key is None and payload is UNSET
        guard = TaskGuard(
            function=function,
            signature=signature,
            key=key,
            key_of=_key_of(key, signature),
            scope=scope,
            payload_of=payload_maker(
                key, None if by_id else payload, signature, without_first(signature)
            ),
            operation=operation,
            store=store,
            codec=codec,
            overrides=policy,
            **choices,
        )

        @functools.wraps(function)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> Any:
            task = args[0] if args and isinstance(args[0], Task) else _task_of(guard)
            return Delivery(guard, task, args, kwargs).carry_out()

        guarded.__signature__ = signature  # type: ignore[attr-defined]  # .delay() looks at it
        guarded.idempotency = guard  # type: ignore[attr-defined]
        return guarded

    return decorate


def guard_of(task: Any) -> TaskGuard | None:
    """Return how `task` is guarded; None for one that is not."""
    guard: TaskGuard | None = getattr(task.run, "idempotency", None)
    return guard


def _key_of(key: Key, signature: inspect.Signature) -> Callable[[BoundArguments, Any], str] | None:
    if key is None:
        return None
    if isinstance(key, from_parent):
        return key.maker(signature)
    make = key_maker(key, signature, without_first(signature))
    return lambda arguments, request: make(arguments)


def _task_of(guard: TaskGuard) -> Task:
    """Return the task whose body this function is: the running one, or a registered one."""
    running = current_task._get_current_object()
    if running is not None and guard_of(running) is guard:
        return running
    for task in current_app.tasks.values():
        if guard_of(task) is guard:
            return task
    raise RuntimeError(
        f"{guard.function.__qualname__} is not a Celery task: put @shared_task or @app.task above "
        f"@idempotent_task."
    )


def _check_options(
    choices: Mapping[str, str],
    scope: Any,
    operation: Any,
    codec: Codec | str | None,
    policy: Mapping[str, Any],
) -> None:
    """Raise TypeError or ValueError for arguments that no task and no store can have."""
    for name, value in choices.items():
        if value not in _CHOICES[name]:
            known = _CHOICES[name]
            raise ValueError(
                f"{name} must be one of {', '.join(known)}, not {value!r}."
                f"{suggestion(str(value), known)}"
            )
    if scope is not None and not keys.is_scope(scope):
        raise TypeError("scope must be a string that says whose key it is, not empty.")
    if not isinstance(operation, str):
        raise TypeError("operation must be a string that says what the task does.")
    if isinstance(codec, str):
        if problem := serializer_problem(codec):
            raise ValueError(problem)
    elif codec is not None:
        check_codec(codec)
    merge(Policy(), policy, beside=_OWN)
    check_signatures(policy)


def _check_function(function: Any) -> None:
    """Raise TypeError, which says what to write instead, for what cannot be a task's body."""
    if issubclass(type(function), Proxy) or isinstance(function, Task):
        raise TypeError("@idempotent_task belongs below @shared_task and @app.task, not above.")
    if inspect.isclass(function):
        raise TypeError(f"Decorate the method run of {function.__qualname__}, not the class.")
    if is_coroutine_function(function) or inspect.isasyncgenfunction(function):
        name = getattr(function, "__qualname__", type(function).__qualname__)
        raise TypeError(f"{name} is async def, which Celery does not run.")
    if not callable(function) or isinstance(function, (staticmethod, classmethod)):
        raise TypeError(f"@idempotent_task decorates functions, not {type(function).__name__}.")
