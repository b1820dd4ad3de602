"""What a test and tasks in other processes tell each other: a log of events, and when to go on."""

from __future__ import annotations

import json
import os
import time
from functools import partialmethod
from typing import TypeVar

import redis
from botocore.exceptions import ClientError
from celery import Celery
from celery.backends.redis import RedisBackend
from celery.states import READY_STATES
from kombu.transport.redis import Channel, QoS
from kombu.transport.SQS import Channel as SQSChannel

from tests.services.processes import wait_until

BROKER = "IDEMPOTENCY_TEST_BROKER"
PREFIX = "IDEMPOTENCY_TEST_PREFIX"
#: Where the messages are, if not with all else.
AMQP = "IDEMPOTENCY_TEST_TASKS_AMQP"
#: What a stage changes in the settings of its apps, as JSON.
SETTINGS = "IDEMPOTENCY_TEST_TASKS_SETTINGS"
#: Whether the workers may send nothing to SQS.
DENIED = "IDEMPOTENCY_TEST_TASKS_DENIED"
#: A stage's own `PATIENCE`.
VISIBILITY = "IDEMPOTENCY_TEST_VISIBILITY"

SECONDS = 120.0
#: Of tasks that are held: renewed in time also by a worker that stands still for two seconds.
LEASE = 4.0
#: After so many seconds Redis sends a message again that is not acknowledged. A shorter time than
#: the lease (W033) would double each message that waits to be tried again, until no slot is free.
PATIENCE = 6
#: How a task commits, by the name that it has in a test.
MODES = {
    "joined": {"transaction": "joined"},
    "single": {"transaction": "single"},
    "separate": {"transaction": "separate"},
    "redis": {"store": "redis"},
    "dynamodb": {"store": "dynamodb"},
}

if not hasattr(Channel, "unacked_restore_throttle"):
    # kombu 5.5 has neither option, and looks for such messages every 100 s: now every 10 s.
    QoS.restore_visible = partialmethod(QoS.restore_visible, interval=1)


def configuration(url, prefix, amqp, visibility, changed):
    """Return the settings of an app: messages and results on Redis, or messages on RabbitMQ."""
    on_redis = {
        "global_keyprefix": prefix,
        "visibility_timeout": int(visibility),
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
        # Who is killed while it looks for such messages keeps the others from it for so long.
        "unacked_mutex_expire": 2,
    }
    return {
        "broker_url": amqp or url,
        "broker_transport_options": on_redis if amqp is None else {},
        "broker_connection_retry_on_startup": True,
        "result_backend": url,
        "result_backend_transport_options": {"global_keyprefix": prefix},
        "task_acks_late": True,
        "task_reject_on_worker_lost": True,
        "worker_prefetch_multiplier": 1,
        **changed,
    }


S = TypeVar("S", bound="Stage")


class Stage:
    """The tasks' end of it, and what both ends share."""

    def __init__(self, url, prefix):
        self.url = url
        self.prefix = prefix
        self.client = redis.Redis.from_url(url, decode_responses=True, socket_timeout=2 * SECONDS)

    def tell(self, what, **facts):
        event = {"what": what, "pid": os.getpid(), "at": time.monotonic(), **facts}
        self.client.rpush(f"{self.prefix}events", json.dumps(event))

    def wait_for_word(self, name):
        """Wait until the test says to go on; each word is for one who waits."""
        if self.client.blpop([f"{self.prefix}go:{name}"], timeout=SECONDS) is None:
            raise TimeoutError(name)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.client.close()


def stage_of_process():
    return Stage(os.environ[BROKER], os.environ[PREFIX])


class QuietBackend(RedisBackend):
    """Results that are only looked at: nothing listens for them, and nothing need be told later."""

    def on_task_call(self, producer, task_id): ...

    def remove_pending_result(self, result):
        return result


class Test(Stage):
    """The test's end of it: messages, results, and what has happened."""

    __test__ = False

    def __init__(self, url, prefix, amqp=None, *, visibility=PATIENCE, settings=None):
        super().__init__(url, prefix)
        # Without Django's fixup: it would make this the app of the whole test run.
        self.app = Celery("tests", set_as_current=False, fixups=[])
        self.app.conf.update(configuration(url, prefix, amqp, visibility, settings or {}))
        self.app.conf.result_backend = f"{__name__}:QuietBackend+{url}"
        #: What makes a worker play here.
        self.environment = {BROKER: url, PREFIX: prefix, **({AMQP: amqp} if amqp else {})}
        self.environment[VISIBILITY] = str(visibility)
        self.environment[SETTINGS] = json.dumps(settings or {})
        self.environment["DJANGO_SETTINGS_MODULE"] = "tests.acceptance.celery.settings"

    def send(self, task, *args, **options):
        return str(self.app.send_task(f"tests.{task}", args, **options).id)

    def sig(self, task, *args, **options):
        return self.app.signature(f"tests.{task}", args, **options)

    def go(self, name, words=1):
        self.client.rpush(f"{self.prefix}go:{name}", *["go"] * words)

    def events(self, what, **facts):
        found = [json.loads(text) for text in self.client.lrange(f"{self.prefix}events", 0, -1)]
        wanted = {"what": what, **facts}
        return [event for event in found if wanted.items() <= event.items()]

    def wait_for(self, what, count=1, **facts):
        wait_until(
            lambda: len(self.events(what, **facts)) >= count,
            seconds=SECONDS,
            what=f"{count} x {what} {facts}",
        )
        return self.events(what, **facts)

    def wait_for_a_refusal_after_the_lease(self, task_id):
        """Wait until a message has come again whose task has begun longer ago than its lease."""
        begun = self.wait_for("begun", id=task_id)[0]["at"]
        wait_until(
            lambda: any(e["at"] > begun + LEASE for e in self.events("retried", id=task_id)),
            seconds=SECONDS,
            what=f"a message of {task_id} after its first lease",
        )

    def end(self, task_id):
        found = {}

        def ended():
            found.update(self.app.backend.get_task_meta(task_id, cache=False))
            return found["status"] in READY_STATES

        wait_until(ended, seconds=SECONDS, what=f"the end of {task_id}")
        return found["status"], found["result"]

    def __exit__(self, *error):
        self.app.backend.client.close()
        self.app.pool.force_close_all()
        self.app.close()
        super().__exit__()


if BROKER in os.environ:  # of a worker: ``celery --app``
    app = Celery("tests.acceptance.celery", include=["tests.acceptance.celery.tasks"])
    app.conf.update(
        configuration(
            *(os.environ[BROKER], os.environ[PREFIX], os.environ.get(AMQP)),
            *(os.environ[VISIBILITY], json.loads(os.environ[SETTINGS])),
        )
    )
    if DENIED in os.environ:

        def deny(channel, queue, message, **kwargs):
            """As SQS answers who may receive and may not send; a requeue is no SendMessage."""
            if not message.get("redelivered"):
                with stage_of_process() as stage:
                    stage.tell("denied", id=message["headers"]["id"])
                raise ClientError({"Error": {"Code": "AccessDenied"}}, "SendMessage")
            put(channel, queue, message, **kwargs)

        put, SQSChannel._put = SQSChannel._put, deny
