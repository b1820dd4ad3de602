"""Test clients that add a key to unsafe requests, for suites from before there were keys."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from contextvars import ContextVar
from functools import wraps
from typing import Any, Protocol, TypeVar
from unittest.mock import patch
from uuid import uuid4

from django.test import AsyncClient, Client
from django.test.utils import TestContextDecorator

__all__ = ["keyed_client", "keyed_clients"]


class _TestClient(Protocol):
    """What the test clients of Django and DRF share: their stubs have no base of all of them."""

    @property
    def generic(self) -> Callable[..., Any]: ...


C = TypeVar("C", bound=_TestClient | type[_TestClient])

_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
#: The field of a form's own key, by its default name (R89).
_FORM_FIELD = b"idempotency_key"
_FORMS = ("multipart/form-data", "application/x-www-form-urlencoded")
#: Set within a keyed call: a client that is keyed twice draws one key.
_keyed: ContextVar[bool] = ContextVar("django_idempotency_keyed", default=False)


def _new_key() -> str:
    return f'"{uuid4()}"'


def keyed_client(
    client: C, *, header: str = "Idempotency-Key", new_key: Callable[[], str] = _new_key
) -> C:
    """
    Let a test client, of Django or DRF, add a new key to each unsafe request without one.

    A class gives a subclass: ``client_class = keyed_client(APIClient)``. A client is changed, and
    returned. A request with ``headers={"Idempotency-Key": None}`` is sent without a key.
    """
    if not hasattr(client, "generic"):  # such as DRF's RequestsClient
        raise TypeError(f"keyed_client takes a test client with a method generic(), not {client}.")
    if isinstance(client, type):
        generic = _with_keys(client.generic, header, new_key)
        return type(client.__name__, (client,), {"generic": generic})  # type: ignore[return-value]
    generic = _with_keys(type(client).generic, header, new_key)
    setattr(client, "generic", generic.__get__(client))  # noqa: B010
    return client


class keyed_clients(TestContextDecorator):
    """
    Do the same for all test clients, in a block, a function, a test or a class of tests.

    Tests and functions may be coroutines.
    """

    def __init__(
        self, *, header: str = "Idempotency-Key", new_key: Callable[[], str] = _new_key
    ) -> None:
        super().__init__()
        self._with_keys = header, new_key

    def enable(self) -> None:
        """Let the clients add keys."""
        self._patches = ExitStack()
        # The requests of APIClient come through Client, too.
        for client in (Client, AsyncClient):
            generic = _with_keys(client.generic, *self._with_keys)
            self._patches.enter_context(patch.object(client, "generic", generic))

    def disable(self) -> None:
        """Let them be as before."""
        self._patches.close()


def _with_keys(generic: Any, header: str, new_key: Callable[[], str]) -> Any:
    """Return `generic`, through which a client sends all requests, with keys."""

    @wraps(generic)
    def send(client: Any, method: str, path: Any, data: Any = "", *args: Any, **given: Any) -> Any:
        if _keyed.get():
            return generic(client, method, path, data, *args, **given)
        headers = dict(given.get("headers") or {})
        named = {_field(name): name for name in headers}
        known = {*named, *map(_field, client.defaults), *map(_field, given)}
        if (name := named.get(_field(header))) is not None and headers[name] is None:
            del headers[name]
        elif (
            method.upper() not in _SAFE_METHODS
            and _field(header) not in known
            and not _has_form_field(data, *args, **given)
        ):
            headers[header] = new_key()
        token = _keyed.set(True)
        try:
            return generic(client, method, path, data, *args, **{**given, "headers": headers})
        finally:
            _keyed.reset(token)

    return send


def _has_form_field(
    data: Any, content_type: str | None = "application/octet-stream", *args: Any, **given: Any
) -> bool:
    """Return whether the body is a form with a key of its own; a member of JSON is none."""
    is_form = str(content_type).startswith(_FORMS)
    return is_form and _FORM_FIELD in (data.encode() if isinstance(data, str) else data)


def _field(name: str) -> str:
    """Return a header field's name, of what WSGI or ASGI call it."""
    return name.lower().replace("_", "-").removeprefix("http-")
