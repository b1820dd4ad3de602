"""Mutants that give operators a wrong picture, or too much power."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

from django_idempotency import keys
from django_idempotency.records import ClaimRequest, Filters, Page, Record, State
from tests.unit.contract.mutants.base import GAP, Mutant, in_flight

__all__: list[str] = []

Given = Filters | Mapping[str, Any] | None


class GetInvents(Mutant):
    """A look at a record that is not there shows one in progress."""

    rule = "test_get_of_an_unknown_record_is_none"

    def get(self, record_id: UUID) -> Record | None:
        return super().get(record_id) or in_flight(ClaimRequest(record_id, "", ""), self._clock())


class GetKeepsTheResultBack(Mutant):
    """A look at a record does not show its result."""

    rule = "test_get_is_what_a_refused_claim_is_told"

    def get(self, record_id: UUID) -> Record | None:
        record = super().get(record_id)
        return None if record is None else replace(record, result=None)


class TwinOfGetFindsNothing(Mutant):
    """The coroutine twin of a look finds nothing."""

    rule = "test_twin_of_get"

    async def aget(self, record_id: UUID) -> Record | None:
        return None


class ResolveAsksForNothing(Mutant):
    """An operator's decision is carried out on whatever the record has become."""

    rule = "test_operator_changes_nothing_but_what_they_saw"

    def resolve(
        self, record_id: UUID, action: str, *, epoch: int, state: State, **how: Any
    ) -> bool:
        record = self.get(record_id)
        if record is not None and not record.expired:
            epoch, state = record.epoch, record.state
        return super().resolve(record_id, action, epoch=epoch, state=state, **how)


class ResolveReadsThenWrites(Mutant):
    """An operator's decision overwrites what the owner has done since it was looked at."""

    rule = "test_I7_either_the_owner_or_an_operator_ends_a_lease"

    def resolve(self, record_id: UUID, action: str, **how: Any) -> bool:
        seen = self.get(record_id)
        if seen is not None and seen.live:
            time.sleep(GAP)
            with self._mutex:
                self._records[record_id] = seen
        return super().resolve(record_id, action, **how)


class ResolveRevives(Mutant):
    """An operator's decision revives what has expired."""

    rule = "test_operator_cannot_resolve_what_has_expired"

    def resolve(self, record_id: UUID, action: str, **how: Any) -> bool:
        seen = self.get(record_id)
        if seen is not None and seen.expired:
            self.change(record_id, expires_at=seen.now + timedelta(hours=1))
        return super().resolve(record_id, action, **how)


class ResolveInvents(Mutant):
    """An operator's decision about nothing is carried out."""

    rule = "test_operator_cannot_resolve_what_is_not_there"

    def resolve(self, record_id: UUID, action: str, **how: Any) -> bool:
        done = super().resolve(record_id, action, **how)
        return done or self.get(record_id) is None


class ResolveTakesAnything(Mutant):
    """An operator may ask for what makes no sense."""

    rule = "test_operator_is_told_what_makes_no_sense"

    def resolve(self, record_id: UUID, action: str, **how: Any) -> bool:
        try:
            return super().resolve(record_id, action, **how)
        except ValueError:
            return False


class ResolveIgnoresALiveLease(Mutant):
    """An operator ends a live lease without saying that they mean to."""

    rule = "test_live_lease_stands_against_an_operator"

    def resolve(self, record_id: UUID, action: str, **how: Any) -> bool:
        return super().resolve(record_id, action, **{**how, "force": True})


class ResolveKeepsTheEpoch(Mutant):
    """An operator's decision is no new epoch."""

    rule = "test_operator_resolves_what_nobody_is_at"

    def resolve(self, record_id: UUID, action: str, *, epoch: int, **how: Any) -> bool:
        done = super().resolve(record_id, action, epoch=epoch, **how)
        if done:
            self.change(record_id, epoch=epoch)
        return done


class ResolveKeepsTheToken(Mutant):
    """An operator's decision leaves the owner's token, by which the owner's resends are known."""

    rule = "test_operator_resolves_what_nobody_is_at"

    def resolve(self, record_id: UUID, action: str, **how: Any) -> bool:
        record = self.get(record_id)
        done = super().resolve(record_id, action, **how)
        if done and record is not None:
            self.change(record_id, token=record.token)
        return done


class ResolveChangesACompletedRecord(Mutant):
    """An operator may release what has been completed."""

    rule = "test_I3_operator_makes_nothing_else_of_what_has_ended"

    def resolve(
        self, record_id: UUID, action: str, *, epoch: int, state: State, **how: Any
    ) -> bool:
        record = self.get(record_id)
        if record is not None and state is record.state is State.COMPLETED and action != "expire":
            self.change(record_id, state=State.FAILED)
            state = State.FAILED
        return super().resolve(record_id, action, epoch=epoch, state=state, **how)


