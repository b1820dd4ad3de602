"""The app of a case: one task, guarded or not, whose messages the test delivers."""
# mypy: ignore-errors

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from enum import Enum
from unittest import mock
from uuid import uuid4

from celery import _state, chord, current_task, group
from celery.contrib.testing.app import TestApp, setup_default_app
from celery.exceptions import Reject
from django.db import connections, transaction
from django.test import override_settings
from kombu import Exchange, Queue

from django_idempotency import external, step
from django_idempotency.conf import stores
from django_idempotency.contrib.celery import idempotent_task
from tests.app.models import Effect
from tests.proof.pairs.features_of_tasks import TaskCase
from tests.unit.celery.conftest import Done, Local, Message

__all__ = ["Flaky", "Shop"]

QUEUES = (
    Queue("celery", Exchange("celery"), "celery"),
    Queue("named", Exchange("named"), "named"),
    Queue("orders", Exchange("orders"), "orders.new"),
)
ROUTES = {
    "default": {},
    "named": {"queue": "named"},
    "routed": {"exchange": "orders", "routing_key": "orders.new"},
}
KEYS = {
    "id": None,
    "argument": "order",
    "enum": "order",
    "template": "order {order}",
    "callable": lambda order: f"of {order}",
    "header": lambda order: current_task.request.headers["Order-Key"],
}
LARGE = "all of it" * 20_000


class Flaky(Exception):
    """What fails at first."""


class Order(str, Enum):
    """What a task of a case is called with, which JSON sends as its value."""

    FIRST = "first"


class Declined(Exception):
    """What the work of a case raises for good."""


