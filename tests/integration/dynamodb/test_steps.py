"""The journal of steps in an item: its list, notes that race with a claim, and large ones."""

from __future__ import annotations

from datetime import timedelta

import pytest

from django_idempotency import journal
from django_idempotency.claims import Decision, Resolution, decide
from django_idempotency.exceptions import LeaseLost, StoreError
from django_idempotency.records import State
from tests.claims import (
    DAY,
    FINGERPRINT,
    HOUR,
    OTHER_FINGERPRINT,
    asked,
    found,
    lost,
    record_id,
    won,
)
from tests.integration.dynamodb.conftest import once
from tests.steps import ENTRY, INTENT, again, comes_back_whole, noted, resume

ORDER = journal.entry("order", b"17")
UPDATE, PUT, GET = "UpdateItem", "PutItem", "GetItem"
both_servers = pytest.mark.parametrize("kind", ["moto", "dynalite"])


@pytest.fixture
def store(make_store, clock):
    return make_store(clock_skew=0, clock=clock)


def raw(store):
    item = store.table.item(record_id())
    assert item is not None
    return item


def put(store, **attributes):
    item = {**raw(store), **attributes}
    store.table.client.send("put_item", {"TableName": store.table.name, "Item": item})


@both_servers
def test_S1_journal_is_a_list_of_the_item_and_a_note_is_one_call(store, wire):
    lease = won(store.claim(asked(steps=True)))
    wire.taken()
    for entry in (ENTRY, b"\0"):
        store.note(lease, entry, duration=HOUR, held=False)
    assert wire.taken() == [UPDATE, UPDATE]
    assert raw(store)["steps"] == {"L": [{"B": ENTRY}, {"B": b"\0"}]}
    store.fail(lease, "boom")
    wire.taken()
    retry = won(store.claim(again(lease)))
    assert (retry.journal, wire.taken()) == (ENTRY + b"\0", [UPDATE])
    store.complete(retry, b"result", retention=HOUR)
    assert "steps" not in raw(store)


def test_S2_note_that_is_refused_says_whether_there_is_a_record(store, wire):
    lease = noted(store)
    store.release(lease)
    for gone in (False, True):
        if gone:
            assert store.erase(record_id())
        with pytest.raises(LeaseLost) as raised:
            store.note(lease, ENTRY, duration=HOUR, held=False)
        assert raised.value.gone is gone


def test_S4_expiry_of_a_note_is_what_TTL_takes(store, clock):
    lease = noted(store, retention=DAY, max_duration=HOUR)
    clock.advance(DAY)
    store.note(lease, ENTRY, duration=HOUR, held=False)
    assert raw(store)["expiry"]["N"].isdigit()
    expires_at = found(store).expires_at
    assert timedelta(0) <= expires_at - clock() - 1.1 * DAY < timedelta(seconds=1)
    store.note(lease, ENTRY, duration=HOUR, held=True)
    assert "expiry" not in raw(store)


@both_servers
@pytest.mark.parametrize("resumes", [True, False])
@pytest.mark.parametrize("fails", [True, False], ids=["failed", "lapsed"])
def test_S7_S10_note_between_the_look_and_the_write_of_a_claim(store, clock, fails, resumes):
    """The first update fails, since it asks with the newest fingerprint; then comes the note."""
    owner = won(store.claim(asked(lease=timedelta(seconds=1), steps=True)))
    clock.advance(timedelta(seconds=1))
    request = asked(fingerprints=(OTHER_FINGERPRINT, FINGERPRINT), steps=resumes)

    def note():
        store.note(owner, ENTRY, duration=timedelta(0), held=False)
        if fails:
            store.fail(owner, "boom")

    once(store, "update", lambda: once(store, "update", note))
    told = store.claim(request)

    if resumes:
        assert won(told).journal == ENTRY
    else:
        assert decide(lost(told), request) is Decision.STALE
    assert found(store).steps == ENTRY


@both_servers
def test_S13_claim_of_a_held_item_is_two_writes_the_first_of_which_is_refused(
    store, kind, clock, wire
):
    lease = noted(store, [INTENT], retention=DAY)
    for _ in range(2):
        store.fail(lease, "boom", held=True)
        assert "expiry" not in raw(store)
        wire.taken()
        lease = won(store.claim(again(lease)))
        looks = [] if kind == "moto" else [GET]
        assert (lease.journal, wire.taken()) == (INTENT, [UPDATE, *looks, UPDATE])
        assert "expiry" not in raw(store)
        clock.advance(2 * DAY)
    store.fail(lease, "boom")
    assert found(store).expires_at - clock() >= DAY
    wire.taken()
    lease = won(store.claim(again(lease)))
    assert (lease.journal, wire.taken()) == (INTENT, [UPDATE])
    assert "expiry" in raw(store)


def test_S13_failure_that_holds_an_item_takes_its_expiry(store):
    lease = noted(store)
    assert "expiry" in raw(store)
    store.fail(lease, "boom", held=True)
    assert "expiry" not in raw(store)


def test_S13_process_that_dies_after_the_first_write_of_a_claim_leaves_the_hold(store, monkeypatch):
    lease = noted(store, [INTENT])
    store.fail(lease, "boom", held=True)
    before = raw(store)

    def dies(**call):
        raise SystemExit

    once(store, "update", lambda: once(store, "update", dies))
    with pytest.raises(SystemExit):
        store.claim(again(lease))

    assert raw(store) == before


