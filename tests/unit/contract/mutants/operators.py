"""Mutants that give operators a wrong picture, or too much power."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

from django_idempotency import keys
from django_idempotency.claims import ClaimRequest
from django_idempotency.records import Filters, Page, State
from tests.unit.contract.mutants.base import GAP, mutant, placeholder


@mutant("test_get_of_an_unknown_record_is_none")
def get_invents(store, get, record_id):
    """A look at a record that is not there shows one in progress."""
    return get(record_id) or placeholder(ClaimRequest(record_id, "", ""), store._clock())


@mutant("test_get_is_what_a_refused_claim_is_told")
def get_keeps_the_result_back(store, get, record_id):
    """A look at a record does not show its result."""
    record = get(record_id)
    return None if record is None else replace(record, result=None)


@mutant("test_twin_of_get")
async def twin_of_get_finds_nothing(store, aget, record_id):
    """The coroutine twin of a look finds nothing."""
    return None


@mutant("test_operator_changes_nothing_but_what_they_saw")
def resolve_asks_for_nothing(store, resolve, record_id, resolution, seen):
    """An operator's decision is carried out on whatever the record has become."""
    if not seen.expired:
        resolution = replace(resolution, epoch=seen.epoch, state=seen.state)
    return resolve(record_id, resolution)


@mutant("test_I7_either_the_owner_or_an_operator_ends_a_lease")
def resolve_reads_then_writes(store, resolve, record_id, resolution, seen):
    """An operator's decision overwrites what the owner has done since it was looked at."""
    if seen.live:
        time.sleep(GAP)
        store.put_back(seen)
    return resolve(record_id, resolution)


@mutant("test_operator_cannot_resolve_what_has_expired")
def resolve_revives(store, resolve, record_id, resolution, seen):
    """An operator's decision revives what has expired."""
    if seen.expired:
        store.change(record_id, expires_at=seen.now + timedelta(hours=1))
    return resolve(record_id, resolution)


@mutant("test_operator_cannot_resolve_what_is_not_there")
def resolve_invents(store, resolve, record_id, resolution):
    """An operator's decision about nothing is carried out."""
    return resolve(record_id, resolution) or store.get(record_id) is None


@mutant("test_live_lease_stands_against_an_operator")
def resolve_ignores_a_live_lease(store, resolve, record_id, resolution):
    """An operator ends a live lease without saying that they mean to."""
    return resolve(record_id, replace(resolution, force=True))


@mutant("test_operator_resolves_what_nobody_is_at")
def resolve_keeps_the_epoch(store, resolve, record_id, resolution):
    """An operator's decision is no new epoch."""
    done = resolve(record_id, resolution)
    if done:
        store.change(record_id, epoch=resolution.epoch)
    return done


@mutant("test_operator_resolves_what_nobody_is_at")
def resolve_keeps_the_token(store, resolve, record_id, resolution, seen):
    """An operator's decision leaves the owner's token, by which the owner's resends are known."""
    done = resolve(record_id, resolution)
    if done:
        store.change(record_id, token=seen.token)
    return done


@mutant("test_I3_operator_makes_nothing_else_of_what_has_ended")
def resolve_changes_a_completed_record(store, resolve, record_id, resolution, seen):
    """An operator may release what has been completed."""
    if resolution.state is seen.state is State.COMPLETED and resolution.action != "expire":
        store.change(record_id, state=State.FAILED)
        resolution = replace(resolution, state=State.FAILED)
    return resolve(record_id, resolution)


@mutant("test_R71_operator_resolves_what_would_stay_for_ever")
def resolve_leaves_it_for_ever(store, resolve, record_id, resolution, seen):
    """An operator's release leaves a record that never expires."""
    done = resolve(record_id, resolution)
    if done and resolution.action == "release" and seen.expires_at is None:
        store.change(record_id, expires_at=None)
    return done


@mutant("test_browse_gives_each_record_once")
def browse_repeats_records(store, browse, *, filters=None, cursor=None, limit=100):
    """A page begins with the last record of the one before."""
    page = browse(filters=filters, cursor=cursor, limit=limit)
    if cursor is None or not page.records:
        return page
    repeated = store.get(UUID(cursor.rpartition(" ")[2]))
    if repeated is None or limit == 1:
        return page
    return Page((repeated, *page.records)[:limit], page.cursor)


@mutant("test_browse_gives_each_record_once")
def browse_forgets_the_filters(store, browse, *, filters=None, cursor=None, limit=100):
    """Pages after the first are of all records."""
    return browse(filters=None if cursor else filters, cursor=cursor, limit=limit)


@mutant("test_browse_by_state")
def browse_shows_the_live(store, browse, *, filters=None, cursor=None, limit=100):
    """A page leaves out what has expired or ended."""
    page = browse(filters=filters, cursor=cursor, limit=limit)
    live = tuple(record for record in page.records if record.state is State.IN_PROGRESS)
    return Page(live, page.cursor)


@mutant("test_browse_by_operation")
def browse_finds_too_much(store, browse, *, filters=None, cursor=None, limit=100):
    """A page is chosen by scope and state alone."""
    if filters is not None:
        filters = Filters.of(filters)
        filters = Filters(scope=filters.scope, state=filters.state, stale=filters.stale)
    return browse(filters=filters, cursor=cursor, limit=limit)


@mutant("test_browse_by_scope_and_key_goes_by_the_record_id")
def browse_looks_for_requests_alone(store, browse_key, filters, limit):
    """A key with its scope is looked for among requests alone."""
    if filters.scope is None or filters.key is None:
        return None
    record = store.get(keys.record_id("http", filters.scope, filters.key))
    found = record is not None and filters.state in (None, record.state)
    return Page((record,) if record is not None and found else ())


@mutant("test_browse_by_age")
def browse_has_old_and_new_mixed_up(store, browse, *, filters=None, cursor=None, limit=100):
    """A page of what is older than a time has what is newer."""
    if filters is not None:
        filters = Filters.of(filters)
        after, before = filters.created_after, filters.created_before
        filters = replace(filters, created_before=after, created_after=before)
    return browse(filters=filters, cursor=cursor, limit=limit)


@mutant("test_browse_by_a_mapping")
def browse_wants_filters(store, browse, *, filters=None, cursor=None, limit=100):
    """A page of records knows no filters but objects."""
    wanted = filters if isinstance(filters, Filters) else None
    return browse(filters=wanted, cursor=cursor, limit=limit)


@mutant("test_browse_refuses_the_cursor_of_another")
def browse_takes_any_cursor(store, browse, *, filters=None, cursor=None, limit=100):
    """A cursor of another store begins again."""
    try:
        return browse(filters=filters, cursor=cursor, limit=limit)
    except ValueError:
        return browse(filters=filters, limit=limit)


@mutant("test_browse_ends_where_nothing_is_found")
def browse_begins_somewhere(store, browse, *, filters=None, cursor=None, limit=100):
    """A page without a filter that fits anything has everything."""
    page = browse(filters=filters, cursor=cursor, limit=limit)
    if not page.records and cursor is None:
        return browse(limit=limit)
    return page
