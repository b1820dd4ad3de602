"""The errors that carry no record; their docstrings are the default messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

__all__ = [
    "FingerprintMismatch",
    "IdempotencyError",
    "InvalidKey",
    "KeyRequired",
    "LeaseLost",
    "NotDone",
    "ResultTooLarge",
    "ResultUnavailable",
    "ScopeMissing",
    "StoreError",
    "TaskFailed",
    "TransactionOpen",
    "WorkRolledBack",
]

#: Seconds until a retry of what only its operators can cure: a table is missing, say (R61).
AFTER_SETUP = 60


class IdempotencyError(Exception):
    """The operation could not be carried out idempotently."""

    def __init__(
        self,
        message: str | None = None,
        *,
        code: str = "",
        params: Mapping[str, Any] | None = None,
    ) -> None:
        #: The text before `params` are inserted, which a catalogue translates.
        self.message = message or (type(self).__doc__ or "").strip()
        #: The reason as a word for programs: ``"length"``. Empty if the class is reason enough.
        self.code = code
        #: The values in the text: ``{"length": 300}``.
        self.params = params
        super().__init__(self.message % params if params else self.message)


class KeyRequired(IdempotencyError):
    """This operation requires an idempotency key, and none was given."""


class InvalidKey(IdempotencyError):
    """The idempotency key is not valid."""


class ScopeMissing(IdempotencyError):
    """There is no scope for this idempotency key: the caller is anonymous."""


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


class NotDone(IdempotencyError):
    """The call was not made, and may be made."""

    #: When it has last left a call or the work of a record, as `engine.steps` counts: what it has
    #: left since a call began says nothing of that call.
    _left = 0


class ResultTooLarge(IdempotencyError):
    """The result is larger than max_result_bytes, so it cannot be kept."""


class ResultUnavailable(IdempotencyError):
    """The operation was completed, but its result was not kept and cannot be replayed."""


class TaskFailed(IdempotencyError):
    """
    The task has failed for good: what a duplicate raises in place of the task's own exception.

    No class is looked up by its stored name (R95). Every result backend makes this one anew from
    its two arguments.
    """

    def __init__(self, kind: str, arguments: Sequence[Any]) -> None:
        #: The dotted name of the exception's class.
        self.kind = kind
        #: The arguments of the exception as JSON has them: a tuple is a list, a date is text.
        self.arguments = list(arguments)
        super().__init__(f"{kind}: {', '.join(str(argument) for argument in self.arguments)}")
        self.args = (self.kind, self.arguments)

    def __str__(self) -> str:
        return self.message


class WorkRolledBack(IdempotencyError):
    """The work ended as a success, but its transaction can only be rolled back."""


class StoreError(IdempotencyError):
    """The store of idempotency records could not be reached, or did not answer as expected."""

    def __init__(
        self,
        message: str | None = None,
        *,
        unreachable: bool = False,
        retry_after: int = 1,
        code: str = "",
    ) -> None:
        super().__init__(message, code=code)
        #: The server was not reached; False for one that answered, be it with a damaged record.
        self.unreachable = unreachable
        #: Whole seconds after which another try makes sense: `AFTER_SETUP` where no retry cures it.
        self.retry_after = retry_after

    #: The first call of an attempt failed: nothing was claimed, and no other attempt is known.
    at_claim = False
    #: The record whose step could not be noted.
    record_id: UUID | None = None
    #: The text of its line in the log, once written; with DEBUG the problem repeats it.
    told = ""


def missing(needs: str, package: str, extra: str) -> ImportError:
    """Return the error of what needs a package that is not installed: it names the extra."""
    return ImportError(
        f"{needs} {package}: run pip install '.[{extra}]' in a checkout of django-idempotency.",
        name=package,
    )


class SessionLost(StoreError):
    """The database session of the work could not be opened, or was lost with the work."""


class TransactionOpen(IdempotencyError, RuntimeError):
    """This transaction mode needs a connection on which no transaction is open."""
