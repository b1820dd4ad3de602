"""An app in memory whose messages the test itself delivers, and stores and a clock of its own."""

from __future__ import annotations

from contextvars import Context
from dataclasses import dataclass, field
from queue import Empty
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from celery import _state
from celery.app.trace import build_tracer
from celery.contrib.testing.app import TestApp, setup_default_app
from celery.signals import task_received

import django_idempotency.tasks  # noqa: F401 - what a test imports is no shared task after it
from django_idempotency.conf import store_for
from django_idempotency.testing import FakeClock

MEMORY = "django_idempotency.stores.memory.MemoryStore"
PICKLE = "application/x-python-serialize"


@dataclass(frozen=True)
class Message:
    """One message as it lies in the queue."""

    headers: dict[str, Any]
    args: list[Any]
    kwargs: dict[str, Any]
    embed: dict[str, Any]
    content_type: str = "application/json"
    exchange: str = ""
    routing_key: str = "celery"
    properties: dict[str, Any] = field(default_factory=dict)

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

    def sent(self, queue="celery"):
        """Take all messages out of the queue, first sent first."""
        found = []
        with self.app.connection_for_read() as connection:
            queue = connection.SimpleQueue(queue, no_ack=True)
            try:
                while True:
                    found.append(_message(queue.get_nowait()))
            except Empty:
                return found
            finally:
                queue.close()

    def send(self, task, *args, **kwargs):
        """Call ``task.delay`` and return the message that it sent."""
        task.delay(*args, **kwargs)
        [message] = self.sent()
        return message

    def deliver(self, message, **delivery):
        """Run the task of `message` as another worker does, and return how that ended."""
        return Context().run(self._deliver, message, **delivery)

    def _deliver(self, message, *, redelivered=False, driver="redis", limits=None, noted=True):
        task = self.app.tasks[message.headers["task"]]
        info = {"exchange": message.exchange, "routing_key": message.routing_key}
        info["redelivered"] = redelivered
        request = {**message.headers, **message.embed, "hostname": "local"}
        request["properties"] = message.properties
        request["delivery_info"] = {**info, "priority": message.properties.get("priority", 0)}
        if noted:
            received = SimpleNamespace(content_type=message.content_type, delivery_info=info)
            consumer = Mock(**{"connection.transport.driver_type": driver})
            consumer.pool.options = limits or {}
            asked = Mock(task=task, message=received, request_dict=request)
            for _, answer in task_received.send(consumer, request=asked):
                assert answer is None, answer
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


def _message(received):
    info, received.accept = received.delivery_info, {"application/json", PICKLE}
    return Message(
        received.headers,
        *received.payload,
        content_type=received.content_type,
        exchange=info["exchange"],
        routing_key=info["routing_key"],
        properties=received.properties,
    )


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
