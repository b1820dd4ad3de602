"""A client's side of the tests: JSON requests with a user and a key."""

from __future__ import annotations

import json
from typing import Any

from django.http.response import HttpResponseBase
from django.test import Client

__all__ = ["Api", "bare_body", "problem", "replayed"]


class Api:
    """``api({"name": "a"}, key="k")`` is a POST by alice; each argument can be another."""

    def __init__(self) -> None:
        #: Set raise_request_exception to False where a 500 is meant.
        self.client = Client()
        #: What a request has unless the test says otherwise.
        self.path = "/effects/"
        self.key = "key-1"
        self.name = "first"

    def __call__(
        self,
        body: Any = None,
        *,
        key: Any = ...,
        user: str | None = "alice",
        path: str | None = None,
        method: str = "POST",
        content_type: str = "application/json",
        headers: dict[str, str] | None = None,
    ) -> Any:
        """Send the request; a body that is no text or bytes is sent as JSON."""
        key = self.key if key is ... else key
        given = {"Idempotency-Key": key, "X-User": user, **(headers or {})}
        if body is None:
            body = {"name": self.name}
        return self.client.generic(
            method,
            path or self.path,
            body if isinstance(body, (str, bytes)) else json.dumps(body),
            content_type=content_type,
            headers={name: value for name, value in given.items() if value is not None},
        )

    def then(self, then: str, **arguments: Any) -> Any:
        """Let the view do `then`; ``status=`` is what it is to answer with, if it asks."""
        body = {"name": self.name, "then": then}
        if "status" in arguments:
            body["status"] = arguments.pop("status")
        return self(body, **arguments)


def replayed(response: HttpResponseBase) -> bool:
    """Whether the response says that it is a replay."""
    return response.headers.get("Idempotency-Replayed") == "true"


def problem(response: Any) -> tuple[int, str]:
    """Return status and code of a problem; it fails for any other response."""
    assert response.headers["Content-Type"] == "application/problem+json", response
    members = json.loads(response.content)
    assert members["status"] == response.status_code
    return response.status_code, members["code"]


def bare_body(response: Any) -> bytes:
    """Return the body of a response, be it a stream or not."""
    return b"".join(response) if response.streaming else response.content
