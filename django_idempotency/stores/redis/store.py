"""Records in Redis or Valkey: one hash each, and one script for each operation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, ClassVar
from uuid import UUID

from django.core import checks

from django_idempotency import journal, keys
from django_idempotency.claims import ClaimRequest, Resolution
from django_idempotency.exceptions import LeaseLost, StoreError
from django_idempotency.exceptions.base import AFTER_SETUP, missing
from django_idempotency.leases import Lease
from django_idempotency.observers import logger
from django_idempotency.records import Filters, Page, Record
from django_idempotency.stores.base import BaseStore, held_of
from django_idempotency.stores.options import flag_of, seconds_of, text_of
from django_idempotency.stores.redis.rows import (
    Place,
    claim_arguments,
    claimed_of,
    ending_arguments,
    kept_until,
    micros,
    owner_arguments,
    proof_arguments,
    record_of,
)
from django_idempotency.stores.redis.scripts import (
    CLAIM,
    COMPLETE,
    ERASE,
    FAIL,
    LOOK,
    NOTE,
    OWNER,
    RELEASE,
    RENEW,
    RESOLVE,
)

#: The scripts need Redis 6.2, or any Valkey.
OLDEST = (6, 2)
#: Keys at which one SCAN of `browse` looks. A cursor holds the record ids that are left of them.
SCANNED = 100

_GLOB = re.compile(r"([\\*?\[\]])")


class RedisStore(BaseStore):
    """
    Records on a server of Redis 6.2 or later, or Valkey: single, behind sentinels, or a cluster.

    Time is the server's. Data that are neither on its disk nor on a replica are lost with the
    server.
    """

    supports_steps: ClassVar[bool] = True
    native_expiry: ClassVar[bool] = True
    checks_server: ClassVar[bool] = True

    def __init__(
        self,
        url: str | None = None,
        *,
        prefix: str = "idempotency:",
        timeout: float | timedelta = 2.0,
        wait_replicas: int = 0,
        wait_timeout: float | timedelta = 1.0,
        cluster: bool = False,
        sentinels: Sequence[tuple[str, int]] | None = None,
        service_name: str | None = None,
        sentinel_options: Mapping[str, Any] | None = None,
        **client_options: Any,
    ) -> None:
        """
        Take the URL, and options of redis-py's client; nothing is connected yet.

        `timeout` (seconds) bounds each wait for the server, `wait_timeout` that for the
        `wait_replicas` replicas which must have a claim before it counts as won.
        """
        try:
            from django_idempotency.stores.redis.clients import Clients
        except ImportError as error:
            raise missing("RedisStore needs", "redis-py", "redis") from error
        self.prefix = text_of("prefix", prefix, may_be_empty=True)
        self.timeout = seconds_of("timeout", timeout)
        self.wait_replicas = wait_replicas
        self.wait_timeout = seconds_of("wait_timeout", wait_timeout, may_be_zero=True)
        if isinstance(wait_replicas, bool) or not isinstance(wait_replicas, int):
            raise TypeError(f"wait_replicas is a number of replicas, not {wait_replicas!r}.")
        if wait_replicas < 0:
            raise ValueError("wait_replicas is a number of replicas, 0 or more.")
        if wait_replicas and not 0 < self.wait_timeout < self.timeout:
            raise ValueError("wait_timeout must be more than 0 seconds and less than timeout.")
        self._clients = Clients(
            url,
            cluster=flag_of("cluster", cluster),
            sentinels=sentinels,
            service_name=service_name,
            sentinel_options=sentinel_options or {},
            timeout=self.timeout,
            options=client_options,
        )
        #: Whether the marker has shown that the prefix is this project's.
        self._is_ours = False

    # The claim.

    def claim(self, request: ClaimRequest) -> Lease | Record:
        """See `BaseStore.claim`."""
        if not self._is_ours:
            marker, note = self._marker, owner_arguments(self.prefix, note=True)
            self._take_prefix(self._clients.run(OWNER, marker, note))
        key, arguments = self._key(request.record_id), claim_arguments(request)
        claimed, attempts = claimed_of(request, self._clients.run(CLAIM, key, arguments))
        if self.wait_replicas and isinstance(claimed, Lease):
            return self._replicated(claimed, attempts)
        return claimed

    def _take_prefix(self, ours: int) -> None:
        """Note that the prefix is this project's; raise StoreError for another's."""
        if not ours:
            raise StoreError(self._refusal(), retry_after=AFTER_SETUP)
        self._is_ours = True

    def _replicated(self, lease: Lease, attempts: int) -> Lease | Record:
        """
        Wait until enough replicas have the claim; else end the lease and raise StoreError.

        The claim is sent again, with WAIT. After a failover the new primary may not know the first
        claim, so the second one counts: it may be lost, or won with another epoch.
        """
        request = lease.request
        key, arguments = self._key(lease.record_id), claim_arguments(request)
        wanted, within = self.wait_replicas, self.wait_timeout
        try:
            answer, reached = self._clients.replicated(CLAIM, key, arguments, wanted, within)
            again, attempts = claimed_of(request, answer)
        except StoreError:
            self._give_back(lease, attempts)
            raise
        if isinstance(again, Record):
            return again
        if again.fencing_token != lease.fencing_token:
            lease = again
        if reached < wanted:
            self._give_back(lease, attempts)
            raise StoreError(
                f"{reached} of the {wanted} replicas that a claim needs had it after {within:g} s; "
                f"nothing has run."
            )
        return lease

    def _give_back(self, lease: Lease, attempts: int) -> None:
        """End a lease under which nothing ran; keep the fingerprint of an earlier attempt."""
        with suppress(StoreError):  # the caller raises another one, and the lease lapses
            if attempts == 1:
                self.release(lease)
            else:
                held = bool(journal.read(lease.journal).uncertain)
                self.fail(lease, "not replicated", held=held)

    # The owner's writes.

    def complete(self, lease: Lease, result: bytes, *, retention: timedelta) -> datetime:
        """See `BaseStore.complete`."""
        arguments = [*proof_arguments(lease), micros(retention), result]
        return kept_until(self._clients.run(COMPLETE, self._key(lease.record_id), arguments))

    def fail(self, lease: Lease, error: str, *, held: bool = False) -> None:
        """See `BaseStore.fail`."""
        arguments = [*ending_arguments(lease), keys.bounded(error), int(held)]
        self._clients.run(FAIL, self._key(lease.record_id), arguments)

    def release(self, lease: Lease) -> None:
        """See `BaseStore.release`."""
        self._clients.run(RELEASE, self._key(lease.record_id), ending_arguments(lease))

    def note(self, lease: Lease, entry: bytes, *, duration: timedelta, held: bool) -> None:
        """See `BaseStore.note`."""
        lasts = [micros(duration), micros(lease.request.noted_lifetime)]
        arguments = [*proof_arguments(lease), *lasts, int(held), entry]
        answer = self._clients.run(NOTE, self._key(lease.record_id), arguments)
        if not answer:
            raise LeaseLost(gone=answer == 0)

    def renew(self, leases: Iterable[Lease], duration: timedelta) -> set[Lease]:
        """
        See `BaseStore.renew`; in a cluster it takes a round trip for each node.

        Leases whose answer is an error count as held; StoreError if all answers are errors.
        """
        ordered = list(leases)
        lasts = micros(duration)
        renewals = [(self._key(x.record_id), [*proof_arguments(x), lasts]) for x in ordered]
        return held_of(ordered, self._clients.run_many(RENEW, renewals))

    # Reading, and what operators do.

    def get(self, record_id: UUID) -> Record | None:
        """See `BaseStore.get`."""
        return record_of(record_id, self._clients.run(LOOK, self._key(record_id), ()))

    def peek(self, record_ids: Iterable[UUID]) -> dict[UUID, Record]:
        """See `BaseStore.peek`; in a cluster it takes a round trip for each node."""
        wanted, found = list(record_ids), {}
        answers = self._clients.run_many(LOOK, [(self._key(record_id), ()) for record_id in wanted])
        for record_id, answer in zip(wanted, answers, strict=True):
            if isinstance(answer, StoreError):
                raise answer
            if (record := record_of(record_id, answer)) is not None:
                found[record_id] = record
        return found

    def look_on(
        self, filters: Filters, cursor: str | None, limit: int, most: int, results: bool
    ) -> tuple[Page, int]:
        """See `BaseStore.look_on`: in no order, and a record that moves may come twice."""
        if filters.ids is not None:
            return self.look_up(filters, cursor, limit)
        place = Place() if cursor is None else Place.parse(cursor)
        if not place.left:
            match = _GLOB.sub(r"\\\1", self.prefix) + "*"
            node, following, names = self._clients.scan(
                place.node, place.cursor or 0, match=match, count=SCANNED
            )
            place = Place(node, following, tuple(self._ids(names)))
        found: list[Record] = []
        damaged: list[str] = []
        looked = 0
        for record in self._look_at(place.left[:most], damaged, results):
            looked += 1
            if record is not None and filters.match(record):
                found.append(record)
                if len(found) == limit:
                    break
        place = place._replace(left=place.left[looked:])
        page = Page(tuple(found), None if place.is_end else str(place), tuple(damaged))
        return page, looked

    def resolve(self, record_id: UUID, resolution: Resolution) -> bool:
        """See `BaseStore.resolve`; ``"resume"`` looks first, and asks for that journal."""
        steps, kept, noted = None, resolution.result, resolution.noted
        if resolution.action == "resume":
            seen = self.get(record_id)
            if seen is None or not resolution.saw(seen.steps):
                return False
            steps, kept, noted = seen.steps, resolution.entry, len(seen.steps or b"")
        arguments: list[Any] = [
            resolution.action,
            resolution.epoch,
            resolution.state.value,
            int(resolution.force),
            keys.new_token().hex,
            micros(resolution.retention),
            kept or b"",
            "" if noted is None else noted,
            int(resolution.holds(steps)),
        ]
        return bool(self._clients.run(RESOLVE, self._key(record_id), arguments))

    def erase(self, record_id: UUID, *, force: bool = False) -> bool:
        """See `BaseStore.erase`."""
        return bool(self._clients.run(ERASE, self._key(record_id), [int(force)]))

    def sweep(self, *, limit: int = 5000) -> int:
        """Return 0: the server deletes expired records."""
        return 0

    def check(self) -> list[Any]:
        """See `BaseStore.check`: a server that is too old, set to evict, or not reachable."""
        return list(self._problems())

    def _problems(self) -> Iterator[checks.CheckMessage]:
        asked = owner_arguments(self.prefix, note=False)
        try:
            servers = self._clients.info()
            ours = self._clients.run(OWNER, self._marker, asked)
        except StoreError as error:
            yield checks.Warning(
                f"Redis does not answer at {self._clients.where()}: "
                f"{type(error.__cause__).__name__}.",
                hint=_remedy(error.__cause__),
                id="django_idempotency.W009",
            )
            return
        for version in {str(server["redis_version"]) for server in servers}:
            if tuple(map(int, version.split(".")[:2])) < OLDEST:
                yield checks.Error(
                    f"The RedisStore needs Redis 6.2 or Valkey, and the server is {version}.",
                    hint="Upgrade the server.",
                    id="django_idempotency.E010",
                )
        for policy in {str(server.get("maxmemory_policy")) for server in servers} - {"noeviction"}:
            yield checks.Warning(
                f"Redis may evict claims and results: its maxmemory-policy is {policy}.",
                hint="Set maxmemory-policy to noeviction, on a server without other data.",
                id="django_idempotency.W008",
            )
        if any(server.get("role") == "slave" for server in servers):
            yield checks.Warning(
                f"Redis at {self._clients.where()} is a replica: it refuses claims, or loses them.",
                hint="Name its primary in the OPTIONS of the RedisStore, or the sentinels.",
                id="django_idempotency.W015",
            )
        if not ours:
            yield checks.Error(
                self._refusal(),
                hint="If it is this project's, and SECRET_KEY was changed without "
                f"SECRET_KEY_FALLBACKS, delete the key {self._marker} on the server.",
                id="django_idempotency.E016",
            )

    # Names and records.

    def _refusal(self) -> str:
        return (
            f"The prefix {self.prefix!r} on this Redis server is another project's, or another "
            f"stage's: its marker {self._marker!r} was not made under this SECRET_KEY. Give this "
            f"one a prefix of its own in OPTIONS['prefix']."
        )

    @property
    def _marker(self) -> str:
        """The key of the marker, which says which project owns the prefix."""
        return f"{self.prefix}owner"

    def _key(self, record_id: UUID) -> str:
        return f"{self.prefix}{record_id}"

    def _ids(self, names: list[bytes]) -> list[UUID]:
        """Return the record ids among the keys that start with our prefix."""
        found = []
        for name in names:
            with suppress(ValueError):  # a key of another program
                found.append(UUID(name.decode()[len(self.prefix) :]))
        return found

    def _look_at(
        self, record_ids: Sequence[UUID], damaged: list[str], results: bool
    ) -> Iterator[Record | None]:
        """
        Yield each record, None if it is gone.

        A damaged one is logged and noted in `damaged`, and None, too.
        """
        wanted = [int(results)]
        answers = self._clients.run_many(LOOK, [(self._key(x), wanted) for x in record_ids])
        for record_id, answer in zip(record_ids, answers, strict=True):
            if isinstance(answer, StoreError):
                raise answer
            try:
                yield record_of(record_id, answer, results=results)
            except StoreError as error:
                # Without a traceback: its cause would quote the record (R79).
                logger.error("Record %s cannot be shown. %s", keys.short(record_id), error)
                damaged.append(keys.short(record_id))
                yield None


def _remedy(error: BaseException | None) -> str:
    """Return the hint for a server that does not answer."""
    if type(error).__name__ in ("AuthenticationError", "NoPermissionError"):
        return "Correct the user and the password in the OPTIONS of the RedisStore."
    return "Start the server, or correct its address in the OPTIONS of the RedisStore."
