"""R62: the body of a stream is made after its record is completed, and the log says so."""
# mypy: ignore-errors

from __future__ import annotations

import asyncio
import io
import logging

import pytest
from asgiref.sync import sync_to_async
from django.db import connections
from django.http import FileResponse, HttpResponse, StreamingHttpResponse

from django_idempotency.http.snapshot import is_stream
from django_idempotency.models import IdempotencyRecord
from tests.unit.http.api import problem
from tests.unit.views import work
from tests.unit.views.conftest import api_of
from tests.unit.views.urls import ASYNC, FREE

pytestmark = pytest.mark.django_db(transaction=True)

SAID = "the generator of its response runs after its record is completed"
KINDS = ["function", "async-function", "class", "async-class", "above-api-view", "drf", "viewset"]
KINDS += ["free-function", "free-async-function"]


@pytest.fixture(autouse=True)
def found():
    """What the generators of the test have found; the list is empty until one is read."""
    work.found.clear()
    return work.found


@pytest.fixture
def streamed(request):
    """`streamed(kind, key)` asks a view of this kind for a stream that breaks off."""

    def ask(kind, key="key-1", then="broken_stream"):
        if kind in FREE:
            request.getfixturevalue("with_middleware")
        extra = {"asynchronous": True} if kind in ASYNC else {}
        return api_of(kind)({"name": "first", "then": then, **extra}, key=key)

    return ask


def said(caplog):
    return [it for it in caplog.records if SAID in it.getMessage()]


def read(response):
    """Read a stream to its end, as a server does."""
    if not response.is_async:
        return b"".join(response)

    async def reading():
        try:
            return b"".join([piece async for piece in response])
        finally:
            await sync_to_async(connections.close_all)()

    return asyncio.run(reading())


@pytest.mark.parametrize("kind", KINDS)
def test_R62_generator_runs_after_its_record_is_completed(streamed, found, runs, kind):
    first = streamed(kind)

    assert (first.status_code, first["Idempotency-Stored"]) == (200, "false")
    assert found == [], "nobody but the server reads a stream"
    with pytest.raises(OSError, match="broken off"):
        read(first)
    assert found == [["COMPLETED"]]
    retry = streamed(kind)
    assert problem(retry) == (409, "result_unavailable")
    assert (len(runs), len(found)) == (1, 1)


def test_R62_log_says_once_for_each_view_that_a_stream_runs_late(streamed, caplog):
    caplog.set_level(logging.WARNING, logger="django_idempotency")
    for number in range(2):
        for kind in KINDS:
            streamed(kind, f"{kind}-{number}")

    lines = said(caplog)
    assert {line.levelname for line in lines} == {"WARNING"}
    told = [line.getMessage() for line in lines]
    assert [text.partition(":")[0] for text in told] == [f"POST {kind}" for kind in KINDS]
    assert all("result_unavailable" in text for text in told)
    assert not any(f"{kind}-0" in text for kind, text in zip(KINDS, told, strict=True))
    assert IdempotencyRecord.objects.count() == 2 * len(KINDS)


@pytest.mark.parametrize(
    ("then", "key", "verdict"),
    [
        ("broken_stream", None, "keep"),
        ("created", "key-1", "keep"),
        ("broken_stream", "key-1", "release"),
    ],
    ids=["no key", "no stream", "released"],
)
def test_R62_log_says_it_of_kept_streams_alone(policy, caplog, then, key, verdict):
    policy(HTTP={"KEEP": lambda response, exception: verdict})

    assert api_of("function").then(then, key=key).status_code in (200, 201)
    assert said(caplog) == []


class Pipe(io.BytesIO):
    """A file that can be read once."""

    def seekable(self):
        return False


@pytest.mark.parametrize(
    ("response", "is_one"),
    [
        (HttpResponse(b"body"), False),
        (StreamingHttpResponse([b"body"]), True),
        (FileResponse(io.BytesIO(b"body")), False),
        (FileResponse(Pipe(b"body")), True),
        (FileResponse(iter([b"body"])), True),
    ],
    ids=["body", "stream", "file", "pipe", "generator as a file"],
)
def test_R62_stream_is_what_no_file_stands_behind(response, is_one):
    assert is_stream(response) is is_one
