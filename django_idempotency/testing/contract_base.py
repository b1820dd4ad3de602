"""The base of all parts of the store contract: the store, its hooks, and records to start from."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, ClassVar, TypeVar
from uuid import UUID, uuid4

import pytest
from django.utils.module_loading import import_string

from django_idempotency import keys
from django_idempotency.claims import ClaimRequest
from django_idempotency.leases import Lease
from django_idempotency.records import Record
from django_idempotency.stores.base import BaseStore
from django_idempotency.testing.clock import FakeClock

__all__ = [
    "ENDED",
    "FINGERPRINT",
    "HOUR",
    "OTHER_FINGERPRINT",
    "ContractBase",
    "needs",
    "unchanged",
]

FINGERPRINT = b"\x01" * 32
OTHER_FINGERPRINT = b"\x02" * 32
HOUR = timedelta(hours=1)
#: What has become of a record that nobody is at; see `ContractBase.ended`.
ENDED = ("lapsed", "completed", "failed", "released")

Rule = TypeVar("Rule", bound=Callable[..., Any])


def needs(*needs: str) -> Callable[[Rule], Rule]:
    """Mark a rule that needs these features of a store; see `ContractBase.lacks`."""

    def mark(rule: Rule) -> Rule:
        rule.needs = needs  # type: ignore[attr-defined]
        return rule

    return mark


def unchanged(before: Record | None, after: Record | None) -> bool:
    """
    Return whether nothing but the time has changed between two looks at a record.

    An expired one may be gone at the second look.
    """
    if before is None or after is None:
        return after is None and (before is None or before.expired)
    return replace(after, now=before.now) == before


class ContractBase:
    """
    A store and its hooks.

    Every test draws record ids and a scope of its own, so that records which others left in the
    store do not matter. Time passes by `pass_time` alone.
    """

    #: The dotted path of the store, as BACKEND has it.
    backend: ClassVar[str] = ""
    #: Its constructor's keyword arguments, as OPTIONS has them. A FakeClock named ``clock`` is
    #: moved, where a clock that cannot be moved is waited for.
    options: ClassVar[Mapping[str, Any]] = {}
    #: The mode of the claims: "separate", or "joined" for a store that can join.
    transaction: ClassVar[str] = "separate"
    #: Do processes share the records? If not, the rules that need several are skipped.
    shared: ClassVar[bool] = True
    #: Is the time that of a server, whatever the clocks of the processes' hosts say?
    own_clock: ClassVar[bool] = False
    #: Does the store note steps? If not, the rules about steps are skipped.
    supports_steps: ClassVar[bool] = True
    #: Does a write of the store commit with the work, in one transaction?
    supports_join: ClassVar[bool] = False
    #: Does each write wait for every open transaction that has written?
    writers_queue: ClassVar[bool] = False
    #: Does the store delete expired records by itself, so that `sweep` has nothing to do?
    native_expiry: ClassVar[bool] = False
    #: Does `browse` give the newest records first?
    newest_first: ClassVar[bool] = True
    #: A lease or retention that ends soon, and that the store can still tell from none.
    moment: ClassVar[timedelta] = timedelta(milliseconds=50)
    #: How long a lapsed lease cannot be taken over yet: a margin for clocks that differ.
    margin: ClassVar[timedelta] = timedelta(0)
    #: By how much the times in a record may differ from the requested ones.
    precision: ClassVar[timedelta] = timedelta(milliseconds=2)
    #: Seconds for which a test waits for an event before it fails.
    patience: ClassVar[float] = 20
    #: An answer within this many seconds counts as one without waiting.
    at_once: ClassVar[float] = 5
    #: The rules that are skipped, and why; see `lacks`.
    left_out: ClassVar[dict[str, str]] = {}
    #: Threads, processes and keys of the races.
    threads: ClassVar[int] = 8
    thread_keys: ClassVar[int] = 20
    racers: ClassVar[int] = 8
    process_keys: ClassVar[int] = 200

    # Hooks.

    def make_store(self) -> BaseStore:
        """Return a new store on the shared records."""
        store: BaseStore = import_string(self.backend)(**self.options)
        return store

    def close_store(self, store: BaseStore) -> None:
        """Release the resources of `store`; called after each test."""

    def corrupt(self, store: BaseStore, record_id: UUID) -> None:
        """Damage the stored record; without this hook the rules about damage are skipped."""
        raise NotImplementedError

    def forget(self, store: BaseStore, record_id: UUID) -> None:
        """Delete the stored record; without this hook the rules about that are skipped."""
        raise NotImplementedError

    def lose_answer(self, store: BaseStore) -> AbstractContextManager[None]:
        """
        Return a context in which the answer to the store's next write is lost.

        The server carries the write out (or refuses it), and then the connection breaks. Later
        calls succeed, also a resend of the same write. The context fails at its end if no answer
        was lost. Without this hook the rules about lost answers are skipped.
        """
        raise NotImplementedError

    def between_read_and_write(
        self, store: BaseStore, callback: Callable[[], object]
    ) -> AbstractContextManager[None]:
        """
        Return a context in which `callback` is called once, just before the store's next write.

        If a claim or a sweep reads first and then writes, the callback runs between the two. The
        callback uses the same store in another thread, and its calls succeed. The context fails at
        its end if there was no write. Without this hook the rules about interleavings are skipped,
        as for a store whose every operation is one atomic step.
        """
        raise NotImplementedError

    def child_environment(self) -> dict[str, str]:
        """Return the environment variables by which a child process finds the records."""
        from django.conf import settings

        if not settings.configured:
            return {}
        from django.db import connections

        names = {alias: str(connections[alias].settings_dict["NAME"]) for alias in connections}
        return {"IDEMPOTENCY_CONTRACT_DATABASES": json.dumps(names)}

    @classmethod
    def setup_child(cls) -> None:
        """Make a child process, where Django is set up, ready for `make_store`."""
        names = json.loads(os.environ.get("IDEMPOTENCY_CONTRACT_DATABASES", "{}"))
        if not names:
            return
        from django.db import connections

        for alias, name in names.items():
            connections.settings[alias]["NAME"] = name

    @classmethod
    def lacks(cls) -> dict[str, str]:
        """Return the features that this store lacks, and why their rules are skipped."""
        lacking = {}
        if cls.corrupt is ContractBase.corrupt:
            lacking["damage"] = "there is no hook corrupt()"
        if cls.forget is ContractBase.forget:
            lacking["deletion"] = "there is no hook forget()"
        if cls.lose_answer is ContractBase.lose_answer:
            lacking["lost answers"] = "there is no hook lose_answer()"
        if cls.between_read_and_write is ContractBase.between_read_and_write:
            lacking["interleavings"] = "there is no hook between_read_and_write()"
        if not cls.supports_steps:
            lacking["steps"] = "it does not note steps"
        if not cls.supports_join:
            lacking["join"] = "it has no transactions"
        if cls.writers_queue:
            lacking["writers"] = "its writers wait for one another"
        if not cls.shared:
            lacking["processes"] = "its records belong to one process"
        if not cls.own_clock or not cls.shared:
            lacking["clock"] = "it goes by the clocks of its hosts"
        if cls.native_expiry:
            lacking["sweep"] = "it deletes expired records by itself"
        if not cls.newest_first:
            lacking["order"] = "it cannot order its records"
        return lacking

    # Time.

    def pass_time(self, store: BaseStore, record_id: UUID, until: datetime) -> None:
        """Let the store's clock pass `until`: move it, or read it until it has."""
        clock = self.options.get("clock")
        if isinstance(clock, FakeClock):
            clock.advance(max(until - clock(), timedelta(0)) + timedelta(milliseconds=1))
            return
        give_up = time.monotonic() + self.patience
        while (record := store.get(record_id)) is not None and record.now <= until:
            assert time.monotonic() < give_up, f"by the store's clock it is still {record.now}"
            time.sleep(0.002)

    def lapse(self, store: BaseStore, lease: Lease) -> None:
        """Let a lease lapse, so that it may be taken over."""
        record = self.record(store, lease)
        assert record.lease_until is not None
        self.pass_time(store, lease.record_id, record.lease_until + self.margin)

    def expire(self, store: BaseStore, lease: Lease) -> None:
        """Let the record of a lease expire."""
        record = store.get(lease.record_id)
        if record is not None:
            assert record.expires_at is not None
            self.pass_time(store, lease.record_id, record.expires_at + self.margin)

    # Requests.

    @pytest.fixture
    def store(self) -> Iterator[BaseStore]:
        """The store of a test."""
        store = self.make_store()
        yield store
        self.close_store(store)

    def asked(
        self, key: str | None = None, *, scope: str = "contract", **fields: Any
    ) -> ClaimRequest:
        """Return a request, for a key of its own unless one is given."""
        key = str(uuid4()) if key is None else key
        defaults = {
            "record_id": keys.record_id("contract", scope, key),
            "fingerprints": (FINGERPRINT,),
            "transaction": self.transaction,
        }
        return ClaimRequest(scope=scope, key=key, **{**defaults, **fields})

    def again(self, request: ClaimRequest, **fields: Any) -> ClaimRequest:
        """Return the request of another attempt at the same record."""
        return replace(request, **{"token": keys.new_token(), **fields})

    def won(self, claimed: Lease | Record) -> Lease:
        """Return the lease of a claim, which must win."""
        assert isinstance(claimed, Lease), f"refused: {claimed}"
        return claimed

    def refused(self, claimed: Lease | Record) -> Record:
        """Return the record of a claim, which must be refused."""
        assert isinstance(claimed, Record), f"won: {claimed}"
        return claimed

    def record(self, store: BaseStore, lease: Lease) -> Record:
        """Return the record of a lease, which must exist."""
        record = store.get(lease.record_id)
        assert record is not None, "the record is gone"
        return record

    # Records to begin with. Each is the only one of its key, and nobody has looked at it.

    def live(self, store: BaseStore, **fields: Any) -> Lease:
        """Return a lease that will last."""
        return self.won(store.claim(self.asked(**fields)))

    def lapsed(self, store: BaseStore, **fields: Any) -> Lease:
        """Return a lease that has lapsed, on a record that has not expired."""
        lease = self.live(store, **{"lease": self.moment, **fields})
        self.lapse(store, lease)
        return lease

    def ended(self, store: BaseStore, ending: str, **fields: Any) -> Lease:
        """Return a lease that was ended in one of the ways of `ENDED`."""
        if ending == "lapsed":
            return self.lapsed(store, **fields)
        lease = self.live(store, **fields)
        self.end(store, lease, ending)
        return lease

    def expired(self, store: BaseStore, ending: str = "completed", **fields: Any) -> Lease:
        """Return a lease that was ended so, on a record that has expired."""
        short = {"lease": self.moment, "retention": self.moment, "max_duration": timedelta(0)}
        lease = self.live(store, **(fields if ending == "completed" else {**short, **fields}))
        if ending != "lapsed":
            self.end(store, lease, ending, retention=self.moment)
        self.expire(store, lease)
        return lease

    def end(
        self, store: BaseStore, lease: Lease, ending: str, *, retention: timedelta = HOUR
    ) -> None:
        """End a lease: "completed", "failed" or "released"."""
        if ending == "completed":
            store.complete(lease, b"result", retention=retention)
        elif ending == "failed":
            store.fail(lease, "builtins.RuntimeError")
        else:
            store.release(lease)

    def live_beyond_expiry(self, store: BaseStore) -> Lease:
        """Return a live lease that was renewed past the expiry of its record."""
        short = 10 * self.moment
        while True:
            begun = time.monotonic()
            lease = self.live(store, lease=short, retention=short, max_duration=timedelta(0))
            if store.renew([lease], HOUR) == {lease}:
                self.expire(store, lease)
                return lease
            # Only if it had expired before it could be renewed: that takes a longer one.
            took = timedelta(seconds=time.monotonic() - begun)
            assert took + self.precision > short, "the lease was not renewed"
            while store.sweep():
                pass
            short *= 2
