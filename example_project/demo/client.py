"""Clients of the shop, in the standard library alone."""

from __future__ import annotations

import base64
import html
import http.client
import json
import re
from dataclasses import dataclass
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import urlencode


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def replayed(self) -> bool:
        return self.headers.get("Idempotency-Replayed") == "true"

    @property
    def code(self) -> str | None:
        """The ``code`` of a problem."""
        if "json" not in self.headers.get("Content-Type", ""):
            return None
        members = self.json
        return members.get("code") if isinstance(members, dict) else None

    @property
    def retry_after(self) -> int:
        return int(self.headers.get("Retry-After", "0"))

    def __str__(self) -> str:
        words = [str(self.status), http.client.responses.get(self.status, "")]
        if self.code:
            words.append(self.code)
        if self.replayed:
            words.append("(Idempotency-Replayed: true)")
        if self.retry_after:
            words.append(f"(Retry-After: {self.retry_after})")
        return " ".join(words)


class Client:
    """One user's requests; each on a connection of its own."""

    def __init__(self, port: int, user: str = "", password: str = "", timeout: float = 30) -> None:
        self._port = port
        self._timeout = timeout
        self._headers = {}
        if user:
            credentials = base64.b64encode(f"{user}:{password}".encode()).decode()
            self._headers["Authorization"] = f"Basic {credentials}"

    def get(self, path: str) -> Answer:
        return self._send("GET", path, None, {})

    def post(self, path: str, payload: dict[str, Any], key: str | None = None) -> Answer:
        headers = {"Content-Type": "application/json"}
        if key is not None:
            headers["Idempotency-Key"] = f'"{key}"'
        return self._send("POST", path, json.dumps(payload).encode(), headers)

    def _send(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=self._timeout)
        try:
            connection.request(method, path, body, {**self._headers, **headers})
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read())
        finally:
            connection.close()


class Browser(Client):
    """A visitor: keeps cookies, sends forms, and leaves it to the story to follow a redirect."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self._headers["Accept"] = "text/html"

    def open(self, path: str) -> Answer:
        """Return a page; its cookies are sent from now on."""
        answer = self.get(path)
        cookies = SimpleCookie(self._headers.get("Cookie", ""))
        for line in answer.headers.get_all("Set-Cookie", []):
            cookies.load(line)
        self._headers["Cookie"] = "; ".join(f"{c.key}={c.value}" for c in cookies.values())
        return answer

    def click(self, path: str, form: dict[str, str]) -> Answer:
        """Send a form."""
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        return self._send("POST", path, urlencode(form).encode(), headers)


def hidden_fields(page: Answer) -> dict[str, str]:
    """Return what a page's form sends without being seen."""
    found = re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)">', page.body.decode())
    return {name: html.unescape(value) for name, value in found}
