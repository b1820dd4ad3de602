"""An assertion for projects: a request that is sent twice takes effect once."""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar, overload
from uuid import uuid4

__all__ = ["assert_idempotent"]

Response = TypeVar("Response")

_SHOWN = 300
#: Header fields that must be equal in a replay, whatever middleware adds to both answers (R30).
_COMPARED = frozenset(
    {
        "content-disposition",
        "content-encoding",
        "content-language",
        "content-location",
        "content-type",
        "etag",
        "last-modified",
        "link",
        "location",
        "vary",
    }
)


@overload
def assert_idempotent(
    send: Callable[..., Awaitable[Response]],
    *args: Any,
    key: str | None = None,
    header: str = "Idempotency-Key",
    replay_header: str = "Idempotency-Replayed",
    **kwargs: Any,
) -> Coroutine[Any, Any, Response]: ...


@overload
def assert_idempotent(
    send: Callable[..., Response],
    *args: Any,
    key: str | None = None,
    header: str = "Idempotency-Key",
    replay_header: str = "Idempotency-Replayed",
    **kwargs: Any,
) -> Response: ...


def assert_idempotent(
    send: Callable[..., Any],
    *args: Any,
    key: str | None = None,
    header: str = "Idempotency-Key",
    replay_header: str = "Idempotency-Replayed",
    **kwargs: Any,
) -> Any:
    """
    Send a request twice with one key; return the first answer if the second is a replay of it.

    ``assert_idempotent(client.post, "/payments/", data)``: `send` is a method of Django's or DRF's
    test client, and the other arguments are for it. With the async client, await the call. The key
    is drawn unless it is given. Raises AssertionError, which says how the answers differ: in the
    status, a kept header field (R30) or the body, or because the second is not a replay.
    """
    key = str(uuid4()) if key is None else key
    kwargs["headers"] = {**(kwargs.get("headers") or {}), header: key}
    first = send(*args, **kwargs)
    if inspect.isawaitable(first):
        return _awaited(first, lambda: send(*args, **kwargs), replay_header)
    _compare(first, send(*args, **kwargs), replay_header)
    return first


async def _awaited(
    first: Awaitable[Any], send_again: Callable[[], Awaitable[Any]], replay_header: str
) -> Any:
    answer = await first
    _compare(answer, await send_again(), replay_header)
    return answer


def _compare(first: Any, again: Any, replay_header: str) -> None:
    """Raise AssertionError unless `again` is the replay of `first`."""
    statuses = f"The first answer was {_said(first)}, the second {_said(again)}."
    if first.headers.get(replay_header) == "true":
        raise AssertionError(f"The first answer is a replay: this key was used before. {statuses}")
    if again.headers.get(replay_header) != "true":
        raise AssertionError(
            f"The second answer is no replay: it lacks '{replay_header}: true'. {statuses} Is the "
            f"view guarded, and is an answer like the first one kept?"
        )
    if again.status_code != first.status_code:
        raise AssertionError(f"The replay has another status. {statuses}")
    headers, replayed = _compared_headers(first), _compared_headers(again)
    for name in sorted(headers.keys() | replayed.keys()):
        if headers.get(name) != replayed.get(name):
            raise AssertionError(
                f"The replay has another {name}: {replayed.get(name)!r} after "
                f"{headers.get(name)!r}."
            )
    body, replay = first.getvalue(), again.getvalue()
    if replay != body:
        raise AssertionError(
            f"The replay has another body: {_shortened(replay)} after {_shortened(body)}."
        )


def _compared_headers(response: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in response.items() if name.lower() in _COMPARED}


def _said(response: Any) -> str:
    """Return the status of an answer, with the code of a problem."""
    try:
        problem = json.loads(response.getvalue())
    except ValueError:
        problem = None
    code = problem.get("code") if isinstance(problem, dict) else None
    return f"{response.status_code} ({code})" if code else str(response.status_code)


def _shortened(body: bytes) -> str:
    return repr(body if len(body) <= _SHOWN else body[:_SHOWN] + b"...")
