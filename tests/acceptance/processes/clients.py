"""Clients of the tests' gunicorn, and work that goes on when a test says so."""

from __future__ import annotations

import http.client
import json
import os
import signal
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from django_idempotency.conf import engine_for
from django_idempotency.models import IdempotencyRecord
from django_idempotency.records import Record
from tests.app.models import Effect
from tests.services.gunicorn import Gunicorn
from tests.services.processes import wait_until
from tests.services.servers import HOST, Server

USER = "alice"
#: How long a test waits for what is going to happen, however busy the machine is.
SECONDS = 60.0


@dataclass(frozen=True)
class Answer:
    """An HTTP answer, read to its end."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def replayed(self) -> bool:
        return self.headers.get("Idempotency-Replayed") == "true"

    @property
    def code(self) -> str | None:
        if self.headers.get("Content-Type") != "application/problem+json":
            return None
        return str(json.loads(self.body)["code"])

    @property
    def retry_after(self) -> int:
        return int(self.headers["Retry-After"])

    @property
    def id(self) -> int:
        return int(json.loads(self.body)["id"])


def opened(
    server: Server, path: str, body: Any, *, method: str = "POST", **fields: str
) -> http.client.HTTPConnection:
    """Send a request on a connection of its own, and leave its answer unread."""
    body = json.dumps(body) if isinstance(body, dict) else body
    fields = {"Content-Type": "application/json", "Connection": "close", **fields}
    connection = http.client.HTTPConnection(HOST, server.port, timeout=2 * SECONDS)
    chunked = "Transfer-Encoding" in fields
    connection.request(method, path, body, fields, encode_chunked=chunked)
    return connection


def answer_on(connection: http.client.HTTPConnection) -> Answer:
    with closing(connection):
        response = connection.getresponse()
        return Answer(response.status, dict(response.headers), response.read())


def post(server: Gunicorn, key: str, body: Mapping[str, Any], *, skew: int = 0) -> Answer:
    """Post to the view of effects; `skew` is for skewed_wsgi."""
    fields = {"Idempotency-Key": key, "X-User": USER, "X-Skew": str(skew)}
    return answer_on(opened(server, "/effects/", body, **fields))


@dataclass(frozen=True)
class Attempt:
    """One run of the work: the process that is at it, and the files through which it is told."""

    path: Path

    @property
    def pid(self) -> int:
        return int(self.path.name.split(".")[-3])

    def go_on(self, then: str = "created") -> None:
        """Let it go on as this view of tests.app.views."""
        written = self.path.with_suffix(".writing")
        written.write_text(then)
        os.replace(written, self.path.with_suffix(".then"))


class Work:
    """Work of one key that waits to be told, seen from outside."""

    def __init__(self, directory: Path, threads: ThreadPoolExecutor, name: str = "pay") -> None:
        self.name = name
        self.body = {"name": name, "then": "told", "directory": str(directory)}
        self._directory = directory
        self._threads = threads
        self._known: list[Attempt] = []
        self._answers: list[Future[Answer]] = []

    def send(self, server: Gunicorn, **options: Any) -> Future[Answer]:
        answer = self._threads.submit(post, server, self.name, self.body, **options)
        self._answers.append(answer)
        return answer

    def post(self, server: Gunicorn, **options: Any) -> Answer:
        """Send the request and wait for the answer: it must not be one that runs the work."""
        runs = len(self.attempts)
        answer = self.send(server, **options)

        def answered() -> bool:
            if len(self.attempts) > runs:
                raise AssertionError(f"{self.name} runs where it should only be answered")
            return answer.done()

        wait_until(answered, seconds=SECONDS, what="an answer")
        return answer.result()

    @property
    def attempts(self) -> list[Attempt]:
        found = [Attempt(path) for path in self._directory.glob(f"{self.name}.*.working")]
        self._known += [attempt for attempt in found if attempt not in self._known]
        return self._known

    def begun(self, number: int = 1) -> Attempt:
        """Wait until that many runs have begun; return the last."""
        answered = len(self.answers)

        def there() -> bool:
            if len(self.attempts) < number and len(self.answers) > answered:
                raise AssertionError(f"answered without run {number}: {self.answers[answered:]}")
            return len(self.attempts) >= number

        wait_until(there, seconds=SECONDS, what=f"run {number} of {self.name}")
        assert len(self.attempts) == number
        return self.attempts[-1]

    @property
    def answers(self) -> list[Answer]:
        ended = [answer for answer in self._answers if answer.done()]
        return [answer.result() for answer in ended if answer.exception() is None]

    def run(self, server: Gunicorn, number: int, **options: Any) -> Answer:
        """Send the request, whose work is to be run number `number`, and let it go on at once."""
        answer = self.send(server, **options)
        self.begun(number).go_on()
        return answer.result(SECONDS)

    def kill(self, server: Gunicorn) -> None:
        """Send the request, and kill the very process that does its work."""
        answer = self.send(server)
        server.kill(self.begun().pid, signal.SIGKILL)
        with pytest.raises(ConnectionError):
            answer.result(SECONDS)

    @property
    def effects(self) -> int:
        return Effect.objects.filter(name=self.name).count()

    @property
    def record(self) -> Record:
        record_id = IdempotencyRecord.objects.values_list("pk", flat=True).get(key=self.name)
        record = engine_for("default").store.get(record_id)
        assert record is not None
        return record

    def lapse(self) -> None:
        """Let the lease have lapsed by the database's clock, which is ours."""
        past = datetime.now(timezone.utc) - timedelta(milliseconds=1)
        assert IdempotencyRecord.objects.filter(key=self.name).update(lease_until=past) == 1

    def lapsed(self) -> None:
        what = f"{self.name}'s lease to lapse"
        wait_until(lambda: not self.record.live, seconds=SECONDS, what=what)
