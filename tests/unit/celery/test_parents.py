"""`current()` in a task, and children that are started by guarded work (C15)."""

from __future__ import annotations

import re
import uuid

import pytest
from celery import chain, chord, group

import django_idempotency as idempotency
from django_idempotency import InvalidKey, current
from django_idempotency.contrib.celery import from_parent, idempotent_task

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


def test_C15_guarded_work_names_itself_to_its_children(local, receipt):
    ids = []

    def start():
        ids.append((str(current().seed), str(current().record_id)))
        receipt.delay("a")

    local.app.task(idempotent_task(key=lambda: "one")(start))()
    in_guarded_work(start)

    assert current() is None
    messages = local.sent()
    assert [(m.headers[HEADER], m.headers[RECORD_HEADER]) for m in messages] == ids
    assert [local.deliver(message).value for message in messages] == [1, 2]


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


def test_C15_what_a_task_is_replaced_by_is_its_child(local, receipt):
    @local.app.task(bind=True)
    @idempotent_task
    def parent(self):
        return self.replace(receipt.s("a"))

    local.deliver(local.send(parent))

    [child] = local.sent()
    assert local.deliver(child).value == 1


def test_C15_without_a_parent_there_is_no_key(local, receipt):
    for given, text in (
        (None, r"from_parent\('receipt'\)"),
        ("nonsense", "not a UUID"),
        (5, "not a UUID"),
    ):
        receipt.apply_async(["a"], headers={} if given is None else {HEADER: given})

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


@pytest.mark.parametrize("how", ["chain", "chord"])
def test_C15_what_follows_a_child_has_its_parent(local, twice, sent, how):
    @local.app.task
    @idempotent_task(key=from_parent("receipt"), payload=None)
    def receipt(*results):
        sent.append(current().request.key)

    @local.app.task
    def first():
        return "first"

    @local.app.task(name="second")
    @idempotent_task
    def second(*results):
        return "second"

    starts = {
        "chain": lambda: chain(first.si(), second.s(), receipt.s()).delay(),
        "chord": lambda: chord([first.si(), second.si()], receipt.s()).delay(),
    }

    def start():
        sent.append(current().derive_key("receipt"))
        starts[how]()

    twice(start)

    derived, key, again = sent
    assert derived == key == again


def test_C15_the_next_step_of_a_chain_names_the_record_of_its_parent(local, receipt):
    @local.app.task
    def first():
        return "first"

    in_guarded_work(lambda: chain(first.si(), receipt.si("a")).delay())
    [message] = local.sent()
    local.deliver(message)
    [following] = local.sent()

    for name in (HEADER, RECORD_HEADER):
        assert following.headers[name] == message.headers[name]


def test_C15_eagerly_the_parent_is_around_the_child(app, twice, receipt, sent):
    app.conf.task_always_eager = True

    twice(lambda: (receipt.delay("a"), receipt.apply(["a"]), receipt("a")))

    assert sent == ["a"]
