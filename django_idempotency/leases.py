"""The lease: the right to run, and the proof of ownership on which its owner's writes depend."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any, Literal, ParamSpec, TypeAlias, TypeVar
from uuid import UUID

from django_idempotency import keys
from django_idempotency.claims import ClaimRequest
from django_idempotency.exceptions import LeaseLost
from django_idempotency.records import Record

__all__ = ["ItemLease", "Lease", "Uncertainty"]

P = ParamSpec("P")
R = TypeVar("R")
#: What follows where nobody knows whether a call was made: see `Lease.external`.
Uncertainty: TypeAlias = Literal["repeat", "refuse"] | Callable[[str], R]


class Lease:
    """
    The right to run, limited in time, and the proof of ownership: epoch and token.

    Each owner's write is conditional on both (R68).

    Thread-safe: nothing changes after the claim, except what its steps and its end record.
    """

    #: The `engine.steps.Steps` of the attempt that holds it, in mode ``steps``.
    steps: Any = None

    def __init__(
        self,
        request: ClaimRequest,
        epoch: int,
        *,
        lease_until: datetime | None = None,
        claimed_at: datetime | None = None,
        takeover: bool = False,
        renewable: bool = True,
        seen: Record | None = None,
        written: bool = True,
        place: str | None = None,
        journal: bytes | None = None,
    ) -> None:
        self.request = request
        #: The primary key of the record in every store.
        self.record_id = request.record_id
        #: The epoch: an integer that only grows per record id, safe to pass downstream.
        self.fencing_token = epoch
        #: The random half of the proof, new for each claim.
        self.token = request.token
        self.lease_until = lease_until
        self.claimed_at = claimed_at
        #: A lapsed lease of another attempt was taken over.
        self.takeover = takeover
        #: Whether the store can renew this lease from outside the work's transaction.
        self.renewable = renewable
        #: ``single``: the claimable record that the claim found, None if there was none.
        self.seen = seen
        #: ``single``: False while the store holds no row of this attempt (a late insert).
        self.written = written
        #: Where the claim was made, in a store with several places; see `BaseStore.at`.
        self.place = place
        #: What earlier attempts have noted of their steps; None if they have noted nothing.
        self.journal = journal
        #: The record, where `transact_item` had completed it with another result than the work's.
        self.completed_before: Record | None = None
        self._lost = False
        self._gone = False

    @property
    def seed(self) -> UUID:
        """The seed of derived keys: the record id and the content of the request."""
        return self.request.seed

    @property
    def lost(self) -> bool:
        """Whether a renewal was refused: nothing keeps another attempt from running by now."""
        return self._lost

    def check(self) -> None:
        """Raise LeaseLost once the lease is `lost`; its ``gone`` says how."""
        if self._lost:
            raise LeaseLost(gone=self._gone)

    def derive_key(self, name: str) -> str:
        """
        Return a stable key for a downstream call.

        The key is equal over retries, take-overs and rotations of secrets. It differs for each
        ``name`` and for each different request under the caller's key. It is never the caller's
        key.
        """
        return str(keys.derive(self.seed, name))

    def step(self, name: str, work: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """
        Return the noted result of a step, or call ``work(*args, **kwargs)`` and note its result.

        Work and note commit together, in a transaction of their own on the store's database: later
        attempts do not run it again. The result is JSON, as that of `run`, and comes back as it
        was decoded. What the work raises passes on, and nothing of the work stands. Raises
        RuntimeError outside of mode ``steps``, inside of another step, and for a name that was
        used before; TransactionOpen inside of ``atomic()``; LeaseLost, ResultTooLarge,
        StoreError and WorkRolledBack, and TypeError for a result that is not JSON.
        """
        return self._steps_for("step").step(name, work, args, kwargs)  # type: ignore[no-any-return]

    async def astep(
        self, name: str, work: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """
        See `step`: the plain function `work` runs on the thread of the database connections.

        A cancellation waits for its end and its note.
        """
        steps = self._steps_for("astep")
        return await steps.astep(name, work, args, kwargs)  # type: ignore[no-any-return]

    def external(self, name: str, call: Callable[[str], R], /, *, uncertain: Uncertainty[R]) -> R:
        """
        Return the noted result of a call to another service, or make the call and note its result.

        ``call(key)`` runs in no transaction; `key` is ``derive_key(name)``, the same in each
        attempt. `uncertain` says what follows if an earlier attempt died in the call or before its
        note, or the call raised. ``"repeat"`` makes it again, under the same key, and what the call
        raises passes on as if it had not been made. The two others write a note before the call,
        too. ``"refuse"`` raises Uncertain, until an operator has decided. A function of the key
        asks the other side: it returns the result, which is noted, or raises NotDone, and then the
        call is made. A call that raises NotDone itself was not made. An owner that stalled between
        that note and its call may make it after the function has asked: let the function also close
        the first call, by voiding it, say.

        A result that cannot be noted (TypeError, ResultTooLarge, StoreError, LeaseLost) leaves a
        call that was made, and that counts as one that raised. For the other errors see `step`; a
        ValueError is for another `uncertain`.
        """
        steps = self._steps_for("external")
        return steps.external(name, call, uncertain)  # type: ignore[no-any-return]

    async def aexternal(
        self,
        name: str,
        call: Callable[[str], Awaitable[R]],
        /,
        *,
        uncertain: Uncertainty[Awaitable[R]],
    ) -> R:
        """
        See `external`: ``call(key)`` is awaited, at the same time as others under ``gather``.

        So is a function for `uncertain`. A cancellation ends a call that may be repeated, and waits
        for another one and its note. One that outlives the attempt is not noted.
        """
        steps = self._steps_for("aexternal")
        return await steps.aexternal(name, call, uncertain)  # type: ignore[no-any-return]

    def _steps_for(self, word: str) -> Any:
        """Return the steps of the attempt; raise RuntimeError, which names the mode (T17)."""
        if self.steps is not None:
            return self.steps
        if self.request.steps:
            raise RuntimeError(f"No attempt holds this lease, so {word}() cannot be noted.")
        raise RuntimeError(
            f'{word}() needs transaction="steps" on the view, the task or the call; the mode of '
            f"this work is {self.request.transaction!r}."
        )

    def transact_item(self, result: Any = None) -> Any:
        """
        Return the completion with `result`, as an item for the caller's own TransactWriteItems.

        For a DynamoDB store: the caller's items and the record then commit together, or not at all
        if the lease was lost. The work must still return the same result. If it returns another,
        the committed result is the answer, and a warning is logged. Raises RuntimeError for a lease
        that no attempt holds, and on a store that has no such items.
        """
        raise RuntimeError("Only a lease of a DynamoDB store has items for TransactWriteItems.")

    def mark_lost(self, *, gone: bool = False) -> None:
        """Note that a renewal was refused, or that the record is `gone`; `check` then raises."""
        self._gone = gone
        self._lost = True

    def __repr__(self) -> str:
        return f"<Lease {keys.short(self.record_id)} epoch={self.fencing_token}>"


class ItemLease(Lease):
    """A lease of a store that can complete it in a transaction of the caller's own."""

    #: Makes the completion with an envelope an item; set by the store.
    item_of: Callable[[bytes, timedelta], Any]
    #: Makes the completion with a result an item; set by the attempt.
    completion: Callable[[Any], Any] | None = None

    def transact_item(self, result: Any = None) -> Any:
        """See `Lease.transact_item`."""
        if self.completion is None:
            raise RuntimeError("No attempt holds this lease, so it has no result to complete.")
        return self.completion(result)
