"""The journal of steps in Redis: the field, its expiry, a full server, and a lost answer."""

from __future__ import annotations

from datetime import timedelta

import pytest

from django_idempotency import journal
from django_idempotency.claims import Decision, Resolution, decide
from django_idempotency.exceptions import LeaseLost, StoreError
from django_idempotency.records import State
from tests.claims import DAY, HOUR, asked, found, lost, record_id, won
from tests.integration.redis.conftest import MOMENT, lapse
from tests.steps import ENTRY, INTENT, again, comes_back_whole, noted, resume

PAID = journal.entry("charge", b"paid")


@pytest.fixture
def name(prefix):
    """The server's key of the record of "key"."""
    return f"{prefix}{record_id()}"


def minutes_left(client, name):
    """What is left, to the minute, until the server deletes the record; None if it never will."""
    left = client.pttl(name)
    assert left != -2, "there is no record"
    return None if left == -1 else timedelta(minutes=round(left / 60_000))


def test_S1_journal_is_a_field_of_the_hash_until_the_record_is_completed(store, client, name):
    lease = noted(store, [ENTRY, b"\0"])
    assert client.hget(name, "steps") == ENTRY + b"\0"
    store.complete(lease, b"result", retention=HOUR)
    assert not client.hexists(name, "steps")


def test_S4_server_keeps_a_noted_record_for_the_lifetime_and_for_its_lease(store, client, name):
    lease = noted(store, retention=DAY, max_duration=HOUR, lease=MOMENT)
    assert minutes_left(client, name) == 1.1 * DAY
    store.note(lease, ENTRY, duration=2 * DAY, held=False)
    assert minutes_left(client, name) == 2 * DAY
    assert found(store).expires_at < found(store).now + DAY + 3 * HOUR
    store.note(lease, ENTRY, duration=HOUR, held=False)
    assert minutes_left(client, name) == 1.1 * DAY


def test_S4_expiry_is_left_alone_for_half_of_the_lifetime(store, client, name):
    lease = noted(store, retention=DAY, max_duration=HOUR)
    for left, kept in ((14 * HOUR, 14 * HOUR), (13 * HOUR, 1.1 * DAY)):
        expires_at = found(store).now + left
        client.hset(name, "expires_at", int(expires_at.timestamp() * 1_000_000))
        store.note(lease, ENTRY, duration=MOMENT, held=False)
        assert minutes_left(client, name) == kept


def test_S4_server_never_deletes_a_held_record_until_the_next_note(store, client, name):
    lease = noted(store, retention=DAY)
    store.note(lease, ENTRY, duration=MOMENT, held=True)
    assert (minutes_left(client, name), found(store).expires_at) == (None, None)
    store.note(lease, ENTRY, duration=MOMENT, held=False)
    assert minutes_left(client, name) == 1.1 * DAY


def test_S13_server_never_deletes_a_held_record_until_a_failure_says_so(store, client, name):
    lease = noted(store, [ENTRY, INTENT], retention=DAY)
    assert minutes_left(client, name) is not None
    for _ in range(2):
        store.fail(lease, "boom", held=True)
        assert (minutes_left(client, name), found(store).expires_at) == (None, None)
        lease = won(store.claim(again(lease)))
        assert (minutes_left(client, name), found(store).expires_at) == (None, None)
    store.fail(lease, "boom")
    assert minutes_left(client, name) == DAY


def test_S13_failure_without_a_journal_holds_nothing(store, client, name):
    """The note of the intent was refused or lost, so the call was not made."""
    store.fail(won(store.claim(asked(steps=True, retention=DAY))), "boom", held=True)
    assert minutes_left(client, name) == 1.1 * DAY
    won(store.claim(asked()))


def test_S18_server_keeps_a_resumed_record_for_the_retention_unless_it_is_held(store, client, name):
    store.fail(noted(store, [INTENT]), "boom")
    assert resume(store)
    assert (minutes_left(client, name), found(store).expires_at) == (None, None)
    assert resume(store, step="charge", result=b"paid", retention=2 * HOUR)
    assert minutes_left(client, name) == 2 * HOUR
    assert client.hmget(name, "steps", "result") == [INTENT + PAID, None]


