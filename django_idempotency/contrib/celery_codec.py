"""What is kept of a task that has ended, and its results through kombu's serializers."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, ClassVar

from kombu import serialization
from kombu.exceptions import DecodeError, EncodeError

from django_idempotency.codecs import Codec, JSONCodec
from django_idempotency.exceptions import StoreError, TaskFailed

__all__ = ["Failed", "Ignored", "KombuCodec", "TaskCodec", "serializer_problem"]

#: Whatever it is called: content of this type runs code when it is read.
PICKLE = "application/x-python-serialize"
#: What kombu's serializer "raw" leaves as it is; kombu has no entry for it.
RAW = "application/data"

_JSON = JSONCodec()


def serializer_problem(name: str) -> str | None:
    """Return why results cannot go through this serializer of kombu's; None if they can."""
    known = serialization.registry.name_to_type
    if name != "raw" and name not in known:
        return f"kombu knows no serializer {name!r}."
    if known.get(name) == PICKLE:
        return f"The serializer {name!r} is pickle, which runs code when a result is read."
    return None


@dataclass(frozen=True)
class Ignored:
    """The end of a task that raised Ignore, as `Task.replace` does."""


@dataclass(frozen=True)
class Failed:
    """The end of a task whose exception is kept (``on_failed="replay"``)."""

    module: str
    name: str
    #: What the exception was made of; None where that cannot be kept.
    arguments: tuple[Any, ...] | None
    text: str

    @classmethod
    def of(cls, error: Exception) -> Failed:
        """Return what can be kept of `error`."""
        arguments: tuple[Any, ...] | None = error.args
        try:
            _JSON.encode(arguments)
        except (TypeError, ValueError):
            arguments = None
        kind = type(error)
        return cls(kind.__module__, kind.__qualname__, arguments, str(error))

    def exception(self) -> Exception:
        """Return the exception again, or TaskFailed where it cannot be made."""
        found: Any
        try:
            found = importlib.import_module(self.module)
            for name in self.name.split("."):
                found = getattr(found, name)
            # What the store says is not to be trusted further than an exception goes.
            if self.arguments is not None and issubclass(found, Exception):
                made: Exception = found(*self.arguments)
                return made
        except Exception as unmakeable:
            failed = TaskFailed(f"{self.name}: {self.text}")
            failed.__cause__ = unmakeable
            return failed
        return TaskFailed(f"{self.name}: {self.text}")


class KombuCodec:
    """
    Results through a serializer that is registered with kombu.

    What was written says in which format, so a task may change its serializer.
    """

    id: ClassVar[str] = "kombu"
    exact: ClassVar[bool] = False

    def __init__(self, serializer: str) -> None:
        self.serializer = serializer

    def encode(self, result: Any) -> bytes:
        """Return the result and its format; raise TypeError if it has no such form."""
        try:
            content_type, encoding, data = serialization.dumps(result, self.serializer)
            if not isinstance(data, (str, bytes)):
                raise TypeError(f"{type(data).__name__} is neither text nor bytes")
            serialization.loads(data, content_type, encoding, accept=[content_type])
        except (DecodeError, EncodeError, TypeError) as error:
            raise TypeError(
                f"A result of type {type(result).__name__} cannot be kept by the serializer "
                f"{self.serializer!r}: {error}"
            ) from error
        form = "text" if isinstance(data, str) else "bytes"
        head = f"{content_type}\n{encoding}\n{form}\n"
        return head.encode() + (data.encode() if isinstance(data, str) else data)

    def decode(self, payload: bytes) -> Any:
        """Return the result that `encode` wrote; raise ValueError for anything else."""
        content_type, encoding, form, data = payload.split(b"\n", 3)
        if content_type.decode() == PICKLE:
            raise ValueError("Pickle is not read.")
        if content_type.decode() not in (RAW, *serialization.registry.type_to_name):
            # kombu would hand it back as it lies there.
            raise ValueError(f"kombu knows no serializer of {content_type.decode()!r}.")
        try:
            return serialization.loads(
                data.decode() if form == b"text" else data,
                content_type.decode(),
                encoding.decode(),
                accept=[content_type.decode()],
            )
        except DecodeError as error:
            raise ValueError(str(error)) from error


class TaskCodec:
    """The end of a task: its result in `results`' form, Ignored, or Failed."""

    id: ClassVar[str] = "task"
    exact: ClassVar[bool] = False

    def __init__(self, results: Codec) -> None:
        self.results = results

    def encode(self, ending: Any) -> bytes:
        """Return `ending` as bytes; raise TypeError, naming the type, for a result without form."""
        match ending:
            case Ignored():
                return b"ignored\n"
            case Failed():
                return b"failed\n" + _JSON.encode(vars(ending))
        return b"result\n" + self.results.id.encode() + b"\n" + self.results.encode(ending)

    def decode(self, payload: bytes) -> Any:
        """Return the ending; raise StoreError for a result that another codec wrote."""
        kind, rest = payload.split(b"\n", 1)
        if kind == b"ignored":
            return Ignored()
        if kind == b"failed":
            members = _JSON.decode(rest)
            arguments = members["arguments"]
            return Failed(
                members["module"],
                members["name"],
                None if arguments is None else tuple(arguments),
                members["text"],
            )
        name, result = rest.split(b"\n", 1)
        if name != self.results.id.encode():
            raise StoreError(
                f"The stored result was written by the codec {name.decode(errors='replace')!r}, "
                f"not by {self.results.id!r}."
            )
        return self.results.decode(result)
