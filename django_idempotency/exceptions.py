"""The errors of an idempotent operation: one tree, whose docstrings are the default messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django_idempotency.records import Record

__all__ = [
    "FingerprintMismatch",
    "IdempotencyError",
    "InProgress",
    "InvalidKey",
    "KeyRequired",
    "LeaseLost",
    "ResultTooLarge",
    "ResultUnavailable",
    "ScopeMissing",
    "StoreError",
    "TaskFailed",
    "TransactionOpen",
    "WorkRolledBack",
]


class IdempotencyError(Exception):
    """The operation could not be carried out idempotently."""

    def __init__(
        self,
        message: str | None = None,
        *,
        code: str = "",
        params: Mapping[str, Any] | None = None,
    ) -> None:
        #: The text before `params` are put in: what a catalogue translates.
        self.message = message or (type(self).__doc__ or "").strip()
        #: Why, in a word for programs: ``"length"``. Empty where the class says it all.
        self.code = code
        #: What the text names: ``{"length": 300}``.
        self.params = params
        super().__init__(self.message % params if params else self.message)


class KeyRequired(IdempotencyError):
    """This operation requires an idempotency key, and none was given."""


class InvalidKey(IdempotencyError):
    """The idempotency key is not valid."""


class ScopeMissing(IdempotencyError):
    """There is no scope for this idempotency key: the caller is anonymous."""


class InProgress(IdempotencyError):
    """Another attempt with this idempotency key is in progress."""

    def __init__(
        self,
        message: str | None = None,
        *,
        record: Record | None = None,
        retry_after: int = 1,
        stale: bool = False,
    ) -> None:
        super().__init__(message)
        self.record = record
        #: Whole seconds after which another try makes sense, 1 to 30 (R49).
        self.retry_after = retry_after
        #: The lease has lapsed and ``on_stale="refuse"`` leaves it to an operator (R71).
        self.stale = stale


class FingerprintMismatch(IdempotencyError):
    """This idempotency key was already used for a different request."""


class LeaseLost(IdempotencyError):
    """The lease was lost: another attempt has taken over, or the record is gone."""

    def __init__(self, message: str | None = None, *, gone: bool = False) -> None:
        if gone and message is None:
            message = "The record is gone from the store: it was deleted, or evicted."
        super().__init__(message)
        #: The record is gone: no other attempt is known to have taken over.
        self.gone = gone


class ResultTooLarge(IdempotencyError):
    """The result is larger than max_result_bytes, so it cannot be kept."""


class ResultUnavailable(IdempotencyError):
    """The operation was completed, but its result was not kept and cannot be replayed."""


class TaskFailed(IdempotencyError):
    """The task failed for good, and its own exception cannot be raised here."""


class WorkRolledBack(IdempotencyError):
    """The work ended as a success, but its transaction can only be rolled back."""


class StoreError(IdempotencyError):
    """The store of idempotency records could not be reached, or did not answer as expected."""

    #: The first call of an attempt failed: nothing was claimed, and no other attempt is known.
    at_claim = False
    #: What the log says of it, once that is written; with DEBUG the problem says it, too.
    told = ""


class SessionLost(StoreError):
    """The database session of the work could not be had, or was lost with the work."""


class TransactionOpen(IdempotencyError, RuntimeError):
    """This transaction mode needs a connection on which no transaction is open."""
