"""Fixtures of plain views: policies, clients that send any body, visitors with a browser."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.contrib.auth.models import User
from django.db import connections
from django.test import Client

from django_idempotency.engine import waiting
from tests.app.models import Effect
from tests.unit.http.conftest import in_progress, policy
from tests.unit.views.conftest import the_gate, waited

__all__ = ["in_progress", "multipart", "policy", "the_gate", "waited"]

FORM = "application/x-www-form-urlencoded"
#: Name, file name, type, content.
Part = tuple[str, "str | None", "str | None", bytes]


def multipart(*parts: Part, boundary: str = "boundary") -> tuple[bytes, str]:
    """Return body and content type of a form with uploads."""
    body = b""
    for name, filename, kind, content in parts:
        body += f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"'.encode()
        body += b"" if filename is None else f'; filename="{filename}"'.encode()
        body += b"" if kind is None else f"\r\nContent-Type: {kind}".encode()
        body += b"\r\n\r\n" + content + b"\r\n"
    return body + f"--{boundary}--\r\n".encode(), f"multipart/form-data; boundary={boundary}"


class Visitor:
    """Somebody with a browser: cookies, CSRF tokens, and a form that he may submit twice."""

    #: Where the page with the form is.
    path = "/order/"

    def __init__(self, threads):
        self.client = Client(enforce_csrf_checks=True)
        self._threads = threads

    def page(self) -> dict[str, str]:
        """Open the page; return its hidden fields, with an order."""
        response = self.client.get(self.path)
        assert response.status_code == 200
        found = re.findall(r'<input type="hidden" name="(.+?)" value="(.+?)">', response.text)
        return {**dict(found), "item": "tea"}

    def submit(self, fields: dict[str, str], **headers: str):
        """Submit the form with the cookies that the browser has at this moment."""
        client = Client(enforce_csrf_checks=True)
        client.cookies.load(self.client.cookies.output(header="", sep=";"))
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        return client.post(self.path, fields, headers={"Accept": "text/html", **given})

    def click(self, fields: dict[str, str]):
        """Submit the form from a thread: the answer to come."""

        def submitting():
            try:
                return self.submit(fields)
            finally:
                connections.close_all()

        return self._threads.submit(submitting)

    def log_in(self, name: str = "alice"):
        self.client.force_login(User.objects.get_or_create(username=name)[0])


@pytest.fixture
def visitor(settings):
    """A visitor who is not logged in, in a project that checks CSRF tokens."""
    csrf = "django.middleware.csrf.CsrfViewMiddleware"
    settings.MIDDLEWARE = [*settings.MIDDLEWARE[:2], csrf, *settings.MIDDLEWARE[2:]]
    with ThreadPoolExecutor(4, thread_name_prefix="test-visitor") as threads:
        yield Visitor(threads)


def orders() -> list[str]:
    """Return the items of all orders there are."""
    return list(Effect.objects.order_by("pk").values_list("name", flat=True))


@pytest.fixture
def looked_twice(monkeypatch, gate):
    """A second click, once it has found the first one at work, opens the gate."""
    goes_on = waiting.Waiter.goes_on

    def told(waiter, met):
        gate.open.set()
        return goes_on(waiter, met)

    monkeypatch.setattr(waiting.Waiter, "goes_on", told)
