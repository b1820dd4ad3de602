"""Test clients that add a key to unsafe requests, for suites from before there were keys."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from contextvars import ContextVar
from functools import wraps
from typing import Any, Protocol, TypeVar
from unittest.mock import patch
from urllib.parse import urlencode, urlsplit
from uuid import uuid4

from django.apps import apps
from django.conf import settings
from django.test import AsyncClient, Client
from django.test.client import encode_multipart
from django.test.utils import TestContextDecorator
from django.urls import Resolver404, resolve

from django_idempotency import keys
from django_idempotency.http.inventory import guards_of
from django_idempotency.http.middleware import in_settings
from django_idempotency.policy import HTTPPolicy

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

    A form to a plain view gets the key in its field, as a browser sends it (R89), and a client
    without a session begins one, as the page with the form does.

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
        kind = str((*args, given.get("content_type"))[0])
        needs_session = False
        if (name := named.get(_field(header))) is not None and headers[name] is None:
            del headers[name]
        elif method.upper() in _SAFE_METHODS or _field(header) in known:
            pass
        elif not kind.startswith(_FORMS):
            headers[header] = new_key()
        elif _FORM_FIELD not in (body := data.encode() if isinstance(data, str) else data):
            if (policy := _policy_of_form(method, path)) is None:
                headers[header] = new_key()
            else:
                data = _hidden(policy.form_field, keys.parse(new_key()), kind) + body
                needs_session = policy.scope is None and _may_begin_session(client)

        def sent() -> Any:
            token = _keyed.set(True)
            try:
                return generic(client, method, path, data, *args, **{**given, "headers": headers})
            finally:
                _keyed.reset(token)

        if needs_session and isinstance(client, AsyncClient):
            return _with_session(client, sent)
        if needs_session:
            client.session  # noqa: B018
        return sent()

    return send


async def _with_session(client: AsyncClient, sent: Callable[[], Any]) -> Any:
    await client.asession()
    return await sent()


def _may_begin_session(client: Any) -> bool:
    return (
        isinstance(client, (Client, AsyncClient))
        and apps.is_installed("django.contrib.sessions")
        and settings.SESSION_COOKIE_NAME not in client.cookies
    )


def _policy_of_form(method: str, path: Any) -> HTTPPolicy | None:
    """Return the policy of the guard that reads a form's key from its field; None without one."""
    try:
        view: Any = resolve(urlsplit(str(path)).path).func
    except Resolver404:
        return None
    if getattr(view, "csrf_exempt", False):  # an API, of REST framework for example
        return None
    own = [guarded.plan() for guarded in guards_of(view)]
    for plan in own or (guard.declared().plan() for _, guard in in_settings()):
        if plan.form and method == "POST" and method in plan.methods:
            return plan.http_policy
    return None


def _hidden(name: str, key: str, content_type: str) -> bytes:
    """Return the beginning of a form's body, with the key in a field."""
    if not content_type.startswith("multipart"):
        return urlencode({name: key}).encode() + b"&"
    boundary = content_type.partition("boundary=")[2].strip('"')
    whole: bytes = encode_multipart(boundary, {name: key})
    return whole.removesuffix(f"--{boundary}--\r\n".encode())


def _field(name: str) -> str:
    """Return a header field's name, of what WSGI or ASGI call it."""
    return name.lower().replace("_", "-").removeprefix("http-")
