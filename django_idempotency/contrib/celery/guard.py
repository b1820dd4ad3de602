"""How a task is guarded, and what its arguments are, in a message as in a direct call."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from inspect import BoundArguments, Signature
from typing import Any

from celery import Task
from django.core.exceptions import ImproperlyConfigured

from django_idempotency.arguments import bind
from django_idempotency.codecs import Codec
from django_idempotency.conf import Declaration, Plan
from django_idempotency.contrib.celery.codec import KombuCodec, TaskCodec, serializer_problem
from django_idempotency.contrib.celery.parents import from_parent
from django_idempotency.fingerprint import canonical_payload


@dataclass(kw_only=True)
class TaskGuard(Declaration[Plan]):
    """How a task is guarded: the arguments of `idempotent_task`, and the function below it."""

    function: Callable[..., Any]
    signature: Signature
    key: str | Callable[..., str] | from_parent | None
    #: Makes the key from the bound arguments and the request; None for the id of the task.
    key_of: Callable[[BoundArguments, Any], str] | None
    scope: str | None
    #: Makes the payload to compare from the bound arguments.
    payload_of: Callable[[BoundArguments], Any]
    #: The operation; empty for the task's name.
    operation: str
    on_duplicate: str
    on_in_progress: str
    on_failed: str
    codec: Codec | str | None

    def _plan(self, alias: Plan) -> Plan:
        return alias.with_fields(self.overrides)

    def serializer(self, task: Task) -> str | None:
        """Return the name of the serializer of its results; None with a codec of its own."""
        if self.codec is None:
            return str(task.serializer)
        return self.codec if isinstance(self.codec, str) else None

    def codec_for(self, task: Task) -> TaskCodec:
        """Return the codec of its results; raise ImproperlyConfigured for pickle."""
        if self.codec is not None and not isinstance(self.codec, str):
            return TaskCodec(self.codec)
        serializer = str(self.serializer(task))
        if problem := serializer_problem(serializer):
            raise ImproperlyConfigured(f"Results of {task.name} cannot be kept: {problem}")
        return TaskCodec(KombuCodec(serializer, lambda: task.app.conf.accept_content))

    def arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> BoundArguments:
        """Return the arguments of a call, without the task itself; raise TypeError."""
        itself = bool(args) and isinstance(args[0], Task)
        return bind(self.signature, args, kwargs, own_first=itself)

    def asked(self, arguments: BoundArguments) -> bytes:
        """Return the canonical bytes of the payload (C3); raise TypeError."""
        return canonical_payload(_as_sent(self.payload_of(arguments)))


def _as_sent(value: Any) -> Any:
    """
    Return `value` with the names of members that JSON gives them: ``{1: …}`` becomes ``{"1": …}``.

    So a direct call and a message from the broker have the same payload.
    """
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, (dict, Mapping)):
        return {_name_as_sent(name): _as_sent(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_sent(item) for item in value]
    return value


def with_values(arguments: BoundArguments) -> BoundArguments:
    """Return the arguments with the values of Enums in their place, as a message has them (C1)."""
    values = {name: _rebuilt(it, _of_enum) for name, it in arguments.arguments.items()}
    return BoundArguments(arguments.signature, OrderedDict(values))


def copied(value: Any) -> Any:
    """Return a copy of `value` with new containers, of the kinds that messages have."""
    return _rebuilt(value, lambda item: set(item) if type(item) is set else item)


def _rebuilt(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return `value` in new containers, with each of the items in them changed."""
    if type(value) in (list, tuple):
        return type(value)(_rebuilt(item, change) for item in value)
    if type(value) is dict:
        return {name: _rebuilt(item, change) for name, item in value.items()}
    return change(value)


def _of_enum(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


def _name_as_sent(name: Any) -> Any:
    is_written = isinstance(name, (bool, int, float)) or name is None
    return json.dumps(name) if is_written else name
