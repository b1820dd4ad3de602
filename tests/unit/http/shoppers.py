"""Somebody with a browser, and something in its cart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.test import Client

__all__ = ["Overtaken", "Shopper"]


class Overtaken:
    """A middleware of the project that uses the session; meanwhile another request is served."""

    meanwhile: Callable[[], object] | None = None

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        request.session["seen"] = request.session.get("seen", 0) + 1
        meanwhile, Overtaken.meanwhile = Overtaken.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        response = self.get_response(request)
        request.session["last"] = request.path
        response["X-Cart"] = str(request.session.get("cart"))
        response["X-User"] = str(request.user)
        return response


class Shopper:
    """Keeps cookies as a browser does; may click twice with those of before the first click."""

    def __init__(self, client: Client | None = None) -> None:
        self.client = client or Client()
        self.client.raise_request_exception = False
        session = self.client.session
        session["cart"] = ["tea"]
        session.save()
        self.client.cookies["sessionid"] = session.session_key

    def post(self, url: str, key: str | None = "key-1") -> Any:
        headers = {"Idempotency-Key": key} if key else {}
        return self.client.generic("POST", url, headers=headers)

    def click(self, url: str, key: str = "key-1") -> Any:
        """Send the cookies of this moment, and leave those of the answer to `take`."""
        sent = type(self.client)(raise_request_exception=False)
        sent.cookies.load(self.client.cookies.output(header="", sep=";"))
        return sent.generic("POST", url, headers={"Idempotency-Key": key})

    def click_twice(self, url: str) -> tuple[Any, Any]:
        """Return the answers to two clicks; the second one loads its session before the first."""
        first: list[Any] = []
        Overtaken.meanwhile = lambda: first.append(self.click(url))
        second = self.click(url)
        return first[0], second

    def take(self, response: Any) -> Any:
        """Take the cookies of an answer."""
        self.client.cookies.update(response.cookies)
        return response

    @property
    def kept(self) -> dict[str, Any]:
        """What is in the session."""
        return dict(self.client.session)

    @property
    def cart(self) -> Any:
        return self.kept.get("cart")
