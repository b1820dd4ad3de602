"""Fixtures of plain views: policies, clients that send any body, visitors with a browser."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connections
from django.test import Client

from django_idempotency.engine import backoff as waiting
from tests.app.models import Effect
from tests.unit.http.conftest import in_progress, policy
from tests.unit.views.conftest import the_gate, waited
from tests.unit.views.work import Gate

__all__ = ["Part", "Send", "in_progress", "multipart", "policy", "the_gate", "waited"]

#: Name, file name, type, content.
Part = tuple[str, str | None, str | None, bytes]
#: ``send(body, path=…, key=…)``: see the fixture.
Send = Callable[..., Any]


def multipart(*parts: Part, boundary: str = "boundary") -> tuple[bytes, str]:
    """Return body and content type of a form with uploads."""
    body = io.BytesIO()
    for name, filename, kind, content in parts:
        body.write(f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"'.encode())
        if filename is not None:
            body.write(f'; filename="{filename}"'.encode())
        if kind is not None:
            body.write(f"\r\nContent-Type: {kind}".encode())
        body.write(b"\r\n\r\n" + content + b"\r\n")
    body.write(f"--{boundary}--\r\n".encode())
    return body.getvalue(), f"multipart/form-data; boundary={boundary}"


@pytest.fixture
def send() -> Send:
    """``send(body, path="/receive/")`` is a POST with a key; what is no text is sent as JSON."""
    client = Client()

    def post(
        body: Any = b"",
        *,
        path: str = "/receive/",
        key: str = "key-1",
        method: str = "POST",
        content_type: str = "application/json",
        **headers: str,
    ) -> Any:
        data = body if isinstance(body, (str, bytes)) else json.dumps(body)
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        # The test client leaves the type of an empty body out.
        given |= {"Idempotency-Key": key, "Content-Type": content_type}
        return client.generic(method, path, data, content_type, headers=given)

    return post


class Visitor:
    """Somebody with a browser: cookies, CSRF tokens, and a form that he may submit twice."""

    def __init__(self, threads: ThreadPoolExecutor) -> None:
        #: Where the page with the form is.
        self.path = "/order/"
        self.client = Client(enforce_csrf_checks=True)
        self._threads = threads

    def page(self) -> dict[str, str]:
        """Open the page; return its hidden fields."""
        response = self.client.get(self.path)
        assert response.status_code == 200
        found = re.findall(
            r'<input type="hidden" name="([^"]+)" value="([^"]+)">', response.content.decode()
        )
        return dict(found)

    def submit(self, fields: dict[str, str], **headers: str) -> Any:
        """Submit the form with the cookies that the browser has at this moment."""
        client = Client(enforce_csrf_checks=True)
        client.cookies.load(self.client.cookies.output(header="", sep=";"))
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        return client.post(self.path, fields, headers={"Accept": "text/html", **given})

    def click(self, fields: dict[str, str], **headers: str) -> Future[Any]:
        """Submit the form from a thread: the answer to come."""

        def submitting() -> Any:
            try:
                return self.submit(fields, **headers)
            finally:
                connections.close_all()

        return self._threads.submit(submitting)


@pytest.fixture
def visitor(settings: Any) -> Iterator[Visitor]:
    """A visitor who is not logged in, in a project that checks CSRF tokens."""
    settings.MIDDLEWARE = [
        *settings.MIDDLEWARE[:2],
        "django.middleware.csrf.CsrfViewMiddleware",
        *settings.MIDDLEWARE[2:],
    ]
    with ThreadPoolExecutor(4, thread_name_prefix="test-visitor") as threads:
        yield Visitor(threads)


def orders() -> list[str]:
    """The items of all orders there are."""
    return list(Effect.objects.order_by("pk").values_list("name", flat=True))


@pytest.fixture
def looked_twice(monkeypatch: pytest.MonkeyPatch, gate: Gate) -> None:
    """A second click, once it has found the first one at work, opens the gate."""
    wait = waiting.Patience.next

    def told(patience: waiting.Patience) -> float:
        gate.open.set()
        return wait(patience)

    monkeypatch.setattr(waiting.Patience, "next", told)


def taken(fields: dict[str, str]) -> dict[str, str]:
    """What of the fields stays when somebody opens the page anew."""
    return {name: fields[name] for name in ("item", "idempotency_key")}
