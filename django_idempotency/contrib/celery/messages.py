"""The message of a delivery: how long it may stay with its task, and how it is sent again."""

from __future__ import annotations

import re
import time
from contextlib import AbstractContextManager
from datetime import datetime, timezone
from typing import Any

from celery import Celery, Signature, Task, _state
from celery.app.task import Context
from celery.signals import task_received
from celery.utils.time import maybe_iso8601, maybe_make_aware
from kombu.entity import Exchange, Queue
from kombu.pools import producers
from kombu.serialization import registry

#: Celery's own tasks that call a task for each of many arguments; `.chunks()` sends such, too.
_MAPS = ("celery.map", "celery.starmap")
#: The name under which a worker notes in a message's properties what Celery tells no task.
NOTE = "idempotency"
#: Of the properties, those that a message keeps. SQS drops a second message that has the
#: MessageDeduplicationId of the first, and RabbitMQ refuses the user_id of another.
_KEPT = ("app_id", "correlation_id", "delivery_mode", "message_id", "MessageGroupId", "type")
#: The beginnings of the headers that kombu and brokers write themselves, for each delivery.
_NOT_KEPT = (
    *("compression", "redelivered", "x-acquired-count", "x-delivery-count"),
    *("x-death", "x-first-death", "x-last-death"),
)
#: In front of the routing key of a message that RabbitMQ has delayed for Celery.
_DELAY = re.compile(r"(?:[01]\.){28}")
#: In the binding of a topic exchange: one word, and any number of them; each behind its dot.
_WILDCARDS = {"*": r"\.[^.]*", "#": r"(?:\.[^.]*)*"}


class UnknownMessage(Exception):
    """A message cannot be sent again as it was sent: a part of it is not known."""


def note_message(sender: Any, request: Any, **kwargs: Any) -> None:
    """Note of a guarded task's message, in the worker's main process, what the task must know."""
    if not hasattr(request.task.run, "idempotency") and request.task.name not in _MAPS:
        return
    driver, limits = sender.connection.transport.driver_type, sender.pool.options
    request.request_dict["properties"] = {
        **(request.request_dict.get("properties") or {}),
        NOTE: {
            "content_type": request.message.content_type,
            "driver": driver,
            "first": _is_first(request.message.delivery_info, driver),
            "limits": [limits.get("timeout"), limits.get("soft_timeout")],
        },
    }


task_received.connect(note_message, dispatch_uid="django_idempotency.message", weak=False)


def _is_first(delivery_info: dict[str, Any], driver: str) -> bool:
    """Whether the broker says that it has never delivered this message before."""
    if driver in ("amqp", "redis"):
        return not delivery_info.get("redelivered")
    received = delivery_info.get("sqs_message", {}).get("Attributes", {})
    return bool(received.get("ApproximateReceiveCount") == "1")


def is_first_delivery(request: Context) -> bool:
    """Whether the broker says that it delivers the message for the first time."""
    return bool(_note(request).get("first"))


def mapping_task(task: Task) -> Task | None:
    """
    Return Celery's own task that calls this one for each of many arguments; None if none does.

    It must be a worker's delivery: eagerly, and in a direct call, nothing is lost by an error.
    """
    around = _state._task_stack.stack[-2:-1]
    if not (around and around[0].name in _MAPS):
        return None
    request = around[0].request
    return None if request.called_directly or request.is_eager else around[0]


def seconds_to_stay(task: Task, started: float) -> float:
    """
    Return for how many seconds a message may still stay with its task before the work begins.

    The work needs the other half of the task's shortest time limit, which began when it `started`,
    and a message that expires must not run.
    """
    request = task.request
    hard, soft = request.timelimit or (None, None)
    most_hard, most_soft = _note(request).get("limits", (None, None))
    limits = (hard or task.time_limit or most_hard, soft or task.soft_time_limit or most_soft)
    passed = time.monotonic() - started
    seconds = [limit / 2 - passed for limit in limits if limit]
    if request.expires is not None:
        expires = maybe_make_aware(maybe_iso8601(request.expires), task.app.timezone)
        seconds.append((expires - datetime.now(timezone.utc)).total_seconds())
    return max(min(seconds, default=float("inf")), 0)


