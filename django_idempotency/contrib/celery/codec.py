"""The stored ending of a task, with results in the formats of kombu's serializers."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from celery.exceptions import SoftTimeLimitExceeded, TaskPredicate
from django.core.serializers.json import DjangoJSONEncoder
from kombu import serialization
from kombu.exceptions import DecodeError, EncodeError

from django_idempotency.codecs import Codec
from django_idempotency.exceptions import IdempotencyError, StoreError

#: Content of this type runs code when it is read, whatever the serializer's name.
PICKLE = "application/x-python-serialize"
#: The content type of kombu's serializer "raw", for which kombu has no entry.
RAW = "application/data"

#: Exceptions that are not final for the work, so none is replayed.
NEVER_KEPT = (IdempotencyError, SoftTimeLimitExceeded, TaskPredicate)


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
    """The end of a task whose exception is kept (``on_failed="replay"``); see `TaskFailed`."""

    kind: str
    arguments: list[Any]

    @classmethod
    def of(cls, error: Exception) -> Failed:
        """Return what is kept of `error`: its text, where JSON has no form of its arguments."""
        kind = type(error)
        try:
            arguments = json.dumps(error.args, cls=DjangoJSONEncoder, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            arguments = json.dumps([str(error)])
        return cls(f"{kind.__module__}.{kind.__qualname__}", json.loads(arguments))

    @classmethod
    def read(cls, members: Any) -> Failed:
        """Return the ending in a record; raise ValueError for data that `of` did not make."""
        kind, arguments = members["kind"], members["arguments"]
        if not isinstance(kind, str) or not isinstance(arguments, list):
            raise ValueError("The stored exception has no class, or no arguments.")
        return cls(kind, arguments)


class KombuCodec:
    """
    Results through a serializer that is registered with kombu.

    The stored bytes name their format, so a task may change its serializer.
    """

    id = "kombu"
    exact = False

    def __init__(
        self, serializer: str, accept: Callable[[], Collection[str] | None] = lambda: ()
    ) -> None:
        self.serializer = serializer
        #: Gives other serializers whose results are read: Celery's ``accept_content``.
        self.accept = accept
        #: What `encode` has written last, and the result as it is read: handed out once, though
        #: the threads of a worker share this codec.
        self._written: deque[tuple[bytes, Any]] = deque(maxlen=1)

    def encode(self, result: Any) -> bytes:
        """Return the result and its format; raise TypeError if it has no such form."""
        try:
            content_type, encoding, data = serialization.dumps(result, self.serializer)
            if not isinstance(data, (str, bytes)):
                raise TypeError(f"{type(data).__name__} is neither text nor bytes")
            read = serialization.loads(data, content_type, encoding, accept=[content_type])
        except (DecodeError, EncodeError, TypeError) as error:
            raise TypeError(
                f"A result of type {type(result).__name__} cannot be kept by the serializer "
                f"{self.serializer!r}: {error}"
            ) from error
        form = "text" if isinstance(data, str) else "bytes"
        head = f"{content_type}\n{encoding}\n{form}\n"
        payload = head.encode() + (data.encode() if isinstance(data, str) else data)
        self._written.append((payload, read))
        return payload

    def decode(self, payload: bytes) -> Any:
        """Return the result that `encode` wrote; raise ValueError for anything else."""
        with suppress(IndexError):
            written, read = self._written.pop()
            if written == payload:  # the first caller's, read above
                return read
        *head, data = payload.split(b"\n", 3)
        content_type, encoding, form = map(bytes.decode, head)
        if not self._reads(content_type) or form not in ("text", "bytes"):
            raise ValueError(f"Results of the type {content_type!r} are not accepted.")
        if content_type == RAW and encoding not in ("binary", "utf-8"):
            raise ValueError(f"{encoding!r} is no encoding of the serializer 'raw'.")
        try:
            return serialization.loads(
                data.decode() if form == "text" else data,
                content_type,
                encoding,
                accept=[content_type],
            )
        except DecodeError as error:
            raise ValueError(str(error)) from error

    def _reads(self, content_type: str) -> bool:
        """Whether content of this type is read: the serializer's own, and accepted types (R95)."""
        known = serialization.registry.name_to_type
        own = RAW if self.serializer == "raw" else known.get(self.serializer, "")
        if content_type == PICKLE:
            return False
        if content_type == own:
            return True
        accepted = {known.get(name, name) for name in self.accept() or ()}
        return content_type in accepted and content_type in known.values()


class TaskCodec:
    """The end of a task: its result in `results`' form, Ignored, or Failed."""

    id = "task"
    exact = False

    def __init__(self, results: Codec) -> None:
        self.results = results

    def encode(self, ending: Any) -> bytes:
        """Return `ending` as bytes; raise TypeError, naming the type, for a result without form."""
        match ending:
            case Ignored():
                return b"ignored\n"
            case Failed():
                return b"failed\n" + json.dumps(vars(ending)).encode()
        return b"result\n" + self.results.id.encode() + b"\n" + self.results.encode(ending)

    def decode(self, payload: bytes) -> Any:
        """Return the ending; raise StoreError for a result that another codec wrote."""
        kind, rest = payload.split(b"\n", 1)
        if kind == b"ignored":
            return Ignored()
        if kind == b"failed":
            return Failed.read(json.loads(rest))
        if kind != b"result":
            raise ValueError("The stored ending of a task is of an unknown kind.")
        name, result = rest.split(b"\n", 1)
        if name != self.results.id.encode():
            raise StoreError(
                f"The stored result was written by the codec {name.decode(errors='replace')!r}, "
                f"not by {self.results.id!r}."
            )
        return self.results.decode(result)