@both_servers
@pytest.mark.parametrize("ends", [True, False])
def test_S13_hold_that_ends_between_the_two_writes_of_a_claim(store, clock, ends):
    owner = won(store.claim(asked(lease=timedelta(seconds=1), steps=True)))
    store.note(owner, INTENT, duration=timedelta(0), held=True)
    clock.advance(timedelta(seconds=1))

    def note():
        store.note(owner, journal.withdrawn("charge"), duration=timedelta(0), held=not ends)

    once(store, "update", lambda: once(store, "update", note))
    lease = won(store.claim(again(owner)))

    assert lease.journal == INTENT + journal.withdrawn("charge")
    assert found(store).held is not ends


def test_S13_item_that_waits_for_an_operator_is_claimed_without_a_hold_where_nothing_is_noted(
    store, clock
):
    for fingerprints in ((FINGERPRINT,), (OTHER_FINGERPRINT, FINGERPRINT)):
        assert store.erase(record_id(), force=True)
        lease = won(store.claim(asked(on_stale="refuse", lease=HOUR, steps=True)))
        clock.advance(2 * HOUR)
        request = again(lease, on_stale="take_over", fingerprints=fingerprints)
        assert won(store.claim(request)).journal is None
        assert not found(store).held


@pytest.mark.parametrize("held", [True, False])
def test_S8_S13_journal_under_an_older_secret_goes_on_and_is_held_as_it_was(store, held):
    store.fail(noted(store), "boom", held=held)
    request = asked(fingerprints=(OTHER_FINGERPRINT, FINGERPRINT), steps=True)
    assert won(store.claim(request)).journal == ENTRY
    assert (found(store).fingerprint, found(store).held) == (FINGERPRINT, held)


@both_servers
def test_S18_decision_to_resume_is_one_look_and_one_write(store, clock, wire):
    store.fail(noted(store, [INTENT]), "boom")
    wire.taken()
    assert resume(store)
    assert wire.taken() == [GET, GET, UPDATE]  # the first is of the operator
    assert "expiry" not in raw(store)
    assert raw(store)["steps"] == {"L": [{"B": INTENT}]}
    assert resume(store, step="charge", result=b"paid", retention=2 * HOUR)
    assert raw(store)["steps"] == {"L": [{"B": INTENT}, {"B": journal.entry("charge", b"paid")}]}
    assert "responsePayload" not in raw(store)
    expires_at = found(store).expires_at
    assert timedelta(0) <= expires_at - clock() - 2 * HOUR < timedelta(seconds=1)


@both_servers
@pytest.mark.parametrize("entries", [[ORDER], []], ids=["noted", "nothing noted"])
@pytest.mark.parametrize("decided", [{}, {"step": "mail", "not_done": True}], ids=["go on", "mail"])
def test_S18_note_between_the_look_and_the_write_of_a_decision_to_resume(store, entries, decided):
    lease = noted(store, entries)

    def note():
        store.note(lease, INTENT, duration=HOUR, held=True)

    once(store, "update", note)
    assert not resume(store, force=True, **decided)

    assert found(store).steps == b"".join(entries) + INTENT
    assert (found(store).state, found(store).held) == (State.IN_PROGRESS, True)
    assert resume(store, force=True, **decided)
    assert (found(store).state, found(store).held) == (State.FAILED, True)


@both_servers
@pytest.mark.parametrize(("number", "size"), [(300, 200), (20, 4096), (3, 75_000)])
def test_S1_large_journal_comes_back_whole(store, number, size):
    comes_back_whole(store, number, size)


@pytest.mark.parametrize("kind", ["dynalite"])
def test_S2_note_for_which_an_item_has_no_room_is_an_error_that_changes_nothing(store):
    lease = noted(store)
    before = raw(store)
    with pytest.raises(StoreError) as raised:
        store.note(lease, bytes(400 * 1024), duration=2 * HOUR, held=False)
    assert (raised.value.code, raw(store)) == ("ValidationException", before)


@pytest.mark.parametrize(
    "value", [{"S": "text"}, {"L": [{"S": "text"}]}, {"B": b"bytes"}, {"NULL": True}], ids=str
)
def test_R95_S16_forged_journal_is_an_error(store, value):
    lease = won(store.claim(asked(steps=True)))
    store.fail(lease, "boom")
    put(store, steps=value)
    for call in (lambda: store.get(record_id()), lambda: store.claim(again(lease))):
        with pytest.raises(StoreError, match="damaged"):
            call()


def test_S9_expired_item_is_replaced_without_its_journal(store, clock, wire):
    lease = noted(store)
    store.fail(lease, "boom")
    clock.advance(2 * DAY)
    wire.taken()
    assert won(store.claim(again(lease))).journal is None
    assert wire.taken() == [UPDATE, PUT]
    assert "steps" not in raw(store)


@pytest.mark.parametrize("by_hand", [False, True])
def test_S9_large_result_drops_the_journal(make_store, storage, by_hand):
    store = make_store(overflow_storage="overflow")
    lease = noted(store)
    large = bytes(2**20)
    if by_hand:
        seen = {"epoch": lease.fencing_token, "state": State.IN_PROGRESS, "force": True}
        assert store.resolve(record_id(), Resolution("complete", result=large, **seen))
    else:
        store.complete(lease, large, retention=HOUR)
    item = raw(store)
    assert (found(store).result, "steps" in item) == (large, False)
    assert set(item["responsePayload"]["M"]) == {"name", "sha256"}