@pytest.mark.parametrize("action", ["resume", "release"])
def test_S18_note_after_the_look_of_a_decision(store, monkeypatch, action):
    lease = noted(store, [INTENT])
    look = store.get

    def get(record_id):
        record = look(record_id)
        store.note(lease, journal.intent("mail"), duration=HOUR, held=True)
        return record

    before = found(store)
    decision = Resolution(action, before.epoch, before.state, force=True)
    monkeypatch.setattr(store, "get", get)
    assert store.resolve(record_id(), decision) is (action == "release")  # which looks at nothing
    monkeypatch.undo()

    if action == "resume":
        assert (found(store).state, found(store).held) == (State.IN_PROGRESS, True)
        assert store.resolve(record_id(), decision)
        assert found(store).held


def test_S8_S14_server_keeps_the_journal_of_a_claim_for_the_claims_lifetime(store, client, name):
    lease = noted(store, retention=HOUR, max_duration=HOUR)
    store.fail(lease, "boom")
    retry = won(store.claim(again(lease, retention=DAY)))
    assert (retry.journal, found(store).attempts) == (ENTRY, 2)
    assert minutes_left(client, name) == 1.1 * DAY
    assert store.erase(record_id(), force=True)
    assert not client.exists(name)


@pytest.mark.parametrize("version", ["valkey9", "redis6"])
def test_S1_S8_server_whose_memory_is_full_takes_notes_and_gives_them(store, memory_full):
    lease = noted(store)
    memory_full()

    store.note(lease, b"second", duration=HOUR, held=False)
    store.note(lease, b"third", duration=MOMENT, held=True)

    lapse(store)
    assert won(store.claim(again(lease))).journal == ENTRY + b"secondthird"
    assert found(store).steps == ENTRY + b"secondthird"


@pytest.mark.parametrize("version", ["valkey9", "redis6"])
def test_S13_S18_server_whose_memory_is_full_holds_and_resumes(store, memory_full):
    lease = noted(store, [INTENT])
    memory_full()

    store.fail(lease, "boom", held=True)
    assert found(store).held

    assert resume(store, step="charge", result=b"paid")
    assert (found(store).steps, found(store).held) == (INTENT + PAID, False)


@pytest.mark.parametrize(("number", "size"), [(300, 200), (20, 4096), (3, 2**20)])
def test_S1_large_journal_comes_back_whole(store, number, size):
    comes_back_whole(store, number, size)


def test_S8_failed_record_that_is_held_is_whole(store, client, name):
    lease = noted(store)
    store.fail(lease, "boom", held=True)

    assert not client.hexists(name, "expires_at")
    assert (found(store).expires_at, found(store).steps) == (None, ENTRY)
    plain = again(lease, steps=False)
    assert decide(lost(store.claim(plain)), plain) is Decision.STALE
    assert won(store.claim(again(lease))).journal == ENTRY


def test_S2_owner_of_a_damaged_record_is_not_told_that_it_is_gone(store, client, name):
    lease = noted(store)
    client.hdel(name, "state")
    with pytest.raises(LeaseLost) as raised:
        store.note(lease, ENTRY, duration=HOUR, held=False)
    assert not raised.value.gone
    assert client.hget(name, "steps") == ENTRY


def test_S8_journal_of_a_record_that_the_server_has_not_deleted_yet_is_forgotten(
    store, client, name
):
    lease = noted(store)
    store.fail(lease, "boom")
    client.persist(name)
    client.hset(name, "expires_at", "1")
    assert won(store.claim(again(lease))).journal is None
    assert not client.hexists(name, "steps")


@pytest.mark.parametrize("state", ["COMPLETED", "RELEASED"])
def test_other_ended_record_without_an_expiry_is_damaged_with_a_journal_too(
    store, client, name, state
):
    store.fail(noted(store), "boom")
    client.hset(name, mapping={"state": state, "result": b"result"})
    client.hdel(name, "expires_at")
    with pytest.raises(StoreError):
        store.claim(asked(steps=True))
    with pytest.raises(StoreError):
        store.get(record_id())
