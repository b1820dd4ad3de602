"""What log and signals tell of one attempt: its claim, and how it has ended, once."""

from __future__ import annotations

import time
from typing import Any

from django_idempotency import signals
from django_idempotency.claims import ClaimRequest
from django_idempotency.leases import Lease
from django_idempotency.logs import tell_claim, tell_end
from django_idempotency.stores.base import BaseStore
from django_idempotency.transactions.outer import after_commit


class Report:
    """Tells of one attempt, which begins when this is made."""

    #: For a replay: how many attempts its record has had.
    attempts: int | None = None
    #: Why the record of work that stands could not be completed; the log has its line.
    unwritten: Exception | None = None
    #: Whether the claim was told: `signals.left` follows for those that were.
    _claim_told = False
    _end_told = False

    def __init__(self, store: BaseStore, request: ClaimRequest, label: str) -> None:
        self._store = store
        self._request = request
        self._label = label
        self._began = time.monotonic()

    def facts(self, outcome: str) -> dict[str, Any]:
        """Return what log and signals tell of an outcome."""
        facts: dict[str, Any] = {
            "alias": self._store.alias,
            "operation": self._request.operation,
            "outcome": outcome,
            "record_id": self._request.record_id,
            "duration": time.monotonic() - self._began,
        }
        if self.attempts is not None:
            facts["attempts"] = self.attempts
        return facts

    def claimed(self, lease: Lease) -> None:
        """Tell that the claim is won."""
        self._claim_told = True
        facts = self.facts("claimed")
        facts["steps"] = 0 if lease.steps is None else lease.steps.found
        tell_claim(type(self._store), facts, takeover=lease.takeover, label=self._label)

    def left(self, outcome: str | None, error: BaseException | None) -> None:
        """Tell that the attempt has left its block, and how it has ended, if that is known yet."""
        store = self._store
        if self._claim_told and signals.left.receivers:
            operation = self._request.operation
            signals.left.send_robust(type(store), alias=store.alias, operation=operation)
        single = self._request.transaction == "single"
        if outcome == "completed" and single and store.using is not None:
            after_commit(store.using, lambda: self.ended("completed"))
        elif outcome is not None:
            self.ended(outcome, error)

    def ended(self, outcome: str, error: BaseException | None = None) -> None:
        """Write the line of the attempt and send its terminal signal, once."""
        if self._end_told:
            return
        self._end_told = True
        tell_end(
            type(self._store),
            self.facts(outcome),
            self.unwritten or error,
            key=self._request.key,
            logged=self.unwritten is not None,
            label=self._label,
        )
