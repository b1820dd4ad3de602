"""A broker in memory whose messages the test itself delivers, once, twice, or never."""

from __future__ import annotations

import functools
import itertools
from contextvars import Context
from dataclasses import dataclass
from queue import Empty
from typing import Any

from celery.app.trace import build_tracer

from django_idempotency.contrib.celery import idempotent_task


@dataclass(frozen=True)
class Message:
    """One message as it lies in the queue."""

    headers: dict[str, Any]
    args: list[Any]
    kwargs: dict[str, Any]
    embed: dict[str, Any]
    priority: int | None = None

    @property
    def id(self):
        return str(self.headers["id"])


@dataclass(frozen=True)
class Done:
    """How a delivery ended: the task's state, and its result or exception."""

    state: str
    value: Any


def counting(app, shape, name="charge", bind=False, **guard):
    """A guarded task with the arguments of `shape`, which it calls; the number of its run."""
    runs = itertools.count(1)

    @functools.wraps(shape)
    def body(*args, **kwargs):
        shape(*args, **kwargs)
        return next(runs)

    body.__name__ = name
    return app.task(idempotent_task(**guard)(body), name=name, bind=bind)


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
        delivery = {"exchange": "", "routing_key": "celery", "priority": 0}
        request = {**message.headers, **message.embed, "hostname": "local"}
        request["delivery_info"] = delivery
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
