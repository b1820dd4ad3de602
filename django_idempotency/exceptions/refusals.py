"""
What is told when a request gets no answer of its work: one row for each way.

The client gets a problem (RFC 9457; R1, R78), the log a word, the receivers a signal (R79).
"""

from __future__ import annotations

from dataclasses import dataclass

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from django_idempotency import exceptions, signals
from django_idempotency.observers import Signal

__all__ = ["REFUSALS", "REPLAY_REFUSED", "STALE", "STORE_UNAVAILABLE", "Refusal", "refusal_of"]


@dataclass(frozen=True)
class Refusal:
    """One way in which a request gets no answer of its work."""

    #: The error that a call gets; None if only a request can be refused so.
    error: type[exceptions.IdempotencyError] | None
    #: The code of the problem, and the name of its page in the documentation.
    code: str
    status: int
    #: The outcome in the log.
    word: str
    #: The signal of an attempt that ends so; None if there is no attempt.
    signal: Signal | None
    title: str | Promise
    detail: str | Promise
    #: Whether the same request with the same key may be sent again.
    retryable: bool = False
    #: Whether a new key is safe. Not where the request has one: an earlier try may be done.
    safe_new_key: bool = False


STALE = Refusal(
    exceptions.InProgress,
    "stale",
    409,
    "stale",
    signals.conflicted,
    _("A request with this Idempotency-Key did not finish"),
    _("Its outcome is not known. An operator has to decide before this key can be used again."),
)
STORE_UNAVAILABLE = Refusal(
    exceptions.StoreError,
    "store_unavailable",
    503,
    "store unavailable",
    signals.store_failed,
    _("Idempotency cannot be ensured at the moment"),
    _("The store of idempotency keys does not answer. Try again with the same key."),
    retryable=True,
)
REPLAY_REFUSED = Refusal(
    None,
    "replay_refused",
    403,
    "replay refused",
    signals.conflicted,
    _("The stored response may not be shown"),
    _("The caller is no longer allowed to see the response of this request."),
)

#: The first row of an error is its own, unless `refusal_of` knows better.
REFUSALS: tuple[Refusal, ...] = (
    Refusal(
        exceptions.KeyRequired,
        "idempotency_key_missing",
        400,
        "key missing",
        None,
        _("Idempotency-Key is missing"),
        _("This operation requires an idempotency key, and the request has none."),
        safe_new_key=True,
    ),
    Refusal(
        exceptions.InvalidKey,
        "idempotency_key_invalid",
        400,
        "key invalid",
        None,
        _("Idempotency-Key is invalid"),
        _("The idempotency key is not valid."),
    ),
    Refusal(
        exceptions.ScopeMissing,
        "scope_missing",
        400,
        "scope missing",
        None,
        _("Idempotency-Key has no scope"),
        _(
            "The caller is anonymous, so it cannot be told whose idempotency key this is. Log in, "
            "and send the request again."
        ),
    ),
    Refusal(
        exceptions.FingerprintMismatch,
        "idempotency_key_reused",
        422,
        "mismatch",
        signals.mismatched,
        _("Idempotency-Key is already used"),
        _("This idempotency key was used for another request. Use a new key for a new request."),
    ),
    Refusal(
        exceptions.InProgress,
        "in_progress",
        409,
        "in progress",
        signals.conflicted,
        _("A request is outstanding for this Idempotency-Key"),
        _("The first request with this idempotency key is still being processed. Try again later."),
        retryable=True,
    ),
    STALE,
    Refusal(
        exceptions.LeaseLost,
        "lease_lost",
        409,
        "lease lost",
        signals.lease_lost,
        _("Another request took over this Idempotency-Key"),
        _("This request took longer than its lease, and another one took over. Try again."),
        retryable=True,
    ),
    Refusal(
        exceptions.ResultUnavailable,
        "result_unavailable",
        409,
        "result unavailable",
        signals.conflicted,
        _("The result of this Idempotency-Key is not available"),
        _("The operation was completed, but its response was not kept and cannot be sent again."),
    ),
    STORE_UNAVAILABLE,
    REPLAY_REFUSED,
)


def refusal_of(error: BaseException) -> Refusal | None:
    """Return the row of an error; None for one that is not about a key."""
    if isinstance(error, exceptions.InProgress) and error.stale:
        return STALE
    return next((row for row in REFUSALS if row.error and isinstance(error, row.error)), None)
