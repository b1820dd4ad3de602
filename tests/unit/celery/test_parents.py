"""`current()` in a task, and children that are started by guarded work (C15)."""

from __future__ import annotations

import re
import uuid

import pytest
from celery import chain, chord, group
from celery.contrib.django.task import DjangoTask
from django.db import transaction
from django.http import HttpResponse
from django.test import RequestFactory

import django_idempotency as idempotency
from django_idempotency import InvalidKey, current, keys
from django_idempotency.conf import store_for
from django_idempotency.contrib.celery import from_parent, idempotent_task
from django_idempotency.http import idempotent
from django_idempotency.http.scopes import anyone
from tests import version_1

HEADER = "idempotency_parent"
RECORD_HEADER = "idempotency_parent_record"

pytestmark = pytest.mark.usefixtures("memory")


@pytest.fixture
def sent():
    """What the receipts say that were sent."""
    return []


@pytest.fixture
def receipt(app, sent):
    @app.task(name="receipt")
    @idempotent_task(key=from_parent("receipt"), payload=None)
    def receipt(text):
        sent.append(text)
        return len(sent)

    return receipt


@pytest.fixture
def twice(local):
    """Run guarded work that starts something and then fails; twice, under one key."""

    def twice(start):
        @local.app.task(name="parent")
        @idempotent_task(key=lambda: "one")
        def parent():
            start()
            raise ConnectionError

        done = []
        for _ in range(2):
            with pytest.raises(ConnectionError):
                parent()
            done += local.deliver_all()
        return done

    return twice


def in_guarded_work(start):
    return idempotency.run(lambda lease: start() and None, key="k", scope="s")


@pytest.mark.parametrize("work", ["task", "view", "function"])
def test_C15_guarded_work_names_itself_to_its_children(local, receipt, work):
    ids = []

    def start():
        ids.append((str(current().seed), str(current().record_id)))
        receipt.delay("a")

    if work == "task":
        local.app.task(idempotent_task(key=lambda: "one")(start))()
    elif work == "view":
        guard = idempotent(required=True, scope=anyone)
        request = RequestFactory().post("/", headers={"Idempotency-Key": "k"})
        guard(lambda request: start() or HttpResponse())(request)
    else:
        in_guarded_work(start)

    assert current() is None
    [message] = local.sent()
    assert [(message.headers[HEADER], message.headers[RECORD_HEADER])] == ids
    assert local.deliver(message).value == 1


def test_C15_the_old_protocol_has_its_header_elsewhere(local, receipt):
    local.app.conf.task_protocol = 1
    seeds = []
    in_guarded_work(lambda: seeds.append(str(current().seed)) or receipt.delay("a"))

    with local.app.connection_for_read() as connection:
        queue = connection.SimpleQueue("celery", no_ack=True)
        assert [queue.get_nowait().headers[HEADER]] == seeds
        queue.close()


def test_C15_a_parent_that_is_given_stays(local, receipt):
    given = str(uuid.uuid4())

    in_guarded_work(lambda: receipt.apply_async(["a"], headers={HEADER: given}))

    assert [message.headers[HEADER] for message in local.sent()] == [given]


def test_C15_a_retry_is_no_child_and_keeps_its_parent(local):
    @local.app.task(bind=True, default_retry_delay=0)
    @idempotent_task
    def flaky(self):
        if not self.request.retries:
            raise self.retry()

    local.deliver(local.send(flaky))
    [retry] = local.sent()
    assert HEADER not in retry.headers

    in_guarded_work(flaky.delay)
    [child] = local.sent()
    local.deliver(child)
    [retry] = local.sent()
    assert retry.headers[HEADER] == child.headers[HEADER]


def test_C15_a_duplicate_that_is_sent_again_is_no_child(local):
    @local.app.task
    @idempotent_task
    def task():
        local.deliver(message)

    message = local.send(task)
    local.deliver(message)

    [again] = local.sent()
    assert again.id == message.id
    assert HEADER not in again.headers


def test_C15_what_a_task_is_replaced_by_is_its_child(local, receipt):
    @local.app.task(bind=True)
    @idempotent_task
    def parent(self):
        return self.replace(receipt.s("a"))

    local.deliver(local.send(parent))

    [child] = local.sent()
    assert local.deliver(child).value == 1


