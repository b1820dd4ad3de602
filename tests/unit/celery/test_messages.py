"""A message that is sent again: to its queue, with its serializer and properties (C6)."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from unittest.mock import Mock

import pytest
from celery import current_task
from kombu import Exchange, Queue, binding
from kombu.transport.native_delayed_delivery import calculate_routing_key

from django_idempotency.contrib.celery import idempotent_task, messages
from django_idempotency.contrib.celery.messages import UnknownMessage
from tests.unit.celery.conftest import Done

pytestmark = pytest.mark.usefixtures("memory")

TOPIC, OTHER = Exchange("tasks", type="topic"), Exchange("other", type="direct")
QUORUM = {"queue_arguments": {"x-queue-type": "quorum"}}
QUEUES = [
    Queue("celery", TOPIC, routing_key="celery", **QUORUM),
    Queue("b", TOPIC, routing_key="b", **QUORUM),
    Queue("video", TOPIC, routing_key="media.#", **QUORUM),
    Queue("one", TOPIC, routing_key="word.*"),
    Queue("plain", TOPIC, routing_key="plain"),
    Queue("left", OTHER, routing_key="both"),
    Queue("right", OTHER, routing_key="both"),
    Queue("named", OTHER, routing_key="key"),
    Queue("steady", OTHER, routing_key="steady", **QUORUM),
    Queue("literal", OTHER, routing_key="word.*"),
    Queue("bound", bindings=[binding(OTHER, routing_key="its")]),
    Queue("fan", Exchange("fan", type="fanout"), routing_key="fan"),
]


def delayed(key):
    return calculate_routing_key(5, key)


@pytest.mark.parametrize(
    ("exchange", "routing_key", "expected"),
    [
        ("", "anything", ("", "anything")),
        ("tasks", "b", ("tasks", "b")),
        ("celery_delayed_delivery", delayed("b"), ("tasks", "b")),
        ("celery_delayed_1", delayed("media.x.y"), ("", "video")),
        ("tasks", "media", ("", "video")),
        ("tasks", "media.x", ("", "video")),
        ("tasks", "word.x", ("", "one")),
        ("tasks", "plain", ("", "plain")),
        ("other", "key", ("", "named")),
        ("other", "steady", ("", "steady")),
        ("other", "its", ("", "bound")),
        ("tasks", "word.x.y", None),
        ("tasks", "word", None),
        ("other", "word.x", None),
        ("other", "both", None),
        ("other", "b", None),
        ("fan", "fan", None),
        ("", "", None),
        (None, None, None),
    ],
)
def test_C6_the_queue_of_a_message(app, exchange, routing_key, expected):
    """One alone: another one would run the task twice, or never."""
    app.conf.task_queues = QUEUES

    if expected is None:
        with pytest.raises(UnknownMessage):
            messages._destination(app, exchange, routing_key)
        return
    found = messages._destination(app, exchange, routing_key)
    assert (found["exchange"], found["routing_key"]) == expected
    assert found["queue"].name == expected[1]


@pytest.mark.parametrize(("driver", "confirms"), [("amqp", True), ("redis", None)])
def test_C6_RabbitMQ_confirms_what_it_takes_and_others_need_not(app, driver, confirms):
    with messages._producer(app, driver) as producer:
        options = producer.connection.transport_options

    assert options.get("confirm_publish") is confirms


@pytest.fixture
def sent_again(local, monkeypatch):
    """Deliver a message to a task that sends it again; return what was sent."""

    @local.app.task(name="work", bind=True)
    @idempotent_task
    def work(self, *args, **kwargs):
        if not seen:
            seen.append(args)
            messages.send_again(current_task, 1)
            return None
        seen.append(args)

    seen = []

    def sent_again(queue="celery", *, args=(), change=None, **options):
        work.apply_async(args, queue=queue, **options)
        [message] = local.sent(queue)
        sent = deepcopy(change(message) if change else message)
        assert local.deliver(sent) == Done("SUCCESS", None)
        [again] = [sent for sent in local.sent(queue) if sent.id == message.id]
        return message, again

    sent_again.seen = seen
    return sent_again


def test_C6_a_set_that_was_sent_by_pickle_arrives_by_pickle(local, sent_again):
    local.app.conf.accept_content = ["json", "pickle"]

    message, again = sent_again(args=({1, 2},), serializer="pickle")

    assert again.content_type == message.content_type == "application/x-python-serialize"
    assert again.args == ({1, 2},)


def test_C6_a_message_keeps_its_queue_its_headers_and_its_properties(
    local, sent_again, monkeypatch
):
    """Though a route of the project sends others of its kind to another queue."""
    local.app.conf.task_routes = {"work": {"exchange": "elsewhere", "routing_key": "nowhere"}}
    kept = {"compression": "gzip", "priority": 3, "message_id": "m", "correlation_id": "c"}
    dropped = {"headers": {"mine": "yes", "redelivered": True, "x-first-death-queue": "c"}}

    message, again = sent_again("b", **kept, **dropped, exchange="", routing_key="b")

    assert (again.exchange, again.routing_key) == ("", "b")
    assert again.headers["compression"] == message.headers["compression"] == "application/x-gzip"
    assert again.headers["mine"] == "yes"
    assert not {"redelivered", "x-first-death-queue"} & set(again.headers)
    for name in ("priority", "message_id", "correlation_id", "reply_to", "delivery_mode"):
        assert again.properties.get(name) == message.properties.get(name), name


def test_C6_a_message_keeps_its_limits_its_expiry_and_what_follows_it(local, sent_again):
    follows = local.app.signature("next")
    options = {"expires": 3600, "time_limit": 30, "soft_time_limit": 20, "retries": 2}

    message, again = sent_again(**options, link=follows, link_error=follows, chain=[follows])

    for name in ("id", "root_id", "group", "retries", "expires", "timelimit", "shadow", "origin"):
        assert again.headers[name] == message.headers[name], name
    assert again.embed == message.embed
    assert all(again.embed[name] for name in ("chain", "callbacks", "errbacks"))


def test_C6_what_would_make_a_broker_drop_it_is_not_kept(sent_again):
    def of_sqs(message):
        given = {"MessageDeduplicationId": "d", "MessageGroupId": "g"}
        return replace(message, properties={**message.properties, **given})

    _, again = sent_again(change=of_sqs)

    assert again.properties["MessageGroupId"] == "g"
    assert "MessageDeduplicationId" not in again.properties


def test_C6_a_serializer_that_is_not_known_is_an_error(sent_again):
    with pytest.raises(AssertionError, match="FAILURE"):
        sent_again(change=lambda message: replace(message, content_type=None))


@pytest.mark.parametrize(
    ("driver", "info", "first"),
    [
        ("amqp", {"redelivered": False}, True),
        ("amqp", {"redelivered": True}, False),
        ("redis", {}, True),
        ("redis", {"redelivered": True}, False),
        ("sqs", {"sqs_message": {"Attributes": {"ApproximateReceiveCount": "1"}}}, True),
        ("sqs", {"sqs_message": {"Attributes": {"ApproximateReceiveCount": "2"}}}, False),
        ("sqs", {}, False),
        ("filesystem", {}, False),
    ],
)
def test_C8_a_first_delivery_is_one_that_the_broker_calls_so(driver, info, first):
    assert messages._is_first(info, driver) is first


def test_nothing_is_noted_of_a_task_that_is_not_guarded(app):
    @app.task(name="plain")
    def plain(): ...

    request = Mock(task=app.tasks["plain"], request_dict={})

    messages.note_message(Mock(), request)

    assert request.request_dict == {}


def test_C9_the_time_limits_of_a_worker_are_noted_of_a_map():
    starmap = Mock(run=len)
    starmap.name = "celery.starmap"
    request, consumer = Mock(task=starmap, request_dict={}), Mock()
    request.message.delivery_info = {}
    consumer.pool.options = {"timeout": 30, "soft_timeout": 20}

    messages.note_message(consumer, request)

    assert request.request_dict["properties"][messages.NOTE]["limits"] == [30, 20]


def test_C6_a_message_keeps_its_hidden_arguments_and_its_parent(sent_again):
    hidden = {"argsrepr": "(***)", "kwargsrepr": "{'card': ***}"}

    message, again = sent_again(args=("4242",), kwargs={"card": "4242"}, **hidden)

    assert {name: again.headers[name] for name in hidden} == hidden
    assert again.headers["parent_id"] is message.headers["parent_id"] is None
    assert again.kwargs == message.kwargs == {"card": "4242"}
