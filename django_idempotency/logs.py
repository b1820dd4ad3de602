"""
What is told of requests and calls, without keys (R79).

A line of the logger ``django_idempotency``, and for the end of an attempt the signal of that name.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from django.dispatch import Signal

from django_idempotency import keys, signals
from django_idempotency.exceptions import IdempotencyError, StoreError
from django_idempotency.exceptions.refusals import REFUSALS, refusal_of
from django_idempotency.observers import logger

#: The signal of each end of an attempt, by its word in the log.
SIGNALS: dict[str, Signal] = {
    "completed": signals.completed,
    "failed": signals.failed,
    "released": signals.released,
    "replayed": signals.replayed,
    **{row.word: row.signal for row in REFUSALS if row.signal is not None},
}
#: Their text quotes what they were given, which may be a column of the record.
_QUOTING = (AttributeError, LookupError, TypeError, ValueError)
#: The same, of database drivers, which have classes of their own.
_QUOTING_NAMES = {"DataError", "IntegrityError"}
#: A shorter key is found in texts that do not quote it.
_TELLING = 6
#: The name in a line for a block of ``attempt`` without an operation.
_UNNAMED = "call without a name"
#: When an error of a store, by its classes, was last written with its traceback, and for how many
#: seconds that is enough.
_traced: dict[tuple[Any, ...], float] = {}
_TRACED_SECONDS = 60


def tell_claim(store: type, facts: dict[str, Any], *, takeover: bool, label: str = "") -> None:
    """
    Tell that an attempt has won its claim: a line for a take-over, and the signal.

    The line names the operation, or else has the `label`.
    """
    facts["takeover"] = takeover
    if takeover:
        facts["outcome"] = "taken over"
        _log(facts, label)
    signals.claimed.send_robust(store, **facts, error=None)


def tell_end(
    store: type,
    facts: dict[str, Any],
    error: BaseException | None,
    *,
    key: str = "",
    logged: bool = False,
    label: str = "",
) -> None:
    """Tell how an attempt has ended: one line, unless its error has one, and one signal."""
    outcome = facts["outcome"]
    if outcome == "store unavailable" and isinstance(error, IdempotencyError):
        failure = error if isinstance(error, StoreError) else StoreError(str(error))
        if not (logged or failure.told):
            _log_store_error(facts, failure, key, label)
    elif not logged:
        _log(facts, label)
    ended = SIGNALS[outcome]
    if ended.receivers:
        facts.pop("attempts", None)  # of a replay alone: it is for the log
        ended.send_robust(store, **facts, error=None if error is None else type(error).__name__)


def word_for(error: BaseException) -> str | None:
    """Return the outcome of a request that neither ran nor was answered; None for other errors."""
    refusal = refusal_of(error)
    return None if refusal is None else refusal.word


def log_refusal(alias: str, operation: str, error: IdempotencyError, label: str = "") -> None:
    """Write the line of a request that made no attempt; no signal tells of it."""
    if outcome := word_for(error):
        _log(_facts(alias, operation, outcome), label)


@lru_cache(maxsize=1024)
def log_once(level: int, text: str, *about: str) -> None:
    """Write a line about a view, say, once in a process."""
    logger.log(level, text, *about)


def log_store_error(alias: str, operation: str, error: StoreError) -> None:
    """Write the line of a store's error outside of an attempt, unless it has one."""
    if not error.told:
        _log_store_error(_facts(alias, operation, "store unavailable"), error)


def extra(facts: dict[str, Any]) -> dict[str, Any]:
    """Return facts as the attributes of a line, with the short id of the record, or none."""
    record_id = facts["record_id"]
    return {**facts, "record_id": keys.short(record_id) if record_id else ""}


def _log(facts: dict[str, Any], label: str) -> None:
    """Write one line: the operation, its outcome, and its record."""
    if not logger.isEnabledFor(logging.INFO):
        return
    shown = extra(facts)
    record = f"record {shown['record_id']}, " if shown["record_id"] else ""
    named = shown["operation"] or label or _UNNAMED
    logger.info("%s: %s (%sstore %s)", named, shown["outcome"], record, shown["alias"], extra=shown)


def log_failure(
    message: str,
    *args: Any,
    error: BaseException,
    key: str = "",
    extra: dict[str, Any] | None = None,
    traced: bool = True,
) -> None:
    """
    Write the line of an error of a store, with the classes of the driver's errors.

    Their texts may quote a key, a payload or an address (R79). They are for a line at DEBUG, unless
    they are known to quote the record.
    """
    shown = _without_texts(error) if traced else None
    logger.error(message, *args, exc_info=shown, extra=extra, stacklevel=3)
    causes = [error, *_causes(error)]
    if logger.isEnabledFor(logging.DEBUG) and not any(_quotes(cause, key) for cause in causes):
        told = f"{type(causes[-1]).__name__}: {causes[-1]}"
        logger.debug("The driver's error was: %s", told, exc_info=error, extra=extra, stacklevel=3)


def _is_traced_lately(alias: str, causes: list[BaseException]) -> bool:
    """Return whether a traceback of such an error of a store was written a minute ago or less."""
    kinds, now = (alias, *map(type, causes)), time.monotonic()
    lately = now - _traced.get(kinds, -math.inf) < _TRACED_SECONDS
    if not lately:
        _traced[kinds] = now
    return lately


def _log_store_error(
    facts: dict[str, Any], error: StoreError, key: str = "", label: str = ""
) -> None:
    """
    Write the line of a store's error, with its cause.

    A store that is down fails with each request: the traceback of the same error follows once a
    minute.
    """
    causes = list(_causes(error))
    [error, *causes][-1].__suppress_context__ = True  # it may be the work's exception (R79)
    quotes = any(_quotes(cause, key) for cause in causes)
    error.told = _text(error, causes, quotes=quotes)
    shown = extra(facts)
    log_failure(
        "%s: store unavailable (record %s, store %s). %s",
        shown["operation"] or label or _UNNAMED,
        shown["record_id"] or "unknown",
        shown["alias"],
        _text(error, causes, quotes=True),
        error=error,
        key=key,
        extra=shown,
        traced=not _is_traced_lately(facts["alias"], [error, *causes]),
    )


def _facts(alias: str, operation: str, outcome: str) -> dict[str, Any]:
    return {"alias": alias, "operation": operation, "outcome": outcome, "record_id": None}


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause = error.__cause__
    while cause is not None:
        yield cause
        cause = cause.__cause__


def _without_texts(error: BaseException) -> BaseException:
    """Return an error as a traceback may show it: of others than ours the class and the frames."""
    shown = type(error).__new__(type(error))
    if isinstance(error, IdempotencyError):
        shown.args = error.args
        vars(shown).update(vars(error))
    if (cause := error.__cause__) is not None:
        shown.__cause__ = _without_texts(cause)
    shown.__suppress_context__ = True
    return shown.with_traceback(error.__traceback__)


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