def test_C15_a_parent_that_runs_again_starts_no_second_child(local, receipt, sent):
    runs = []

    @local.app.task(name="parent")
    @idempotent_task(key="order_id")
    def parent(order_id):
        runs.append(order_id)
        receipt.delay(f"order {order_id}")
        if len(runs) == 1:
            raise ConnectionError

    for message in [local.send(parent, order_id) for order_id in (1, 1, 2)]:
        local.deliver(message)

    assert [child.value for child in local.deliver_all()] == [1, 1, 2]
    assert (runs, sent) == ([1, 1, 2], ["order 1", "order 2"])


@pytest.mark.parametrize(
    ("headers", "text"),
    [
        ({}, r"from_parent\('receipt'\)"),
        ({HEADER: "nonsense"}, "no UUID"),
        ({HEADER: 5}, "no UUID"),
    ],
    ids=str,
)
def test_C15_without_a_parent_there_is_no_key(local, receipt, headers, text):
    receipt.apply_async(["a"], headers=headers)

    [done] = local.deliver_all()

    assert (done.state, type(done.value)) == ("FAILURE", InvalidKey)
    assert re.search(text, str(done.value))


def test_C15_a_name_may_tell_children_apart_by_their_arguments(app, twice, sent):
    @app.task
    @idempotent_task(key=from_parent("line-{number}"))
    def line(number):
        sent.append(number)

    assert len(twice(lambda: group(line.s(number) for number in range(3))())) == 6
    assert sent == [0, 1, 2]


def test_C15_a_parent_of_another_request_has_another_child(local, sent, receipt):
    """A corrected request under a released key sends a receipt of its own."""
    for amount in (1, 1, 2):
        with idempotency.attempt(key="k", scope="s", payload=amount):
            receipt.delay(amount)  # left without complete(): released
    local.deliver_all()

    assert sent == [1, 2]


def test_C15_a_message_of_version_1_and_of_its_worker_make_one_key(local, receipt):
    """Version 1 derives the child's key of the header as it is, whatever was written there."""
    in_guarded_work(lambda: receipt.delay("new"))
    receipt.apply_async(["old"], headers={HEADER: str(uuid.uuid4())})

    for message in local.sent():
        assert local.deliver(message).state == "SUCCESS"
        key = version_1.derived(uuid.UUID(message.headers[HEADER]), "receipt")
        assert store_for().get(keys.record_id("task", "receipt", key)) is not None


@pytest.mark.parametrize("how", ["chain", "link", "chord", "inside", "guarded chain"])
@pytest.mark.parametrize("where", ["worker", "C12 eager"])
def test_C15_what_follows_a_child_has_its_parent(local, twice, sent, how, where):
    @local.app.task
    @idempotent_task(key=from_parent("receipt"), payload=None)
    def receipt(*results):
        sent.append(current().request.key)

    @local.app.task
    def first():
        return receipt.delay() and None if how == "inside" else "first"

    @local.app.task(name="second")
    @idempotent_task
    def second(*results):
        return "second"

    starts = {
        "chain": lambda: chain(first.si(), second.s(), receipt.s()).delay(),
        "guarded chain": lambda: chain(second.si(), first.si(), receipt.s()).delay(),
        "link": lambda: first.apply_async(link=receipt.s()),
        "chord": lambda: chord([first.si(), second.si()], receipt.s()).delay(),
        "inside": first.delay,
    }

    def start():
        sent.append(current().derive_key("receipt"))
        starts[how]()

    local.app.conf.task_always_eager = where == "C12 eager"
    twice(start)

    derived, key, again = sent
    assert derived == key == again


@pytest.mark.parametrize("how", ["delay", "apply", "call"])
def test_C15_eagerly_the_parent_is_around_the_child(app, twice, receipt, sent, how):
    app.conf.task_always_eager = True
    start = {"delay": receipt.delay, "apply": lambda text: receipt.apply([text])}

    twice(lambda: start.get(how, receipt)("a"))

    assert sent == ["a"]


@pytest.mark.django_db(transaction=True)
def test_C15_a_child_that_a_commit_sends_has_its_parent(local, settings):
    settings.IDEMPOTENCY = {"default": {}}
    later = local.app.task(idempotent_task(key=from_parent("n"))(abs), name="n", base=DjangoTask)

    def start():
        later.delay_on_commit(1)
        assert local.sent() == []

    outcome = in_guarded_work(start)
    [message] = local.sent()
    assert message.headers[RECORD_HEADER] == str(outcome.record_id)
    assert local.deliver(message).value == 1

    with transaction.atomic():
        later.delay_on_commit(0)
        outcome = idempotency.run(lambda lease: later.delay_on_commit(1), key="other", scope="s")
        later.delay_on_commit(2)
    headers = [message.headers.get(RECORD_HEADER) for message in local.sent()]
    assert headers == [None, str(outcome.record_id), None]
