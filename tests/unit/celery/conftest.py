"""An app in memory whose messages the test itself delivers, and stores and a clock of its own."""

from __future__ import annotations

from contextvars import Context
from dataclasses import dataclass
from queue import Empty
from typing import Any

import pytest
from celery import _state
from celery.app.trace import build_tracer
from celery.contrib.testing.app import TestApp, setup_default_app

from django_idempotency.conf import store_for
from django_idempotency.testing import FakeClock

MEMORY = "django_idempotency.stores.memory.MemoryStore"


@dataclass(frozen=True)
class Message:
    """One message as it lies in the queue."""

    headers: dict[str, Any]
    args: list[Any]
    kwargs: dict[str, Any]
    embed: dict[str, Any]

    @property
    def id(self):
        return str(self.headers["id"])


@dataclass(frozen=True)
class Done:
    """How a delivery ended: the task's state, and its result or exception."""

    state: str
    value: Any


class Local:
    """An app, its tasks, and the messages that they send; nothing runs until it is delivered."""

    def __init__(self, app):
        self.app = app

    def sent(self):
        """Take all messages out of the queue, first sent first."""
        found = []
        with self.app.connection_for_read() as connection:
            queue = connection.SimpleQueue("celery", no_ack=True)
            try:
                while True:
                    message = queue.get_nowait()
                    found.append(Message(message.headers, *message.payload))
            except Empty:
                return found
            finally:
                queue.close()

    def send(self, task, *args, **kwargs):
        """Call ``task.delay`` and return the message that it sent."""
        task.delay(*args, **kwargs)
        [message] = self.sent()
        return message

    def deliver(self, message):
        """Run the task of `message` as another worker does, and return how that ended."""
        return Context().run(self._deliver, message)

    def _deliver(self, message):
        task = self.app.tasks[message.headers["task"]]
        request = {**message.headers, **message.embed, "hostname": "local"}
        request["delivery_info"] = {"exchange": "", "routing_key": "celery", "priority": 0}
        tracer = build_tracer(task.name, task, app=self.app)
        traced = tracer(message.id, message.args, message.kwargs, request)
        if traced.info is None:
            return Done("SUCCESS", traced.retval)
        return Done(traced.info.state, traced.info.retval)

    def deliver_all(self):
        """Deliver what is sent, and what that sends, until nothing is left; whatever its time."""
        done = []
        while messages := self.sent():
            done += [self.deliver(message) for message in messages]
            assert len(done) <= 50, "it goes on and on"
        return done


@pytest.fixture
def local(monkeypatch):
    """An app of this test alone, whose messages the test delivers."""
    # As before when the test is over: the checks look at the tasks of the app that is current.
    monkeypatch.setattr(_state, "default_app", None)
    monkeypatch.setattr(_state._tls, "current_app", None)
    app = TestApp("rules", config={"result_backend": "cache+memory://"})
    with setup_default_app(app):
        monkeypatch.setattr(_state, "_on_app_finalizers", set())  # no shared tasks of others
        app.set_current()
        found = Local(app)
        found.sent()  # what another test left: there is one memory in a process
        yield found


@pytest.fixture
def app(local):
    return local.app


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def memory(settings, clock):
    """The default alias is a memory store whose time is `clock`."""
    options = {"BACKEND": MEMORY, "LEASE": 90, "OPTIONS": {"clock": clock}}
    settings.IDEMPOTENCY = {"default": options}
    return store_for()


@pytest.fixture
def state(memory):
    """The state of the only record."""
    return lambda: next(str(record.state) for [record] in [memory._records.values()])
