"""The part of the store contract about steps: what is noted of them, and who gets the notes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from django_idempotency import journal, keys
from django_idempotency.claims import Decision, Resolution, decide
from django_idempotency.exceptions import LeaseLost
from django_idempotency.leases import Lease
from django_idempotency.records import Record, State
from django_idempotency.stores.base import BaseStore
from django_idempotency.testing.contract_base import (
    HOUR,
    OTHER_FINGERPRINT,
    needs,
    unchanged,
)
from django_idempotency.testing.contract_endings import EndingRules, losses, parts
from django_idempotency.testing.contract_lost_answers import LostAnswerRules
from django_idempotency.testing.contract_races import RaceRules

MINUTES = timedelta(minutes=5)
#: The payloads of two steps, and their entries.
PAYLOADS = {"first": bytes(range(256)), "second": b"\xff\0"}
ENTRIES = tuple(journal.entry(name, payload) for name, payload in PAYLOADS.items())
JOURNAL = b"".join(ENTRIES)
#: What a store may spoil.
BYTES = {
    "all": bytes(range(256)),
    "NUL first": b"\0entry",
    "not UTF-8": b"\xff\xfe\x80",
    "hostile": b"\x00'\"{}$1%s\\\xff\n",
    "64 KiB": bytes(range(256)) * 256,
}
resuming = pytest.mark.parametrize("ending", ["lapsed", "failed"])


class Raised(Exception):
    """What ends the transaction of a step."""


class StepRules(EndingRules, LostAnswerRules, RaceRules):
    """What a note does to a record, and what becomes of it."""

    def noted(self, store: BaseStore, ending: str = "live", **fields: Any) -> Lease:
        """Return a lease under which two steps were noted; it is live, or was ended so."""
        lease = self.live(store, steps=True, **fields)
        duration = self.moment if ending == "lapsed" else HOUR
        for entry in ENTRIES:
            store.note(lease, entry, duration=duration, held=False)
        if ending == "lapsed":
            self.lapse(store, lease)
        elif ending != "live":
            self.end(store, lease, ending)
        return lease

    def noted_and_expired(self, store: BaseStore, ending: str) -> Lease:
        """Return such a lease on a record that has expired."""
        short = 4 * self.moment
        while True:
            fields = {"lease": short, "retention": short, "max_duration": timedelta(0)}
            lease = self.live(store, steps=True, **fields)
            try:
                store.note(lease, JOURNAL, duration=self.moment, held=False)  # it lapses first
            except LeaseLost:  # it had expired before, and the server has deleted it
                assert short.total_seconds() < self.patience, "the lease was lost"
                short *= 2
                continue
            if ending == "failed":
                self.end(store, lease, ending)
            self.expire(store, lease)
            return lease

    # What was noted.

    @needs("steps")
    @pytest.mark.parametrize("entry", list(BYTES.values()), ids=list(BYTES))
    def test_S1_next_claim_gets_what_was_noted_byte_for_byte(
        self, store: BaseStore, entry: bytes
    ) -> None:
        assert store.supports_steps
        lease = self.live(store, steps=True)

        for noted in (entry, b"second"):
            store.note(lease, noted, duration=HOUR, held=False)

        store.fail(lease, "builtins.RuntimeError")
        retry = self.won(store.claim(self.again(lease.request)))
        # Not in one assert: pytest would draw up the difference.
        is_kept = retry.journal == entry + b"second"
        assert is_kept

    @needs("steps")
    def test_S1_notes_of_each_attempt_follow_those_of_the_last(self, store: BaseStore) -> None:
        lease = self.noted(store, "failed")
        for number in (2, 3):
            lease = self.won(store.claim(self.again(lease.request)))
            store.note(lease, b"%d" % number, duration=self.moment, held=False)
            self.lapse(store, lease)

        last = self.won(store.claim(self.again(lease.request)))

        assert last.journal == JOURNAL + b"23"
        assert self.record(store, last).steps == last.journal

    @needs("steps")
    @pytest.mark.parametrize("seen_by", ["get", "browse", "peek", "refused claim"])
    def test_S15_journal_is_shown(self, store: BaseStore, seen_by: str) -> None:
        lease = self.noted(store)
        if seen_by == "get":
            record: Record | None = store.get(lease.record_id)
        elif seen_by == "peek":
            record = store.peek([lease.record_id])[lease.record_id]
        elif seen_by == "browse":
            [record] = store.browse(filters={"record_id": lease.record_id}).records
        else:
            record = self.refused(store.claim(self.again(lease.request)))

        assert record is not None
        assert record.steps == JOURNAL

    @needs("steps")
    def test_S15_page_shows_journals(self, store: BaseStore) -> None:
        operation = f"steps {self.noted(store).token}"
        leases = {self.noted(store, operation=operation).record_id for _ in range(3)}

        records = store.browse(filters={"operation": operation}).records

        assert {record.record_id: record.steps for record in records} == dict.fromkeys(
            leases, JOURNAL
        )

    @needs("steps")
    def test_S16_journal_of_a_claim_can_be_read(self, store: BaseStore) -> None:
        lease = self.noted(store, "failed")

        retry = self.won(store.claim(self.again(lease.request)))

        assert list(journal.read(retry.journal).results.items()) == list(PAYLOADS.items())

    # The proof.

    @needs("steps")
    @losses
    def test_S2_late_note_is_refused(self, store: BaseStore, loss: str) -> None:
        lease, before = self.lost(store, loss)

        with pytest.raises(LeaseLost) as raised:
            store.note(lease, ENTRIES[0], duration=HOUR, held=False)

        # An expired record may be deleted at any time, and then it is gone.
        assert not raised.value.gone or before is None or before.expired
        assert unchanged(before, store.get(lease.record_id))

    @needs("steps")
    @pytest.mark.parametrize("ending", ["completed", "failed", "released"])
    def test_S2_ended_lease_notes_nothing(self, store: BaseStore, ending: str) -> None:
        lease = self.ended(store, ending)
        before = self.record(store, lease)

        with pytest.raises(LeaseLost) as raised:
            store.note(lease, ENTRIES[0], duration=HOUR, held=False)

        assert not raised.value.gone
        assert unchanged(before, self.record(store, lease))

    @needs("steps")
    @parts
    def test_S2_proof_of_a_note_is_the_epoch_and_the_token(
        self, store: BaseStore, part: str
    ) -> None:
        lease, other = self.live(store), self.live(store)
        before = [self.record(store, lease), self.record(store, other)]
        epoch, request = lease.fencing_token, lease.request
        if part == "record_id":
            request = replace(other.request, token=lease.token)
        elif part == "epoch":
            epoch += 1
        else:
            request = replace(request, token=keys.new_token())

        with pytest.raises(LeaseLost):
            store.note(Lease(request, epoch), ENTRIES[0], duration=HOUR, held=False)

        assert unchanged(before[0], self.record(store, lease))
        assert unchanged(before[1], self.record(store, other))

    @needs("steps")
    def test_S2_lapsed_lease_that_nobody_took_notes(self, store: BaseStore) -> None:
        lease = self.lapsed(store, steps=True)

        store.note(lease, JOURNAL, duration=HOUR, held=False)

        told = self.refused(store.claim(self.again(lease.request)))
        assert (told.live, told.steps) == (True, JOURNAL)

    @needs("steps", "deletion")
    def test_S2_note_in_a_record_that_is_gone_says_so(self, store: BaseStore) -> None:
        lease = self.gone(store)

        with pytest.raises(LeaseLost) as raised:
            store.note(lease, ENTRIES[0], duration=HOUR, held=False)

        assert raised.value.gone
        assert store.get(lease.record_id) is None

    @needs("steps")
    @pytest.mark.parametrize("force", [False, True])
    def test_S14_erasure_leaves_no_journal(self, store: BaseStore, force: bool) -> None:
        lease = self.noted(store, "live" if force else "failed")

        assert store.erase(lease.record_id, force=force)

        with pytest.raises(LeaseLost) as raised:
            store.note(lease, ENTRIES[0], duration=HOUR, held=False)
        assert raised.value.gone
        first = self.won(store.claim(self.again(lease.request)))
        assert (first.journal, self.record(store, first).steps) == (None, None)

    # The lease, and the record's lifetime.

    @needs("steps")
    def test_S3_note_extends_the_lease_and_changes_nothing_else(self, store: BaseStore) -> None:
        lease = self.live(store, lease=MINUTES, operation="POST payments")
        before = self.record(store, lease)
        self.pass_time(store, lease.record_id, before.now + self.moment)

        store.note(lease, JOURNAL, duration=HOUR, held=False)

        record = self.record(store, lease)
        assert record.lease_until is not None
        lasts = record.lease_until - HOUR
        assert before.now + self.moment - self.precision <= lasts <= record.now + self.precision
        expected = replace(before, steps=JOURNAL, lease_until=record.lease_until)
        assert unchanged(replace(expected, expires_at=record.expires_at), record)

    @needs("steps")
    def test_S3_duration_of_a_note_may_be_seconds(self, store: BaseStore) -> None:
        lease = self.live(store)

        store.note(lease, JOURNAL, duration=5400, held=False)  # type: ignore[arg-type]

        record = self.record(store, lease)
        assert record.lease_until is not None
        assert abs(record.lease_until - record.now - 1.5 * HOUR) < timedelta(minutes=1)

    @needs("steps")
    @pytest.mark.parametrize("held_before", [False, True])
    def test_S4_note_leaves_half_of_the_lifetime(self, store: BaseStore, held_before: bool) -> None:
        short = 30 * self.moment
        lease = self.live(store, lease=self.moment, retention=short, max_duration=timedelta(0))
        lifetime = lease.request.lifetime
        assert store.renew([lease], HOUR) == {lease}  # beyond the expiry, so that it lives
        first = self.record(store, lease).expires_at
        assert first is not None
        if held_before:
            store.note(lease, ENTRIES[0], duration=HOUR, held=True)
            assert self.record(store, lease).expires_at is None
        self.pass_time(store, lease.record_id, first - 0.3 * lifetime)
        before = self.record(store, lease)

        store.note(lease, ENTRIES[1], duration=HOUR, held=False)

        record = self.record(store, lease)
        assert record.expires_at is not None
        least = before.now + lifetime / 2 - timedelta(milliseconds=2)
        assert least <= record.expires_at <= record.now + lifetime + self.precision

    @needs("steps")
    def test_S4_note_leaves_time_for_the_longest_step(self, store: BaseStore) -> None:
        """However short the retention is: a step that fails at its end leaves its notes."""
        short = self.moment
        lease = self.live(store, steps=True, lease=HOUR, retention=short, max_duration=HOUR)
        claimed = self.record(store, lease)
        self.pass_time(store, lease.record_id, claimed.now + 2 * self.moment)
        before = self.record(store, lease)

        store.note(lease, JOURNAL, duration=HOUR, held=False)

        record = self.record(store, lease)
        assert record.expires_at is not None
        assert record.expires_at - before.now >= 2 * HOUR - timedelta(milliseconds=2)

    # The transaction of a step.

    @needs("steps", "join")
    @pytest.mark.parametrize("fails", [False, True])
    def test_S5_note_is_committed_with_the_work(self, store: BaseStore, fails: bool) -> None:
        lease = self.live(store, steps=True)
        before = self.record(store, lease)

        try:
            with store.atomic():
                store.note(lease, JOURNAL, duration=HOUR, held=False)
                if fails:
                    raise Raised
        except Raised:
            pass

        record = self.record(store, lease)
        assert unchanged(before, record) if fails else record.steps == JOURNAL

    @needs("steps", "join", "writers")
    def test_S6_claim_does_not_wait_for_a_note_to_commit(self, store: BaseStore) -> None:
        lease = self.lapsed(store, steps=True)
        request = self.again(lease.request, lease=HOUR)

        with store.atomic():
            store.fence(lease)
            store.note(lease, JOURNAL, duration=self.moment, held=False)
            begun = time.monotonic()
            [told] = self.together(store, [partial(store.claim, request)])
            took = time.monotonic() - begun

        assert took < self.at_once
        assert decide(self.refused(told), request) is Decision.IN_PROGRESS
        self.lapse(store, lease)
        assert self.won(store.claim(self.again(request))).journal == JOURNAL

    # Notes and claims that meet.

    @needs("steps", "interleavings")
    @pytest.mark.parametrize("resumes", [True, False])
    @pytest.mark.parametrize("before", ["lapsed", "failed"])
    def test_S7_S10_claim_finds_what_was_noted_before_it_writes(
        self, store: BaseStore, before: str, resumes: bool
    ) -> None:
        owner = self.ended(store, before, steps=True)
        request = self.again(owner.request, lease=HOUR, steps=resumes)

        def note() -> None:
            lease = owner
            if before == "failed":
                lease = self.won(store.claim(self.again(owner.request)))
            store.note(lease, JOURNAL, duration=HOUR, held=False)
            store.fail(lease, "builtins.RuntimeError")

        with self.between_read_and_write(store, lambda: self.together(store, [note])):
            told = store.claim(request)

        if resumes:
            assert self.won(told).journal == JOURNAL
        else:
            assert decide(self.refused(told), request) is Decision.STALE
        assert self.record(store, owner).steps == JOURNAL

    @needs("steps")
    def test_S2_S7_no_note_is_lost_in_a_take_over(self, store: BaseStore) -> None:
        def refused(lease: Lease) -> bool:
            try:
                store.note(lease, JOURNAL, duration=timedelta(0), held=False)
            except LeaseLost:
                return True
            return False

        for number, lease in enumerate(self.lapsed_ones(store)):
            claim = partial(store.claim, self.again(lease.request, lease=HOUR, steps=True))
            order = -1 if number % 2 else 1  # who comes first is ahead by a little
            calls: list[Callable[[], Any]] = [partial(refused, lease), claim]

            was_refused, claimed = self.together(store, calls[::order])[::order]

            noted = None if was_refused else JOURNAL
            assert self.record(store, lease).steps == noted
            if isinstance(claimed, Lease):
                assert claimed.journal == noted
                assert store.renew([claimed], HOUR) == {claimed}, "the take-over is undone"
            else:
                assert noted is not None

    @needs("steps")
    def test_S17_notes_of_many_threads_all_land(self, store: BaseStore) -> None:
        lease = self.live(store, steps=True)

        def note_all(thread: int) -> None:
            for number in range(self.thread_keys):
                entry = journal.entry(f"{thread}-{number}", b"\0")
                store.note(lease, entry, duration=HOUR, held=False)

        self.together(store, [partial(note_all, thread) for thread in range(self.threads)])

        names = list(journal.read(self.record(store, lease).steps).results)
        assert len(names) == self.threads * self.thread_keys
        for thread in range(self.threads):  # those of a thread in their order
            own = [name for name in names if name.startswith(f"{thread}-")]
            assert own == [f"{thread}-{number}" for number in range(self.thread_keys)]

    @needs("steps")
    def test_S19_renewals_and_notes_that_meet_lose_nothing(self, store: BaseStore) -> None:
        lease = self.live(store, steps=True)

        def note_all() -> None:
            for number in range(self.thread_keys):
                store.note(lease, b"%03d" % number, duration=HOUR, held=False)

        def renew_all() -> list[set[Lease]]:
            return [store.renew([lease], HOUR) for _ in range(self.thread_keys)]

        _, renewed = self.together(store, [note_all, renew_all])

        assert all(held == {lease} for held in renewed)
        record = self.record(store, lease)
        assert record.steps == b"".join(b"%03d" % number for number in range(self.thread_keys))
        assert record.live
        assert store.renew([lease], HOUR) == {lease}
        assert self.record(store, lease).steps == record.steps

    # Who gets the journal.

    @needs("steps")
    @resuming
    def test_S8_same_request_gets_the_journal(self, store: BaseStore, ending: str) -> None:
        lease = self.noted(store, ending)

        retry = self.won(store.claim(self.again(lease.request)))

        assert retry.journal == JOURNAL
        assert (retry.takeover, self.record(store, retry).attempts) == (ending == "lapsed", 2)

    @needs("steps")
    @pytest.mark.parametrize("before", ["absent", "lapsed", "failed", "released", "expired"])
    def test_S8_there_is_no_journal_where_nothing_was_noted(
        self, store: BaseStore, before: str
    ) -> None:
        request = self.asked(steps=True)
        if before != "absent":
            ended = self.expired(store) if before == "expired" else self.ended(store, before)
            request = self.again(ended.request, lease=HOUR, retention=HOUR, steps=True)

        lease = self.won(store.claim(request))

        assert (lease.journal, self.record(store, lease).steps) == (None, None)

    @needs("steps")
    @pytest.mark.parametrize("steps", [True, False])
    @resuming
    def test_S8_journal_of_an_expired_record_is_forgotten(
        self, store: BaseStore, ending: str, steps: bool
    ) -> None:
        lease = self.noted_and_expired(store, ending)

        first = self.won(store.claim(self.again(lease.request, lease=HOUR, steps=steps)))

        assert (first.journal, self.record(store, first).steps) == (None, None)

    @needs("steps")
    def test_S8_other_fingerprint_gets_no_journal(self, store: BaseStore) -> None:
        lease = self.noted(store, "failed")
        before = self.record(store, lease)
        request = self.again(lease.request, fingerprints=(OTHER_FINGERPRINT,))

        told = self.refused(store.claim(request))

        assert decide(told, request) is Decision.MISMATCH
        assert unchanged(before, self.record(store, lease))

    @needs("steps")
    @pytest.mark.parametrize("steps", [True, False])
    @pytest.mark.parametrize("ending", ["completed", "released"])
    def test_S9_ending_drops_the_journal(self, store: BaseStore, ending: str, steps: bool) -> None:
        lease = self.noted(store, ending)
        assert self.record(store, lease).steps is None

        claimed = store.claim(self.again(lease.request, steps=steps))

        if ending == "completed":
            assert self.refused(claimed).result == b"result"
        else:
            assert self.won(claimed).journal is None

    @needs("steps")
    def test_S9_failure_keeps_the_journal(self, store: BaseStore) -> None:
        lease = self.noted(store, "failed")

        assert self.record(store, lease).steps == JOURNAL

    @needs("steps")
    @pytest.mark.parametrize("action", ["release", "complete", "expire"])
    @resuming
    def test_S9_operator_drops_the_journal(
        self, store: BaseStore, ending: str, action: str
    ) -> None:
        lease = self.noted(store, ending)
        seen = self.record(store, lease)
        result = b"operator" if action == "complete" else None

        assert store.resolve(
            lease.record_id, Resolution(action, seen.epoch, seen.state, result=result)
        )

        record = store.get(lease.record_id)
        assert record is None or record.steps is None
        claimed = store.claim(self.again(lease.request))
        if action == "complete":
            assert self.refused(claimed).result == result
        else:
            assert self.won(claimed).journal is None

    @needs("steps")
    @resuming
    def test_S10_request_without_steps_does_not_claim_a_journal(
        self, store: BaseStore, ending: str
    ) -> None:
        lease = self.noted(store, ending)
        before = self.record(store, lease)
        request = self.again(lease.request, steps=False)

        told = self.refused(store.claim(request))

        assert decide(told, request) is Decision.STALE
        assert unchanged(before, self.record(store, lease))
        assert self.won(store.claim(self.again(lease.request))).journal == JOURNAL

    @needs("steps")
    @resuming
    def test_S10_record_without_notes_is_for_any_request(
        self, store: BaseStore, ending: str
    ) -> None:
        lease = self.ended(store, ending, steps=True)

        self.won(store.claim(self.again(lease.request, steps=False)))

    # Sent again.

    @needs("steps")
    @resuming
    def test_S11_claim_that_is_sent_again_gets_the_journal(
        self, store: BaseStore, ending: str
    ) -> None:
        request = self.again(self.noted(store, ending).request)
        first = self.won(store.claim(request))

        again = self.won(store.claim(request))

        assert again.journal == first.journal == JOURNAL
        assert again.fencing_token == first.fencing_token

    @needs("steps", "lost answers")
    @resuming
    def test_S11_claim_whose_answer_is_lost_gets_the_journal(
        self, store: BaseStore, ending: str
    ) -> None:
        request = self.again(self.noted(store, ending).request)

        lease = self.won(self.unanswered(store, lambda: store.claim(request)))

        assert lease.journal == JOURNAL

    @needs("steps")
    def test_S12_note_that_is_sent_again_means_the_same(self, store: BaseStore) -> None:
        lease = self.live(store, steps=True)

        for entry in (ENTRIES[0], ENTRIES[0], *ENTRIES):
            store.note(lease, entry, duration=HOUR, held=False)

        steps = self.record(store, lease).steps
        assert list(journal.read(steps).results.items()) == list(PAYLOADS.items())

    @needs("steps", "lost answers")
    def test_S12_note_whose_answer_is_lost_is_kept(self, store: BaseStore) -> None:
        lease = self.live(store, steps=True)

        self.unanswered(store, lambda: store.note(lease, ENTRIES[0], duration=HOUR, held=False))

        record = self.record(store, lease)
        assert (record.state, list(journal.read(record.steps).results)) == (
            State.IN_PROGRESS,
            ["first"],
        )
