"""What the database store knows of a vendor: its statements, and in what it differs from others."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any, ClassVar

from django_idempotency.leases import Lease
from django_idempotency.stores.database.rows import COLUMNS, TIMES, utc, uuid_of

READ_COMMITTED = "read committed"

Row = tuple[Any, ...]
#: Sends a statement by its name, and returns its rows.
Execute = Callable[[str, Mapping[str, Any]], list[Row]]


class Dialect:
    """
    The statements of one vendor, whole, and what the store asks besides.

    What a comment says here holds for a vendor that says nothing else.
    """

    CLAIM: ClassVar[str]
    LOOK: ClassVar[str]
    #: The look after a lost race.
    LOOK_AGAIN: ClassVar[str]
    #: LOOK for many, and whether an attempt holds an id whose record does not show that.
    PEEK: ClassVar[str]
    RECLAIM: ClassVar[str]
    COMPLETE: ClassVar[str]
    FAIL: ClassVar[str]
    RELEASE: ClassVar[str]
    NOTE: ClassVar[str]
    RENEW: ClassVar[str]
    RESOLVE: ClassVar[str]
    ERASE: ClassVar[str]
    BROWSE: ClassVar[str]
    #: BROWSE by ids, by how they begin, and by the indexes that a project may add.
    BROWSE_IDS: ClassVar[str]
    BROWSE_RANGE: ClassVar[str]
    BROWSE_KEY: ClassVar[str]
    BROWSE_OPERATION: ClassVar[str]
    #: Whether the table has an index of a name; one that was never finished is none.
    HAS_INDEX: ClassVar[str]
    SWEEP: ClassVar[str]
    COUNT_EXPIRED: ClassVar[str]
    #: COUNT_EXPIRED, but for so many at most.
    COUNT_SOME_EXPIRED: ClassVar[str]
    COUNT_STALE: ClassVar[str]

    #: CLAIM and LOOK as one, which is planned once: it runs where it is prepared.
    CLAIM_OR_LOOK: ClassVar[str | None] = None
    #: CLAIM, CLAIM_OR_LOOK and RECLAIM whose own transaction commits asynchronously.
    CLAIM_ASYNC: ClassVar[str | None] = None
    CLAIM_OR_LOOK_ASYNC: ClassVar[str | None] = None
    RECLAIM_ASYNC: ClassVar[str | None] = None
    #: The completion alone is fence enough: a row that it finds taken over rolls the work back.
    FENCE: ClassVar[str | None] = None
    #: A step of a walk over expired rows, which deletes those that nobody holds: how many these
    #: are, and when the last expired.
    SWEEP_NEXT: ClassVar[str | None] = None
    #: SWEEP finds for itself what it deletes.
    SWEEPABLE: ClassVar[str | None] = None
    #: No statement tells whether a sweep holds an expired row.
    SWEEPING: ClassVar[str | None] = None
    #: A database has no schemas, and a session no role: a claim has no place.
    SESSION: ClassVar[str | None] = None
    TAKE_ON: ClassVar[str | None] = None
    VARIABLES: ClassVar[str | None] = None
    #: How often a claim tries an expired row that another session holds. One round is enough where
    #: a claim that writes has waited for the sweep.
    ROUNDS: ClassVar[int] = 1

    #: The database is on a server, whose connection can be lost.
    has_server: ClassVar[bool] = True
    #: The driver's options that limit how long the server may take to answer. Without them a thread
    #: watches a fresh connection.
    answer_timeouts: ClassVar[tuple[str, ...]] = ()
    #: A claim begins by writing. Where that would wait for every other writer, it looks first.
    looks_first: ClassVar[bool] = False
    #: `single` is told apart by its row, not by a lock that ends with its transaction.
    takes_advisory_lock: ClassVar[bool] = False
    #: Writers do not wait for one another. Where they do, no renewal comes beside joined work.
    writers_queue: ClassVar[bool] = False

    def text(self, name: str, table: str | None, variables: tuple[str, ...]) -> str:
        """
        Return the statement `name` for a table with its schema, or for that of the session (None).

        `variables` are those of the session that belong to a place.
        """
        text: str = getattr(self, name)
        return text

    def adapted(self, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the parameters as the statements take them."""
        return parameters

    def time_of(self, text: str) -> Any:
        """Return a time that a cursor has, as the column is compared with it; raise ValueError."""
        return utc(datetime.fromisoformat(text)).astimezone(timezone.utc)

    @contextmanager
    def limited(self, connection: Any, seconds: float) -> Iterator[None]:
        """Limit the time of each statement of the block on a connection."""
        raise NotImplementedError
        yield

    def written(self, cursor: Any, name: str, parameters: Mapping[str, Any]) -> list[Row]:
        """Return the rows of a statement that cannot give any, and may have written one."""
        return []

    def unsupported(self, connection: Any) -> str | None:
        """Return the name of a server or library that lacks what the statements need; else None."""
        return None

    def may_renew_joined(
        self, options: Mapping[str, Any], execute: Execute, default: str | None = None
    ) -> bool:
        """
        Return whether the completion of joined work can write a row that was renewed meanwhile.

        At READ COMMITTED it can. The `options` of the connection go before the server's `default`.
        """
        return True

    def renew(self, execute: Execute, leases: list[Lease], duration: timedelta) -> set[Lease]:
        """Extend the leases, and return those still held."""
        parameters = {
            "ids": [lease.record_id for lease in leases],
            "epochs": [lease.fencing_token for lease in leases],
            "tokens": [lease.token for lease in leases],
            "duration": duration,
        }
        return held(leases, execute("RENEW", parameters))


def listed(names: Iterable[str], form: str = "{}") -> str:
    """Return names as a list of SQL, each in a form."""
    return ", ".join(form.format(name) for name in names)


def columns_of(table: str, *, time: str = "{}", name: str = "{}") -> str:
    """Return what a SELECT reads of a record: each column of `table`, a time in the form `time`."""
    forms = {it: time if it in TIMES else "{}" for it in COLUMNS}
    return ", ".join(form.format(f"{table}.{name.format(it)}") for it, form in forms.items())


def browsed(columns: str) -> str:
    """Return what BROWSE reads of a record: the same, but for a result that is not asked for."""
    return re.sub(r"(record\.`?result\b`?)", r"CASE WHEN %(results)s THEN \1 END", columns)


def narrowed(statement: str, condition: str) -> str:
    """Return BROWSE for the records of a condition, in place of the one that all meet."""
    return statement.replace("WHERE TRUE", f"WHERE {condition}")


def bounded(statement: str) -> str:
    """Return COUNT_EXPIRED for so many at most; out of order the planner would read the table."""
    some = statement.replace("SELECT count(*)", "SELECT count(*) FROM (SELECT 1")
    return some + " ORDER BY expires_at LIMIT %(limit)s) AS expired"


def held(leases: list[Lease], rows: list[Row]) -> set[Lease]:
    """Return the leases whose tokens the rows give; a claim that was sent again has several."""
    tokens = {uuid_of(row[0]) for row in rows}
    return {lease for lease in leases if lease.token in tokens}
