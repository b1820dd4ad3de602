"""The part of the store contract about onlookers: get, browse, resolve, and damaged records."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta, timezone
from typing import Any
from uuid import uuid4

import pytest

from django_idempotency import journal, keys
from django_idempotency.claims import RESOLUTIONS, Resolution
from django_idempotency.exceptions import LeaseLost, StoreError
from django_idempotency.leases import Lease
from django_idempotency.records import Filters, Record, State
from django_idempotency.stores.base import BaseStore
from django_idempotency.testing.contract_base import (
    ENDED,
    HOUR,
    OTHER_FINGERPRINT,
    ContractBase,
    needs,
    unchanged,
)

DAY = timedelta(days=1)

actions = pytest.mark.parametrize("action", RESOLUTIONS)
forced = pytest.mark.parametrize("force", [False, True], ids=["", "forced"])


class OperatorRules(ContractBase):
    """What those see and may do who own nothing."""

    # Get.

    def test_get_of_an_unknown_record_is_none(self, store: BaseStore) -> None:
        assert store.get(keys.new_token()) is None

    def test_get_is_what_a_refused_claim_is_told(self, store: BaseStore) -> None:
        lease = self.ended(store, "completed", operation="POST payments")

        told = self.refused(store.claim(self.again(lease.request)))

        assert unchanged(told, store.get(lease.record_id))

    # Damage.

    @needs("damage")
    def test_claim_of_a_damaged_record_is_an_error_and_never_a_lease(
        self, store: BaseStore
    ) -> None:
        lease = self.lapsed(store)
        self.corrupt(store, lease.record_id)

        with pytest.raises(StoreError) as raised:
            store.claim(self.again(lease.request))
        assert not raised.value.unreachable  # or FAIL_OPEN would run work that may be done (R61)

    @needs("damage")
    def test_get_of_a_damaged_record_is_an_error(self, store: BaseStore) -> None:
        lease = self.ended(store, "completed")
        self.corrupt(store, lease.record_id)

        with pytest.raises(StoreError):
            store.get(lease.record_id)

    # Browse.

    def some(self, store: BaseStore, number: int, **fields: Any) -> tuple[str, list[Lease]]:
        """
        Return a scope that has so many records, and their leases, the oldest first.

        Each of them has a record of another scope beside it.
        """
        scope = f"browse {uuid4()}"
        leases = []
        for _ in range(number):
            self.live(store)
            leases.append(self.live(store, scope=scope, **fields))
            last = self.record(store, leases[-1])
            self.pass_time(store, last.record_id, last.created_at + self.precision)
        return scope, leases

    def browsed(self, store: BaseStore, limit: int = 100, **filters: Any) -> list[Record]:
        """Return the records of all pages."""
        found: list[Record] = []
        cursors: list[str | None] = [None]
        asked = {name: filters.pop(name) for name in ("within", "results") if name in filters}
        while True:
            page = store.browse(
                filters=Filters(**filters), cursor=cursors[-1], limit=limit, **asked
            )
            assert len(page.records) <= limit
            found += page.records
            if page.cursor is None:
                return found
            assert page.cursor not in cursors, "browse goes round in circles"
            cursors.append(page.cursor)

    @pytest.mark.parametrize("limit", [1, 3, 7, 100])
    def test_browse_gives_each_record_once(self, store: BaseStore, limit: int) -> None:
        scope, leases = self.some(store, 7)

        found = self.browsed(store, limit, scope=scope)

        assert sorted(record.record_id for record in found) == sorted(
            lease.record_id for lease in leases
        )

    def test_browse_gives_whole_records(self, store: BaseStore) -> None:
        scope, [lease] = self.some(store, 1, operation="POST payments")
        store.complete(lease, b"result", retention=HOUR)

        [record] = self.browsed(store, scope=scope, results=True)

        assert unchanged(self.record(store, lease), record)

    def test_browse_gives_records_without_results_unless_asked(self, store: BaseStore) -> None:
        scope, [lease] = self.some(store, 1)
        store.complete(lease, b"result", retention=HOUR)

        [record] = self.browsed(store, scope=scope)

        assert unchanged(replace(self.record(store, lease), result=None), record)

    @pytest.mark.parametrize("within", [1, 2, 5])
    def test_browse_looks_at_so_many_records_and_says_where_it_ended(
        self, store: BaseStore, within: int
    ) -> None:
        scope, leases = self.some(store, 4)
        self.end(store, leases[0], "completed")

        page = store.browse(filters=Filters(scope=f"nobody's {uuid4()}"), within=within)
        found = self.browsed(store, scope=scope, state=State.COMPLETED, within=within)

        assert (page.records, page.cursor is None) == ((), False)  # of 8 records at least
        assert [record.record_id for record in found] == [leases[0].record_id]

    @needs("order")
    def test_browse_within_so_many_looks_at_the_newest(self, store: BaseStore) -> None:
        scope, leases = self.some(store, 3)

        page = store.browse(filters=Filters(scope=scope), within=3)

        newest = {lease.record_id for lease in leases[1:]}
        assert {record.record_id for record in page.records} <= newest
        assert page.records

    @needs("order")
    def test_browse_gives_the_newest_first(self, store: BaseStore) -> None:
        scope, leases = self.some(store, 7)

        found = self.browsed(store, 3, scope=scope)

        newest_first = [lease.record_id for lease in reversed(leases)]
        assert [record.record_id for record in found] == newest_first

    @needs("order")
    def test_browse_gives_no_record_twice_while_others_come(self, store: BaseStore) -> None:
        scope, leases = self.some(store, 6)
        first = store.browse(filters=Filters(scope=scope), limit=3)
        self.live(store, scope=scope)

        rest = store.browse(filters=Filters(scope=scope), cursor=first.cursor, limit=3)

        found = [record.record_id for record in (*first.records, *rest.records)]
        assert found == [lease.record_id for lease in reversed(leases)]

    @pytest.mark.parametrize("limit", [2, 100])
    def test_browse_gives_records_that_last_for_ever(self, store: BaseStore, limit: int) -> None:
        scope, leases = self.some(store, 5, on_stale="refuse")
        leases += [self.live(store, scope=scope) for _ in range(3)]  # they come after those

        found = self.browsed(store, limit, scope=scope)

        assert sorted(record.record_id for record in found) == sorted(
            lease.record_id for lease in leases
        )

    def test_browse_ends_where_nothing_is_found(self, store: BaseStore) -> None:
        self.live(store)

        assert self.browsed(store, scope=f"nobody's {uuid4()}") == []

    @pytest.mark.parametrize("state", list(State), ids=[state.value for state in State])
    def test_browse_by_state(self, store: BaseStore, state: State) -> None:
        scope, leases = self.some(store, 4)
        endings = {
            State.COMPLETED: "completed",
            State.FAILED: "failed",
            State.RELEASED: "released",
        }
        by_state = dict(zip([*endings, State.IN_PROGRESS], leases, strict=True))
        for ended, ending in endings.items():
            self.end(store, by_state[ended], ending)

        found = self.browsed(store, scope=scope, state=state)

        assert [record.record_id for record in found] == [by_state[state].record_id]

    def test_browse_by_staleness(self, store: BaseStore) -> None:
        scope = f"browse {uuid4()}"
        stale = self.lapsed(store, scope=scope)
        others = [self.live(store, scope=scope), self.ended(store, "completed", scope=scope)]

        found = [self.browsed(store, scope=scope, stale=value) for value in (True, False)]

        assert [record.record_id for record in found[0]] == [stale.record_id]
        assert {record.record_id for record in found[1]} == {lease.record_id for lease in others}

    @needs("steps")
    def test_S15_browse_by_hold(self, store: BaseStore) -> None:
        scope = f"browse {uuid4()}"
        held = [self.live(store, scope=scope, steps=True) for _ in range(2)]
        for lease in held:
            store.note(lease, journal.intent("charge"), duration=HOUR, held=True)
        store.fail(held[1], "builtins.RuntimeError", held=True)
        held.append(self.live(store, scope=scope, on_stale="refuse"))
        others = [self.ended(store, ending, scope=scope) for ending in ENDED]

        found = [self.browsed(store, 2, scope=scope, held=value) for value in (True, False)]

        assert {record.record_id for record in found[0]} == {lease.record_id for lease in held}
        assert {record.record_id for record in found[1]} == {lease.record_id for lease in others}

    @pytest.mark.parametrize("operation", ["POST payments", "'; DROP TABLE x; -- %s {}"])
    def test_browse_by_operation(self, store: BaseStore, operation: str) -> None:
        scope, [lease] = self.some(store, 1, operation=operation)
        self.live(store, scope=scope, operation="other")

        found = self.browsed(store, scope=scope, operation=operation)

        assert [record.record_id for record in found] == [lease.record_id]

    @pytest.mark.parametrize("key", ["key-1", "'; DROP TABLE x; -- %s {}", "KEY-1"])
    def test_browse_by_key(self, store: BaseStore, key: str) -> None:
        scope = f"browse {uuid4()}"
        lease = self.live(store, scope=scope, key=key)
        others = [self.live(store, key=key.swapcase()), self.live(store, scope=scope)]

        found = {record.record_id for record in self.browsed(store, key=key)}

        assert lease.record_id in found
        assert found.isdisjoint(other.record_id for other in others)

    @pytest.mark.parametrize("digits", [8, 12, 32])
    def test_browse_by_the_beginning_of_the_record_id(self, store: BaseStore, digits: int) -> None:
        _, leases = self.some(store, 2)
        begins = str(leases[0].record_id)[: digits + digits // 9]

        found = {record.record_id for record in self.browsed(store, record_id=begins)}

        assert leases[0].record_id in found
        assert all(str(record_id).startswith(begins) for record_id in found)

    def test_browse_by_several_scopes(self, store: BaseStore) -> None:
        scopes = [f"browse {uuid4()}" for _ in range(3)]
        leases = [self.live(store, scope=scope, key="key-1") for scope in scopes]

        found = self.browsed(store, scope=scopes[:2])

        assert {record.record_id for record in found} == {it.record_id for it in leases[:2]}

    @pytest.mark.parametrize("kind", keys.KINDS)
    def test_browse_by_scope_and_key_goes_by_the_record_id(
        self, store: BaseStore, kind: str
    ) -> None:
        scope, key = f"browse {uuid4()} {'x' * 300}", "key-1"
        lease = self.live(
            store,
            scope=keys.bounded(scope),  # what is kept of it; the record id is of the whole
            key=key,
            record_id=keys.record_id(kind, scope, key),
        )

        found = self.browsed(store, 1, scope=scope, key=key)
        missed = self.browsed(store, scope=scope, key=key, state=State.COMPLETED)

        assert [record.record_id for record in found] == [lease.record_id]
        assert missed == []

    def test_browse_by_age(self, store: BaseStore) -> None:
        scope, leases = self.some(store, 3)
        created = self.record(store, leases[1]).created_at

        west, east = (created.astimezone(timezone(timedelta(hours=it))) for it in (-5, 5))
        before = self.browsed(store, scope=scope, created_before=west)
        after = self.browsed(store, scope=scope, created_after=east)

        assert [record.record_id for record in before] == [leases[0].record_id]
        assert [record.record_id for record in after] == [leases[2].record_id]

    def test_browse_by_a_mapping(self, store: BaseStore) -> None:
        scope, leases = self.some(store, 2)
        self.end(store, leases[0], "completed")

        page = store.browse(filters={"scope": scope, "state": "COMPLETED"}, limit=100)
        found = [*page.records]
        while page.cursor is not None:
            page = store.browse(filters={"scope": scope, "state": "COMPLETED"}, cursor=page.cursor)
            found += page.records

        assert [record.record_id for record in found] == [leases[0].record_id]

    def test_browse_says_what_may_have_been_meant(self, store: BaseStore) -> None:
        with pytest.raises(TypeError, match=r"'stat'.* 'state'"):
            store.browse(filters={"stat": "COMPLETED"})

    def test_browse_refuses_the_cursor_of_another(self, store: BaseStore) -> None:
        with pytest.raises(ValueError, match="cursor"):
            store.browse(cursor="'; DROP TABLE x; --")

    def test_browse_refuses_a_page_without_room(self, store: BaseStore) -> None:
        with pytest.raises(ValueError, match="limit"):
            store.browse(limit=0)
        with pytest.raises(ValueError, match="within"):
            store.browse(within=0)

    def test_browse_refuses_what_begins_no_record_id(self, store: BaseStore) -> None:
        with pytest.raises(ValueError, match="No record id"):
            store.browse(filters={"record_id": "0123abc"})

    # Resolve.

    def resolve(
        self, store: BaseStore, lease: Lease, action: str, force: bool = False, **seen: Any
    ) -> bool:
        """Ask for what an operator decided, who saw the record as it is."""
        record = self.record(store, lease)
        result = b"operator" if action == "complete" else None
        known = {"epoch": record.epoch, "state": record.state, **seen}
        return store.resolve(
            lease.record_id, Resolution(action, force=force, result=result, **known)
        )

    def is_resolved(self, store: BaseStore, lease: Lease, action: str) -> None:
        """Fail unless the record is what the operator wanted it to be."""
        record = store.get(lease.record_id)
        if action == "expire":
            assert record is None or record.expired
            if record is not None:
                assert (record.fingerprint is None) is (record.state is State.RELEASED)
                self.is_lost(lease, record)
            request = self.again(lease.request, fingerprints=(OTHER_FINGERPRINT,))
            claimed = self.won(store.claim(request))
            assert claimed.fencing_token > lease.fencing_token
            return
        assert record is not None
        self.is_lost(lease, record)
        if action == "release":
            assert (record.state, record.fingerprint) == (State.RELEASED, None)
        elif action == "resume":
            assert (record.state, record.fingerprint) == (State.FAILED, lease.request.fingerprint)
        else:
            assert (record.state, record.result, record.error) == (State.COMPLETED, b"operator", "")
            assert record.fingerprint == lease.request.fingerprint

    def is_lost(self, lease: Lease, record: Record) -> None:
        """Fail unless the record is that of an operator, under an epoch and token of its own."""
        assert record.epoch == lease.fencing_token + 1
        assert record.token != lease.token
        assert record.lease_until is None

    @actions
    @pytest.mark.parametrize("ending", ["lapsed", "failed"])
    def test_operator_resolves_what_nobody_is_at(
        self, store: BaseStore, ending: str, action: str
    ) -> None:
        lease = self.ended(store, ending)

        assert self.resolve(store, lease, action)

        self.is_resolved(store, lease, action)

    @actions
    @pytest.mark.parametrize("ending", ["lapsed", "failed"])
    def test_record_says_when_an_operator_changed_it(
        self, store: BaseStore, ending: str, action: str
    ) -> None:
        lease = self.ended(store, ending)
        seen = self.record(store, lease)
        self.pass_time(store, lease.record_id, seen.now)

        assert self.resolve(store, lease, action)

        record = store.get(lease.record_id)
        assert record.updated_at > seen.updated_at if record else action == "expire"

    @actions
    def test_live_lease_stands_against_an_operator(self, store: BaseStore, action: str) -> None:
        lease = self.live(store)
        before = self.record(store, lease)

        assert not self.resolve(store, lease, action)

        assert unchanged(before, self.record(store, lease))

    @actions
    def test_operator_may_force_a_live_lease(self, store: BaseStore, action: str) -> None:
        lease = self.live(store)

        assert self.resolve(store, lease, action, force=True)

        self.is_resolved(store, lease, action)

    def test_operator_may_force_a_live_lease_that_outlives_its_record(
        self, store: BaseStore
    ) -> None:
        lease = self.live_beyond_expiry(store)

        assert self.resolve(store, lease, "complete", force=True)

        self.is_resolved(store, lease, "complete")

    @actions
    def test_R71_operator_resolves_what_would_stay_for_ever(
        self, store: BaseStore, action: str
    ) -> None:
        lease = self.lapsed(store, on_stale="refuse")

        assert self.resolve(store, lease, action)

        if action != "expire":
            assert self.record(store, lease).expires_at is not None
        self.is_resolved(store, lease, action)

    @pytest.mark.parametrize("ending", ["completed", "released"])
    def test_operator_expires_what_has_ended(self, store: BaseStore, ending: str) -> None:
        lease = self.ended(store, ending)

        assert self.resolve(store, lease, "expire")

        self.is_resolved(store, lease, "expire")

    @forced
    @pytest.mark.parametrize("action", ["release", "complete", "resume"])
    @pytest.mark.parametrize("ending", ["completed", "released"])
    def test_I3_operator_makes_nothing_else_of_what_has_ended(
        self, store: BaseStore, ending: str, action: str, force: bool
    ) -> None:
        lease = self.ended(store, ending)
        before = self.record(store, lease)

        assert not self.resolve(store, lease, action, force)

        assert unchanged(before, self.record(store, lease))

    def test_completion_by_an_operator_lasts_for_its_retention(self, store: BaseStore) -> None:
        lease = self.lapsed(store, retention=HOUR)
        epoch, state = lease.fencing_token, State.IN_PROGRESS

        assert store.resolve(
            lease.record_id,
            Resolution("complete", epoch=epoch, state=state, result=b"", retention=3 * DAY),
        )

        record = self.record(store, lease)
        assert record.result == b""
        assert record.expires_at is not None
        assert abs(record.expires_at - record.updated_at - 3 * DAY) <= self.precision

    @actions
    @pytest.mark.parametrize("seen", ["epoch", "state"])
    def test_operator_changes_nothing_but_what_they_saw(
        self, store: BaseStore, action: str, seen: str
    ) -> None:
        lease = self.lapsed(store)
        before = self.record(store, lease)
        other: dict[str, Any] = {
            "epoch": lease.fencing_token - 1,
            "state": State.FAILED,
        }

        assert not self.resolve(store, lease, action, force=True, **{seen: other[seen]})

        assert unchanged(before, self.record(store, lease))

    @actions
    def test_operator_does_not_change_another_record_that_looks_the_same(
        self, store: BaseStore, action: str
    ) -> None:
        lease, other = self.lapsed(store), self.lapsed(store)
        before = self.record(store, other)

        assert not self.resolve(store, lease, action, force=True, epoch=other.fencing_token)

        assert unchanged(before, self.record(store, other))

    @actions
    def test_operator_comes_after_the_next_owner(self, store: BaseStore, action: str) -> None:
        first = self.lapsed(store)
        self.won(store.claim(self.again(first.request, lease=self.moment)))
        self.lapse(store, first)

        assert not self.resolve(store, first, action, force=True, epoch=first.fencing_token)

    @actions
    @pytest.mark.parametrize(
        ("ending", "state"), [("failed", State.FAILED), ("lapsed", State.IN_PROGRESS)]
    )
    def test_operator_cannot_resolve_what_has_expired(
        self, store: BaseStore, ending: str, state: State, action: str
    ) -> None:
        lease = self.expired(store, ending)
        result = b"operator" if action == "complete" else None
        epoch = lease.fencing_token

        assert not store.resolve(
            lease.record_id, Resolution(action, epoch=epoch, state=state, force=True, result=result)
        )

    @actions
    def test_operator_cannot_resolve_what_is_not_there(self, store: BaseStore, action: str) -> None:
        record_id, result = keys.new_token(), b"operator" if action == "complete" else None

        assert not store.resolve(
            record_id, Resolution(action, epoch=1, state=State.FAILED, force=True, result=result)
        )

        assert store.get(record_id) is None

    def test_I2_epoch_grows_over_what_operators_do(self, store: BaseStore) -> None:
        lease = self.live(store)
        assert self.resolve(store, lease, "release", force=True)
        resolved = self.record(store, lease)

        again = self.won(store.claim(self.again(lease.request)))

        assert again.fencing_token > resolved.epoch > lease.fencing_token

    # Erase.

    def erase(self, store: BaseStore, lease: Lease, *, force: bool = False) -> bool:
        """Erase the record, later than the claim: epochs of new records come from the clock."""
        record = self.record(store, lease)
        self.pass_time(store, lease.record_id, record.now)
        return store.erase(lease.record_id, force=force)

    def is_erased(self, store: BaseStore, lease: Lease) -> None:
        """Fail unless nothing is left of the record, and any request is the first one."""
        assert store.get(lease.record_id) is None
        assert self.browsed(store, scope=lease.request.scope) == []
        request = self.again(lease.request, fingerprints=(OTHER_FINGERPRINT,))
        claimed = self.won(store.claim(request))
        assert claimed.fencing_token > lease.fencing_token
        assert self.record(store, claimed).attempts == 1

    @pytest.mark.parametrize(
        "ending", ["lapsed", "failed", "released", "completed", "lapsed for ever"]
    )
    def test_R71_operator_erases_what_nobody_is_at(self, store: BaseStore, ending: str) -> None:
        ending, _, for_ever = ending.partition(" ")
        fields = {"on_stale": "refuse"} if for_ever else {}
        lease = self.ended(store, ending, scope=f"erase {uuid4()}", **fields)
        other = self.ended(store, ending, **fields)
        before = self.record(store, other)

        assert self.erase(store, lease)

        self.is_erased(store, lease)
        assert unchanged(before, self.record(store, other))

    def test_live_lease_stands_against_an_erasure(self, store: BaseStore) -> None:
        lease = self.live(store)
        before = self.record(store, lease)

        assert not store.erase(lease.record_id)

        assert unchanged(before, self.record(store, lease))

    def test_R71_owner_of_an_erased_record_writes_nothing(self, store: BaseStore) -> None:
        lease = self.live(store, scope=f"erase {uuid4()}")

        assert self.erase(store, lease, force=True)

        with pytest.raises(LeaseLost) as lost:
            store.complete(lease, b"late", retention=HOUR)
        assert lost.value.gone
        store.fail(lease, "late")
        assert store.renew([lease], HOUR) == set()
        self.is_erased(store, lease)

    def test_erasure_of_what_is_not_there_is_done(self, store: BaseStore) -> None:
        other = self.live(store)

        assert store.erase(keys.new_token())

        assert self.record(store, other).live