class ResolveLeavesItForEver(Mutant):
    """An operator's release leaves a record that never expires."""

    rule = "test_R71_operator_resolves_what_would_stay_for_ever"

    def resolve(self, record_id: UUID, action: str, **how: Any) -> bool:
        record = self.get(record_id)
        done = super().resolve(record_id, action, **how)
        if done and action == "release" and record is not None and record.expires_at is None:
            self.change(record_id, expires_at=None)
        return done


class BrowseRepeatsRecords(Mutant):
    """A page begins with the last record of the one before."""

    rule = "test_browse_gives_each_record_once"

    def browse(self, *, filters: Given = None, cursor: str | None = None, limit: int = 100) -> Page:
        page = super().browse(filters=filters, cursor=cursor, limit=limit)
        if cursor is None or not page.records:
            return page
        last = UUID(cursor.rpartition(" ")[2])
        repeated = self.get(last)
        records: tuple[Record, ...] = page.records
        if repeated is not None and limit > 1:
            records = (repeated, *page.records)[:limit]
        return Page(records, page.cursor)


class BrowseForgetsTheFilters(Mutant):
    """Pages after the first are of all records."""

    rule = "test_browse_gives_each_record_once"

    def browse(self, *, filters: Given = None, cursor: str | None = None, limit: int = 100) -> Page:
        if cursor is not None:
            filters = None
        return super().browse(filters=filters, cursor=cursor, limit=limit)


class BrowseShowsTheLive(Mutant):
    """A page leaves out what has expired or ended."""

    rule = "test_browse_by_state"

    def browse(self, *, filters: Given = None, cursor: str | None = None, limit: int = 100) -> Page:
        page = super().browse(filters=filters, cursor=cursor, limit=limit)
        live = tuple(record for record in page.records if record.state is State.IN_PROGRESS)
        return Page(live, page.cursor)


class BrowseFindsTooMuch(Mutant):
    """A page is chosen by scope and state alone."""

    rule = "test_browse_by_operation"

    def browse(self, *, filters: Given = None, cursor: str | None = None, limit: int = 100) -> Page:
        if filters is not None:
            filters = Filters.of(filters)
            filters = Filters(scope=filters.scope, state=filters.state, stale=filters.stale)
        return super().browse(filters=filters, cursor=cursor, limit=limit)


class BrowseLooksForRequestsAlone(Mutant):
    """A key with its scope is looked for among requests alone."""

    rule = "test_browse_by_scope_and_key_goes_by_the_record_id"

    def browse_key(self, filters: Filters, limit: int) -> Page | None:
        if filters.scope is None or filters.key is None:
            return None
        record = self.get(keys.record_id("http", filters.scope, filters.key))
        found = record is not None and filters.state in (None, record.state)
        return Page((record,) if record is not None and found else ())


class BrowseHasOldAndNewMixedUp(Mutant):
    """A page of what is older than a time has what is newer."""

    rule = "test_browse_by_age"

    def browse(self, *, filters: Given = None, cursor: str | None = None, limit: int = 100) -> Page:
        if filters is not None:
            filters = Filters.of(filters)
            filters = replace(
                filters,
                created_before=filters.created_after,
                created_after=filters.created_before,
            )
        return super().browse(filters=filters, cursor=cursor, limit=limit)


class BrowseWantsFilters(Mutant):
    """A page of records knows no filters but objects."""

    rule = "test_browse_by_a_mapping"

    def browse(self, *, filters: Given = None, cursor: str | None = None, limit: int = 100) -> Page:
        wanted = filters if isinstance(filters, Filters) else None
        return super().browse(filters=wanted, cursor=cursor, limit=limit)


class BrowseTakesAnyCursor(Mutant):
    """A cursor of another store begins again."""

    rule = "test_browse_refuses_the_cursor_of_another"

    def browse(self, *, filters: Given = None, cursor: str | None = None, limit: int = 100) -> Page:
        try:
            return super().browse(filters=filters, cursor=cursor, limit=limit)
        except ValueError:
            return super().browse(filters=filters, limit=limit)


class BrowseBeginsSomewhere(Mutant):
    """A page without a filter that fits anything has everything."""

    rule = "test_browse_ends_where_nothing_is_found"

    def browse(self, *, filters: Given = None, cursor: str | None = None, limit: int = 100) -> Page:
        page = super().browse(filters=filters, cursor=cursor, limit=limit)
        if not page.records and cursor is None:
            return super().browse(limit=limit)
        return page


class TwinOfBrowseForgetsTheFilters(Mutant):
    """The coroutine twin of a page is of all records."""

    rule = "test_twin_of_browse"

    async def abrowse(
        self, *, filters: Given = None, cursor: str | None = None, limit: int = 100
    ) -> Page:
        return await super().abrowse(cursor=cursor, limit=limit)
