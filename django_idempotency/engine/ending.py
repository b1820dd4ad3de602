"""How an attempt ends: the verdict on its work, and what becomes of its record, as a value."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn

from django_idempotency.exceptions import LeaseLost, WorkRolledBack
from django_idempotency.leases import Lease
from django_idempotency.observers import logger
from django_idempotency.records import State
from django_idempotency.stores.base import BaseStore

_STATES = {"keep": State.COMPLETED, "release": State.RELEASED, "fail": State.FAILED}
_NOT_KEPT = "not kept"


@dataclass(frozen=True)
class Verdict:
    """What an adapter says of a result that the work has returned, and whose work commits."""

    #: What becomes of the record: "keep" the result, "release" or "fail" it (R57).
    says: str = "keep"
    #: False for a refusal that the work returned.
    succeeded: bool = True


class RollBack(Exception):
    """
    Raised by an adapter: roll the work back, end the lease, and answer with `result`.

    Or pass `error` on, unchanged. The verdict "keep" keeps the result without the work.
    """

    def __init__(
        self,
        verdict: str,
        result: Any = None,
        error: BaseException | None = None,
        *,
        deliberate: bool = False,
    ) -> None:
        super().__init__(verdict)
        self.error = error
        #: "release", "fail" or "keep".
        self.verdict = verdict
        self.result = result
        #: The work itself has called ``set_rollback(True)`` (R91).
        self.deliberate = deliberate


def refuse_rollback(of: str, result: Any, verdict: Verdict, *, deliberate: bool) -> NoReturn:
    """
    End work that returned `result`, and whose transaction can only be rolled back (R91, R57).

    Raises WorkRolledBack for a success, unless the rollback is deliberate; RollBack with
    the result otherwise.
    """
    cause = (
        "a database error was swallowed outside of an inner atomic(), or a statement has ended its "
        "transaction"
    )
    if verdict.succeeded and not deliberate:
        logger.error("The work of %s succeeded, and can only be rolled back: %s.", of, cause)
        raise WorkRolledBack
    if not deliberate:
        logger.warning("The work of %s is refused, and is rolled back: %s.", of, cause)
    ends = "release" if verdict.says == "release" else "fail"
    raise RollBack(ends, result, deliberate=deliberate)


@dataclass(frozen=True)
class Ending:
    """What becomes of the record of an attempt, and of its work."""

    #: The state that the record gets; None where nothing is written.
    state: State | None
    #: Whether the work commits with it; False where an exception has left the block of the work.
    commits: bool
    #: COMPLETED: the envelope of the result.
    payload: bytes = b""
    #: FAILED: what the record says of the reason.
    reason: str = ""
    #: FAILED: whether a call is uncertain, so that the record does not expire (S13).
    held: bool = False
    #: The work does not commit because it has called ``set_rollback(True)`` itself (R91).
    deliberate: bool = False

    @property
    def keeps(self) -> bool:
        """Whether a retry gets the answer of this attempt."""
        return self.state is State.COMPLETED

    @property
    def word(self) -> str:
        """The word of log and signals for this ending."""
        return "lease lost" if self.state is None else self.state.value.lower()


#: Nothing is written: the work has not ended, it has no record, or another attempt has that.
NOTHING = Ending(None, commits=True)


def ending_of(verdict: Verdict, payload: bytes = b"") -> Ending:
    """Return the ending of work that has returned a result: it commits (R57)."""
    return Ending(_STATES[verdict.says], commits=True, payload=payload, reason=_NOT_KEPT)


def ending_by(raised: BaseException) -> Ending:
    """Return the ending of work that has raised: it rolls back, and nothing is kept."""
    if not isinstance(raised, RollBack):
        return Ending(State.FAILED, commits=False, reason=reason_of(raised))
    state = State.RELEASED if raised.verdict == "release" else State.FAILED
    reason = _NOT_KEPT if raised.error is None else reason_of(raised.error)
    return Ending(state, commits=False, reason=reason, deliberate=raised.deliberate)


def reason_of(error: BaseException) -> str:
    """Return what the record may say of an error: its type; its text may quote the payload."""
    return f"{type(error).__module__}.{type(error).__qualname__}"


def write_ending(store: BaseStore, lease: Lease, ending: Ending) -> datetime | None:
    """
    Write an ending into the record of a lease: the owner's last write, conditional on its proof.

    Returns when a completed record expires. Raises what `BaseStore.complete` raises, and LeaseLost
    where the store tells that the lease of another end was lost.
    """
    if ending.state is State.COMPLETED:
        return store.complete(lease, ending.payload, retention=lease.request.retention)
    if ending.state is State.FAILED:
        is_mine = store.fail(lease, ending.reason, held=ending.held)
    else:
        is_mine = store.release(lease)
    if is_mine is False:
        raise LeaseLost
    return None