def send_again(task: Task, countdown: float) -> Signature:
    """
    Send the message of the running task to its queue again, as it was; return what was sent.

    Raises UnknownMessage for a message of which a part is not known, and what kombu raises.
    """
    request = task.request
    serializer = registry.type_to_name.get(_note(request).get("content_type"))
    if serializer is None:
        raise UnknownMessage(f"The serializer of the message of {task.name} is not known.")
    info, properties = request.delivery_info, request.properties
    kept = {name: properties[name] for name in _KEPT if properties.get(name) is not None}
    signature = task.signature_from_request(
        request,
        countdown=countdown,
        serializer=serializer,
        compression=request.get("compression"),
        # Celery describes the arguments anew, and makes a task the parent of what it sends.
        argsrepr=request.get("argsrepr"),
        kwargsrepr=request.get("kwargsrepr"),
        headers={
            **{
                name: value
                for name, value in (request.headers or {}).items()
                if not name.startswith(_NOT_KEPT)
            },
            "parent_id": request.parent_id,
        },
        **_destination(task.app, info.get("exchange"), info.get("routing_key")),
        **kept,
    )
    # Bypasses the task's own `apply_async`: one that drops messages would lose this one, which was
    # sent already.
    with _producer(task.app, _note(request)["driver"]) as producer:
        Task.apply_async(
            task, signature.args, signature.kwargs, producer=producer, **signature.options
        )
    return signature


def _producer(app: Celery, driver: str) -> AbstractContextManager[Any]:
    """Return a producer of which RabbitMQ confirms what it takes: the delivery ends after that."""
    producer: AbstractContextManager[Any]
    if driver != "amqp":
        producer = app.producer_or_acquire()
        return producer
    connection = app.connection_for_write()
    connection.transport_options = {**connection.transport_options, "confirm_publish": True}
    producer = producers[connection].acquire(block=True)
    return producer


def _note(request: Context) -> dict[str, Any]:
    noted: dict[str, Any] = request.properties.get(NOTE, {})
    return noted


def _destination(app: Celery, exchange: str | None, routing_key: str | None) -> dict[str, Any]:
    """Return the options that bring a message to the one queue that it was delivered from."""
    if not routing_key:
        raise UnknownMessage("The routing key of a message is not known.")
    if exchange == "":
        return _by_name(routing_key)
    key = _DELAY.sub("", routing_key, count=1)
    found = [
        queue
        for queue in app.amqp.queues.values()
        if any(
            _is_routed(bound.type, binding, key)
            for bound, binding in (
                (queue.exchange, queue.routing_key),  # the app gives it one if it has none
                *((it.exchange, it.routing_key) for it in queue.bindings),
            )
            # A delayed message has lost the name of its exchange.
            if (bound.type == "topic" if key != routing_key else bound.name == exchange)
        )
    ]
    if len(found) != 1:
        raise UnknownMessage(
            f"Of {len(found)} queues that {routing_key!r} of {exchange!r} leads to, the message "
            f"came from one."
        )
    [queue] = found
    quorum = (queue.queue_arguments or {}).get("x-queue-type") == "quorum"
    if quorum and queue.exchange.type == "topic" and not set("*#") & set(queue.routing_key):
        # Through its exchange, so that RabbitMQ delays it: a quorum queue has no other way in which
        # a message that waits for its time holds no slot of a worker.
        return {
            "queue": queue,
            "exchange": queue.exchange.name,
            "routing_key": queue.routing_key,
        }
    return _by_name(queue.name)


def _by_name(name: str) -> dict[str, Any]:
    """Return the options that lead to this queue alone, whatever the routes of the project say."""
    queue = Queue(name, Exchange("", type="direct"), routing_key=name)
    return {
        "queue": queue,
        "exchange": "",
        "exchange_type": "direct",
        "routing_key": name,
        "declare": [],
    }


def _is_routed(kind: str, binding: str, key: str) -> bool:
    """Whether a binding of a direct or a topic exchange takes messages with this routing key."""
    if kind != "topic":
        return kind == "direct" and binding == key
    # kombu's own pattern lets ``*`` stand for several words, and ``#`` not for none.
    pattern = [_WILDCARDS.get(word, rf"\.{re.escape(word)}") for word in binding.split(".")]
    return re.fullmatch("".join(pattern), f".{key}") is not None