class Shop:
    """A project with the task of a case, a task that follows it, and a broker."""

    def __init__(self, case: TaskCase, *, guarded: bool, redis: str, lease: float = 60) -> None:
        self.case, self.guarded, self.redis, self.lease = case, guarded, redis, lease
        self.runs = 0
        #: What the task that follows was called with.
        self.followed: list = []
        #: What is done in the first run, while it is at work; and what became of it.
        self.meanwhile = None
        #: Called in the call of another service, which it may end; and how often there was one.
        self.in_call = bool
        self.calls = 0
        self.met: Done | None = None
        #: The first message of the task.
        self.first: Message | None = None
        #: The queue and the serializer of each message of the task.
        self.sent: set[tuple[str, str]] = set()
        #: What the task is called with.
        self.order = Order.FIRST if case.key == "enum" else Order.FIRST.value
        self.prefix = uuid4().hex

    @contextmanager
    def open(self) -> Iterator[Shop]:
        """Be the project, whose app is the current one."""
        store = {"BACKEND": "django_idempotency.stores.redis.RedisStore"}
        store["OPTIONS"] = {"url": self.redis, "prefix": f"{self.prefix}:"}
        policy = {"LEASE": self.lease, **(store if self.case.store == "redis" else {})}
        if self.case.encryption == "yes":
            policy["ENCRYPTION_KEYS"] = [bytes(32)]
        on_redis = self.case.broker == "redis"
        config = {
            "broker_url": self.redis if on_redis else "memory://",
            "broker_transport_options": {"global_keyprefix": self.prefix} if on_redis else {},
            "result_backend": "cache+memory://",
            "accept_content": ["json", "pickle"],
            "task_queues": QUEUES,
            "task_store_eager_result": False,
        }
        with ExitStack() as stack:
            stack.callback(stores.reset)
            stack.callback(Effect.objects.all().delete)
            stack.enter_context(override_settings(IDEMPOTENCY={"default": policy}))
            stack.enter_context(mock.patch.object(_state, "default_app", None))
            stack.enter_context(mock.patch.object(_state._tls, "current_app", None))
            app = TestApp("pairs", config=config)
            app.task_cls = "celery.contrib.django.task:DjangoTask"
            stack.enter_context(setup_default_app(app))
            stack.enter_context(mock.patch.object(_state, "_on_app_finalizers", set()))
            app.set_current()
            stack.callback(app.close)
            self.local = Local(app)
            self.task, self.other, self.follow = self._tasks(app)
            self.take()
            yield self

    def _tasks(self, app):
        case = self.case

        def pay(task, order):
            self.runs += 1
            if self.guarded and case.mode == "steps":
                step("row", self._leave_row)
                external("call", self._call, uncertain=case.uncertain)
            else:
                self._leave_row()
            meanwhile, self.meanwhile = self.meanwhile, None
            if meanwhile is not None:
                self.met = meanwhile()
            return self._end(task)

        if self.guarded:
            options = {"transaction": case.mode, "on_failed": case.on_failed}
            options |= {"on_in_progress": case.in_progress, "wait": 0.05}
            if case.serializer == "pickle":  # which is refused for results
                options["codec"] = "json"
            pay = idempotent_task(key=KEYS[case.key], **options)(pay)
        options = {"serializer": case.serializer, "max_retries": 3}
        if case.serializer == "of_call":
            options["serializer"] = "json"
        options |= {"ignore_result": case.ignore_result == "yes"}
        options |= {"acks_late": case.acks_late == "yes"}
        if case.compression == "gzip":
            options["compression"] = "gzip"
        if case.retry == "autoretry":
            options |= {"autoretry_for": (Flaky,), "retry_backoff": False, "default_retry_delay": 0}
        task = app.task(pay, bind=True, name="pay", **options)

        def other():
            return "other"

        def follow(result):
            self.followed.append(result)

        return task, app.task(other, name="other"), app.task(follow, name="follow")

    def _leave_row(self):
        Effect.objects.create(name=f"run {self.runs}")

    def _call(self, key):
        self.calls += 1
        self.in_call()

    def _end(self, task):
        if self.runs == 1:
            match self.case.retry:
                case "self":
                    raise task.retry(countdown=0, exc=Flaky())
                case "autoretry":
                    raise Flaky
                case "reject":
                    raise Reject("later", requeue=True)
        match self.case.result:
            case "exception":
                raise Declined("no money")
            case "none":
                return None
            case "large":
                return LARGE
        return {"paid": [1, "ä"]}

    def call(self) -> list[Done]:
        """Call the task as the case says, and deliver what that sends, until nothing is left."""
        case, route = self.case, ROUTES[self.case.queue]
        headers = {"Order-Key": "order-1"} if case.key == "header" else {}
        named = {"task_id": f"pay-{self.prefix}"} if case.key == "id" else {}
        if case.serializer == "of_call":
            route = {**route, "serializer": "pickle"}
        options = {**route, **named, "headers": headers}
        match case.call:
            case "eager":
                found = self.task.apply((self.order,), **named, headers=headers)
                return [Done(found.state, found.result)]
            case "on_commit":
                with transaction.atomic():
                    self.task.apply_async_on_commit((self.order,), **route)
            case "countdown":
                self.task.apply_async((self.order,), countdown=1, **options)
            case "chain":
                (self.task.s(self.order).set(**options) | self.follow.s()).apply_async()
            case "group":
                group(self.task.s(self.order).set(**options), self.other.s()).apply_async()
            case "chord":
                chord([self.task.s(self.order).set(**options), self.other.s()])(self.follow.s())
            case _:
                self.task.apply_async((self.order,), **options)
        sent = self.take()
        if self.first is None:
            self.first = next(message for message in sent if message.headers["task"] == "pay")
        return self.deliver(*sent)

    def take(self) -> list[Message]:
        """Take what has been sent."""
        taken = [(queue, message) for queue in QUEUES for message in self.local.sent(queue)]
        for queue, message in taken:
            if message.headers["task"] == "pay":
                self.sent.add((queue.name, message.content_type))
        return [message for _, message in taken]

    def deliver(self, *messages: Message, redelivered: bool = False) -> list[Done]:
        """Deliver them and what they send; return how the deliveries of the task itself end."""
        done: list[Done] = []
        waiting = [(message, redelivered) for message in messages]
        while waiting:
            message, again = waiting.pop(0)
            end = self.deliver_one(message, redelivered=again)
            if message.headers["task"] == "pay":
                done.append(end)
            if end.state == "REJECTED" and end.value.requeue:
                waiting.append((message, True))
            waiting += [(sent, False) for sent in self.take()]
            assert len(done) < 20, "it goes on and on"
        return done

    def deliver_one(self, message: Message, *, redelivered: bool = False) -> Done:
        """Be a worker of the pool."""
        if self.case.pool == "solo":
            return self.local.deliver(message, redelivered=redelivered)
        return self.beside(message, redelivered=redelivered)

    def beside(self, message: Message, *, redelivered: bool) -> Done:
        """Deliver on a thread of its own."""

        def work() -> Done:
            try:
                return self.local.deliver(message, redelivered=redelivered)
            finally:
                connections.close_all()

        with ThreadPoolExecutor(1) as pool:
            return pool.submit(work).result(30)
