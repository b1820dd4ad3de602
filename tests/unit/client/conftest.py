"""The four clients, each as one function."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests

from django_idempotency.client import RetryPolicy
from django_idempotency.client.httpx import AsyncIdempotencyTransport, IdempotencyTransport
from django_idempotency.client.requests import IdempotencyAdapter
from tests.services.dynamodb import find_node

#: A status and a body, or None where there was no answer.
Result = tuple[int, str] | None
#: `send(url, method="POST", headers={}, body="", streamed=False, seconds=SECONDS, policy={})`
Send = Callable[..., Result]

#: For each answer. It comes from this process, which may stand still meanwhile.
SECONDS = 60.0


def by_httpx(url: str, policy: dict[str, Any], **given: Any) -> Result:
    transport = IdempotencyTransport(
        httpx.HTTPTransport(verify=False), policy=RetryPolicy(**policy)
    )
    with httpx.Client(transport=transport, timeout=given["seconds"]) as client:
        try:
            answer = client.request(url=url, **content_of(given))
        except httpx.TransportError:
            return None
        return answer.status_code, answer.text


def by_async_httpx(url: str, policy: dict[str, Any], **given: Any) -> Result:
    async def main() -> Result:
        inner = httpx.AsyncHTTPTransport(verify=False)
        transport = AsyncIdempotencyTransport(inner, policy=RetryPolicy(**policy))
        content = content_of(given)
        if given["streamed"]:
            content["content"] = apieces(given["body"])
        async with httpx.AsyncClient(transport=transport, timeout=given["seconds"]) as client:
            try:
                answer = await client.request(url=url, **content)
            except httpx.TransportError:
                return None
            return answer.status_code, answer.text

    return asyncio.run(main())


def by_requests(url: str, policy: dict[str, Any], **given: Any) -> Result:
    seconds, given = given["seconds"], content_of(given)
    with requests.Session() as session:
        session.mount("http://", IdempotencyAdapter(policy=RetryPolicy(**policy)))
        try:
            answer = session.request(
                url=url, data=given.pop("content", None), timeout=seconds, **given
            )
        except requests.RequestException:
            return None
        return answer.status_code, answer.text


@pytest.fixture(scope="session")
def by_fetch() -> Iterator[Callable[..., Result]]:
    """One process of Node for all tests."""
    script = Path(__file__).with_name("send.ts")
    command = [find_node(), "--no-warnings", "--experimental-strip-types", script]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}

    with subprocess.Popen(command, **pipes) as node:

        def send(url: str, policy: dict[str, Any], **given: Any) -> Result:
            policy = {"attemptSeconds": given.pop("seconds", SECONDS), **policy}
            given = {**given, "body": given["body"] or None, "url": url, "policy": policy}
            print(json.dumps(given), file=node.stdin)
            result = json.loads(node.stdout.readline())
            return None if result is None else (result[0], result[1])

        yield send
        node.stdin.close()


def content_of(given: dict[str, Any]) -> dict[str, Any]:
    body = given["body"].encode()
    content: Any = pieces(given["body"]) if given["streamed"] else body
    found = {name: given[name] for name in ("method", "headers")}
    return {**found, "content": content} if body else found


def pieces(body: str) -> Iterator[bytes]:
    yield from (letter.encode() for letter in body)


async def apieces(body: str) -> Any:
    for piece in pieces(body):
        yield piece


CLIENTS = {"httpx": by_httpx, "async httpx": by_async_httpx, "requests": by_requests}


@pytest.fixture(params=[*CLIENTS, "fetch"])
def send(request: pytest.FixtureRequest) -> Send:
    named = request.param
    client = CLIENTS[named] if named in CLIENTS else request.getfixturevalue("by_fetch")

    def send(url: str, **given: Any) -> Result:
        policy = {"backoff": 0.01, **given.pop("policy", {})}
        defaults = {"method": "POST", "headers": {}, "body": "", "streamed": False}
        return client(url, policy, **{**defaults, "seconds": SECONDS, **given})

    return send
