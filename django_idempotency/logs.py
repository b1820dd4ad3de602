"""The lines of the logger ``django_idempotency`` about requests and calls, without keys (R79)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from uuid import UUID

from django_idempotency import keys
from django_idempotency.exceptions import (
    FingerprintMismatch,
    IdempotencyError,
    InProgress,
    InvalidKey,
    KeyRequired,
    LeaseLost,
    ResultUnavailable,
    ScopeMissing,
    StoreError,
)

__all__ = ["log_outcome", "log_refusal", "log_store_error"]

logger = logging.getLogger("django_idempotency")

_REFUSALS: dict[type[IdempotencyError], str] = {
    FingerprintMismatch: "mismatch",
    InProgress: "in progress",
    InvalidKey: "key invalid",
    KeyRequired: "key missing",
    LeaseLost: "lease lost",
    ResultUnavailable: "result unavailable",
    ScopeMissing: "scope missing",
}
#: Their text quotes what they were given, which may be a column of the record.
_QUOTING = (AttributeError, LookupError, TypeError, ValueError)
#: The same, of database drivers, which have classes of their own.
_QUOTING_NAMES = {"DataError", "IntegrityError"}
#: A shorter key is found in texts that do not quote it.
_TELLING = 6
#: The name in a line for a call of ``run`` or ``attempt`` without an operation.
_UNNAMED = "call without a name"


def log_outcome(alias: str, operation: str, outcome: str, record_id: UUID | None = None) -> None:
    """Write one line: the operation, its outcome, and its record."""
    if not logger.isEnabledFor(logging.INFO):
        return
    short = "" if record_id is None else keys.short(record_id)
    record = f"record {short}, " if short else ""
    facts = _facts(alias, operation, outcome, short)
    named = operation or _UNNAMED
    logger.info("%s: %s (%sstore %s)", named, outcome, record, alias, extra=facts)


def log_refusal(
    alias: str, operation: str, error: IdempotencyError, record_id: UUID | None = None
) -> None:
    """Write the line of a request that neither runs nor replays."""
    if not logger.isEnabledFor(logging.INFO):
        return
    outcome = next((text for kind, text in _REFUSALS.items() if isinstance(error, kind)), None)
    if isinstance(error, InProgress) and error.stale:
        outcome = "stale"
    if outcome is not None:
        log_outcome(alias, operation, outcome, record_id)


def log_store_error(
    alias: str,
    operation: str,
    error: StoreError,
    record_id: UUID | None = None,
    key: str = "",
) -> None:
    """Write the line of a store's error, with its cause; a second call for it writes nothing."""
    if error.told:
        return
    causes = list(_causes(error))
    [error, *causes][-1].__suppress_context__ = True  # it may be the work's exception (R79)
    quotes = any(_quotes(cause, key) for cause in causes)
    error.told = _text(error, causes, quotes=quotes)
    short = "" if record_id is None else keys.short(record_id)
    facts = _facts(alias, operation, "store unavailable", short)
    shown = StoreError(error.told).with_traceback(error.__traceback__) if quotes else error
    logger.error(
        "%s: store unavailable (record %s, store %s). %s",
        operation or _UNNAMED,
        short or "unknown",
        alias,
        error.told,
        exc_info=shown,
        extra=facts,
    )


def _facts(alias: str, operation: str, outcome: str, record_id: str) -> dict[str, str]:
    return {"alias": alias, "operation": operation, "outcome": outcome, "record_id": record_id}


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause = error.__cause__
    while cause is not None:
        yield cause
        cause = cause.__cause__


def _quotes(cause: BaseException, key: str) -> bool:
    """Whether the text of a cause may quote the record: by its type, or it has our key in it."""
    kinds = {kind.__name__ for kind in type(cause).__mro__}
    if isinstance(cause, _QUOTING) or kinds & _QUOTING_NAMES:
        return True
    return len(key) >= _TELLING and key[:32] in str(cause)


def _text(error: StoreError, causes: list[BaseException], *, quotes: bool) -> str:
    """Return the text of an error: the store's own, and that of its driver."""
    if not causes:
        return str(error)
    said = [] if quotes else str(causes[-1]).splitlines()[:1]
    return f"{error} ({': '.join([type(causes[-1]).__name__, *said])})"
