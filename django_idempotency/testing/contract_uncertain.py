"""The part of the store contract about uncertain calls: records that are held, and `resume`."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from django_idempotency import journal
from django_idempotency.claims import RESOLUTIONS, Resolution
from django_idempotency.exceptions import LeaseLost, StoreError
from django_idempotency.leases import Lease
from django_idempotency.records import State
from django_idempotency.stores.base import BaseStore
from django_idempotency.testing.contract_base import (
    HOUR,
    OTHER_FINGERPRINT,
    needs,
    unchanged,
)
from django_idempotency.testing.contract_steps import ENTRIES, StepRules, resuming

#: A call, the payload of its result, and the journal in which it is uncertain.
CALL, ANSWER = "charge", b"\0answer"
INTENT, RESULT, WITHDRAWN = (
    journal.intent(CALL),
    journal.entry(CALL, ANSWER),
    journal.withdrawn(CALL),
)
UNCERTAIN = ENTRIES[0] + INTENT
OTHER_INTENT = journal.intent("mail")
#: What an operator can say of the call, and what that appends.
SAID: dict[str, tuple[dict[str, Any], bytes]] = {
    "go on": ({}, b""),
    "done": ({"step": CALL, "result": ANSWER}, RESULT),
    "not done": ({"step": CALL, "not_done": True}, WITHDRAWN),
}
#: A record that expires soon, unless it is held.
SHORT: dict[str, Any] = {"max_duration": timedelta(0)}
saying = pytest.mark.parametrize("said", list(SAID))


class UncertainRules(StepRules):
    """What holds while it is not known whether a call was made."""

    def uncertain(self, store: BaseStore, ending: str = "live", **fields: Any) -> Lease:
        """Return a lease under which a call is uncertain; it is live, or was ended so."""
        lease = self.live(store, steps=True, **fields)
        duration = self.moment if ending == "lapsed" else HOUR
        store.note(lease, ENTRIES[0], duration=HOUR, held=False)
        store.note(lease, INTENT, duration=duration, held=True)
        if ending == "lapsed":
            self.lapse(store, lease)
        elif ending == "failed":
            store.fail(lease, "builtins.RuntimeError", held=True)
        return lease

    def outlives(self, store: BaseStore, lease: Lease) -> None:
        """Fail unless the record stays as it is for longer than a `moment`, and over a sweep."""
        before = self.record(store, lease)
        assert before.held
        self.pass_time(store, lease.record_id, before.now + 3 * self.moment)
        while store.sweep():
            pass
        assert unchanged(before, self.record(store, lease))

    def expires(self, store: BaseStore, lease: Lease) -> None:
        """Fail unless the record expires, and any request is the first one then."""
        self.expire(store, lease)
        request = self.again(lease.request, fingerprints=(OTHER_FINGERPRINT,), lease=HOUR)
        first = self.won(store.claim(request))
        assert (first.journal, self.record(store, first).attempts) == (None, 1)

    def resume(self, store: BaseStore, lease: Lease, said: str = "go on", **decided: Any) -> bool:
        """Ask for what an operator decided, who saw the record as it is."""
        seen = self.record(store, lease)
        decided = {"epoch": seen.epoch, "state": seen.state, **SAID[said][0], **decided}
        return store.resolve(lease.record_id, Resolution("resume", **decided))

    # The intents in a journal.

    @needs("steps")
    @pytest.mark.parametrize(
        ("entries", "results", "uncertain"),
        [
            ([INTENT], {}, (CALL,)),
            ([INTENT, RESULT], {CALL: ANSWER}, ()),
            ([INTENT, WITHDRAWN], {}, ()),
            ([INTENT, OTHER_INTENT, WITHDRAWN], {}, ("mail",)),
        ],
    )
    def test_S12_intent_that_is_sent_again_means_the_same(
        self,
        store: BaseStore,
        entries: list[bytes],
        results: dict[str, bytes],
        uncertain: tuple[str, ...],
    ) -> None:
        lease = self.live(store, steps=True)

        for entry in entries:
            for _ in range(2):
                store.note(lease, entry, duration=HOUR, held=bool(uncertain))

        record = self.record(store, lease)
        assert journal.read(record.steps) == (results, uncertain)
        assert record.held is bool(uncertain)

    # Held records.

    @needs("steps")
    @pytest.mark.parametrize("ending", ["lapsed", "failed", "renewed"])
    def test_S13_held_record_outlives_its_retention(self, store: BaseStore, ending: str) -> None:
        lease = self.uncertain(store, ending, retention=self.moment, **SHORT)
        if ending == "renewed":
            assert store.renew([lease], self.moment) == {lease}
            self.lapse(store, lease)

        self.outlives(store, lease)

    @needs("steps")
    @resuming
    def test_S13_claim_does_not_end_a_hold(self, store: BaseStore, ending: str) -> None:
        first = self.uncertain(store, ending)
        short = {"lease": self.moment, "retention": self.moment, **SHORT}
        request = self.again(first.request, **short)

        for _ in range(2):  # also when it is sent again
            retry = self.won(store.claim(request))
            assert retry.journal == UNCERTAIN
            assert self.record(store, retry).held

        self.lapse(store, retry)
        self.outlives(store, retry)
        store.fail(retry, "builtins.RuntimeError", held=True)
        self.outlives(store, retry)

    @needs("steps", "lost answers")
    @resuming
    def test_S13_claim_whose_answer_is_lost_does_not_end_a_hold(
        self, store: BaseStore, ending: str
    ) -> None:
        request = self.again(self.uncertain(store, ending).request)

        lease = self.won(self.unanswered(store, lambda: store.claim(request)))

        assert lease.journal == UNCERTAIN
        assert self.record(store, lease).held

    @needs("steps", "interleavings")
    @pytest.mark.parametrize("begins", [True, False])
    def test_S7_S13_hold_that_changes_between_the_look_and_the_write_of_a_claim(
        self, store: BaseStore, begins: bool
    ) -> None:
        owner = self.lapsed(store, steps=True) if begins else self.uncertain(store, "lapsed")
        entry = INTENT if begins else WITHDRAWN

        def note() -> None:
            store.note(owner, entry, duration=HOUR, held=begins)
            store.fail(owner, "builtins.RuntimeError", held=begins)

        with self.between_read_and_write(store, lambda: self.together(store, [note])):
            retry = self.won(store.claim(self.again(owner.request)))

        assert retry.journal == (INTENT if begins else UNCERTAIN + WITHDRAWN)
        assert self.record(store, retry).held is begins

    @needs("steps")
    @pytest.mark.parametrize("ending", ["failed", "completed", "released"])
    def test_S13_ending_ends_a_hold(self, store: BaseStore, ending: str) -> None:
        lease = self.uncertain(store, retention=self.moment, **SHORT)

        self.end(store, lease, ending, retention=self.moment)

        self.expires(store, lease)

    @needs("steps")
    def test_S13_note_ends_a_hold(self, store: BaseStore) -> None:
        lease = self.uncertain(store)

        store.note(lease, RESULT, duration=HOUR, held=False)

        record = self.record(store, lease)
        assert (record.held, record.steps) == (False, UNCERTAIN + RESULT)

    @needs("steps")
    @pytest.mark.parametrize("action", ["release", "complete", "expire"])
    @resuming
    def test_S13_operator_ends_a_hold(self, store: BaseStore, ending: str, action: str) -> None:
        lease = self.uncertain(store, ending)
        seen = self.record(store, lease)
        result = b"operator" if action == "complete" else None

        assert store.resolve(
            lease.record_id,
            Resolution(action, seen.epoch, seen.state, result=result, retention=self.moment),
        )

        self.expires(store, lease)

    # The decision to resume.

    @needs("steps")
    @saying
    @resuming
    def test_S18_resumed_record_is_failed_and_keeps_the_rest(
        self, store: BaseStore, ending: str, said: str
    ) -> None:
        lease = self.uncertain(store, ending)
        before = self.record(store, lease)
        self.pass_time(store, lease.record_id, before.now)

        assert self.resume(store, lease, said)

        record = self.record(store, lease)
        assert record.token != lease.token
        assert record.updated_at > before.updated_at
        assert record.held is (said == "go on")
        kept = {name: getattr(record, name) for name in ("token", "updated_at", "expires_at")}
        expected = replace(
            before,
            state=State.FAILED,
            epoch=lease.fencing_token + 1,
            steps=UNCERTAIN + SAID[said][1],
            lease_until=None,
            **kept,
        )
        assert unchanged(expected, record)

    @needs("steps")
    @pytest.mark.parametrize(
        ("said", "results", "uncertain"),
        [("go on", {}, (CALL,)), ("done", {CALL: ANSWER}, ()), ("not done", {}, ())],
    )
    def test_S18_next_claim_reads_what_the_operator_said(
        self, store: BaseStore, said: str, results: dict[str, bytes], uncertain: tuple[str, ...]
    ) -> None:
        lease = self.uncertain(store, "failed")
        assert self.resume(store, lease, said)
        resumed = self.record(store, lease)

        retry = self.won(store.claim(self.again(lease.request)))

        kept = journal.read(retry.journal)
        assert kept.results.items() - results.items() == {("first", bytes(range(256)))}
        assert (kept.results.items() >= results.items(), kept.uncertain) == (True, uncertain)
        assert (retry.fencing_token > resumed.epoch, retry.takeover) == (True, False)
        assert self.record(store, retry).attempts == 2

    @needs("steps")
    @pytest.mark.parametrize("said", ["done", "not done"])
    def test_S13_S18_record_is_held_until_its_last_call_is_settled(
        self, store: BaseStore, said: str
    ) -> None:
        lease = self.uncertain(store)
        store.note(lease, OTHER_INTENT, duration=HOUR, held=True)
        store.fail(lease, "builtins.RuntimeError", held=True)

        assert self.resume(store, lease, said, retention=self.moment)
        self.outlives(store, lease)

        assert self.resume(store, lease, step="mail", not_done=True, retention=self.moment)
        self.expires(store, lease)

    @needs("steps")
    @pytest.mark.parametrize("ending", ["lapsed", "failed", "lapsed for ever"])
    @saying
    def test_S18_resumed_record_without_a_journal_has_none(
        self, store: BaseStore, ending: str, said: str
    ) -> None:
        ending, _, for_ever = ending.partition(" ")
        lease = self.ended(store, ending, **({"on_stale": "refuse"} if for_ever else {}))

        assert self.resume(store, lease, said)

        record = self.record(store, lease)
        assert (record.state, record.steps, record.held) == (State.FAILED, None, False)
        assert self.won(store.claim(self.again(lease.request, steps=False))).journal is None

    @needs("steps")
    @pytest.mark.parametrize("is_noted", [True, False])
    def test_S18_resumed_record_lasts_for_the_retention(
        self, store: BaseStore, is_noted: bool
    ) -> None:
        lease = self.noted(store, "failed") if is_noted else self.ended(store, "failed")

        assert self.resume(store, lease, retention=3 * HOUR)

        record = self.record(store, lease)
        assert record.expires_at is not None
        assert abs(record.expires_at - record.updated_at - 3 * HOUR) <= self.precision

    @needs("steps")
    @saying
    @pytest.mark.parametrize("seen", ["epoch", "state"])
    def test_S18_operator_resumes_nothing_but_what_they_saw(
        self, store: BaseStore, said: str, seen: str
    ) -> None:
        lease = self.uncertain(store, "lapsed")
        before = self.record(store, lease)
        other = {"epoch": before.epoch - 1, "state": State.FAILED}

        assert not self.resume(store, lease, said, force=True, **{seen: other[seen]})

        assert unchanged(before, self.record(store, lease))

    @needs("steps")
    @saying
    def test_S18_live_lease_stands_against_it(self, store: BaseStore, said: str) -> None:
        lease = self.uncertain(store)
        before = self.record(store, lease)

        assert not self.resume(store, lease, said)

        assert unchanged(before, self.record(store, lease))

    @needs("steps")
    @saying
    @pytest.mark.parametrize("ending", ["live", "lapsed"])
    def test_S18_late_owner_of_a_resumed_record_writes_nothing(
        self, store: BaseStore, ending: str, said: str
    ) -> None:
        lease = self.uncertain(store, ending)
        assert self.resume(store, lease, said, force=ending == "live")
        before = self.record(store, lease)

        with pytest.raises(LeaseLost) as noted:
            store.note(lease, RESULT, duration=HOUR, held=False)
        with pytest.raises(LeaseLost) as completed:
            store.complete(lease, b"late", retention=HOUR)
        store.fail(lease, "late")
        store.release(lease)
        assert store.renew([lease], HOUR) == set()

        assert (noted.value.gone, completed.value.gone) == (False, False)
        assert unchanged(before, self.record(store, lease))

    @needs("steps")
    @pytest.mark.parametrize("action", RESOLUTIONS)
    def test_S18_decision_is_about_the_journal_that_the_operator_saw(
        self, store: BaseStore, action: str
    ) -> None:
        lease = self.uncertain(store, "live")
        for entry in (WITHDRAWN, INTENT):  # the same call begins anew
            store.note(lease, entry, duration=HOUR, held=True)
        before = self.record(store, lease)
        result = b"" if action == "complete" else None

        def decided(*seen: bytes) -> bool:
            resolution = Resolution(action, before.epoch, before.state, True, result)
            noted = len(b"".join(seen))
            return store.resolve(lease.record_id, replace(resolution, noted=noted))

        assert not decided(UNCERTAIN)
        assert unchanged(before, self.record(store, lease))
        assert decided(UNCERTAIN, WITHDRAWN, INTENT)

    @needs("steps")
    @saying
    @resuming
    def test_S18_expired_record_is_not_resumed(
        self, store: BaseStore, ending: str, said: str
    ) -> None:
        lease = self.noted_and_expired(store, ending)
        before = store.get(lease.record_id)
        state = State.FAILED if ending == "failed" else State.IN_PROGRESS
        resolution = Resolution("resume", lease.fencing_token, state, force=True, **SAID[said][0])

        assert not store.resolve(lease.record_id, resolution)

        assert unchanged(before, store.get(lease.record_id))

    @needs("steps")
    @saying
    def test_S16_S18_journal_that_cannot_be_read_is_not_resumed(
        self, store: BaseStore, said: str
    ) -> None:
        lease = self.live(store, steps=True)
        store.note(lease, b"\xff no entry", duration=HOUR, held=True)
        store.fail(lease, "builtins.RuntimeError", held=True)
        before = self.record(store, lease)

        with pytest.raises(StoreError):
            self.resume(store, lease, said)

        assert unchanged(before, self.record(store, lease))

    @needs("steps", "lost answers")
    @saying
    def test_S18_decision_whose_answer_is_lost_was_made_once(
        self, store: BaseStore, said: str
    ) -> None:
        lease = self.uncertain(store, "failed")

        with self.lose_answer(store):
            try:
                told = self.resume(store, lease, said)
            except StoreError:
                told = True  # so an operator looks again

        record = self.record(store, lease)
        assert told
        assert (record.epoch, record.steps) == (
            lease.fencing_token + 1,
            UNCERTAIN + SAID[said][1],
        )

    @needs("steps")
    @saying
    def test_S13_S18_what_is_noted_before_the_decision_holds_the_record(
        self, store: BaseStore, said: str
    ) -> None:
        def refused(lease: Lease) -> bool:
            try:
                store.note(lease, OTHER_INTENT, duration=timedelta(0), held=True)
            except LeaseLost:
                return True
            return False

        for number, lease in enumerate(self.lapsed_ones(store)):
            order = -1 if number % 2 else 1  # who comes first is ahead by a little
            resolution = Resolution(
                "resume", lease.fencing_token, State.IN_PROGRESS, **SAID[said][0]
            )
            calls = [partial(refused, lease), partial(store.resolve, lease.record_id, resolution)]

            was_refused, resumed = self.together(store, calls[::order])[::order]

            record = self.record(store, lease)
            assert record.state is (State.FAILED if resumed else State.IN_PROGRESS)
            assert resumed or not was_refused
            assert record.held is not was_refused
            assert bool(journal.read(record.steps).uncertain) is not was_refused
