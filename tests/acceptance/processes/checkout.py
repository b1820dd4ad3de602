"""A checkout in steps, whose process dies or stops at a place, and what a retry is to find then."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import django_idempotency as idempotency
from django_idempotency import NotDone
from django_idempotency.leases import Lease
from django_idempotency.testing import crash_at
from tests.app.models import Effect

__all__ = ["CASES", "DIED", "MORE_CASES", "Case", "Checkout", "calls_of", "effects"]

#: How a process ends that dies at its place.
DIED = 42
#: The pieces of a checkout that are calls of the gateway; the others are steps.
CALLS = ("charge", "mail")

#: Where an attempt can die in or around a piece, and the number that the failure has.
IN_STEP = {
    "before": "P1",
    "in": "P2",
    "before_note": "P3",
    "after_note": "P3",
    "before_commit": "P3",
    "after_commit": "P7",
}
IN_CALL = {
    "before": "P1",
    "before_intent": "P4",
    "after_intent": "P5",
    "in": "P2",
    "before_note": "P6",
    "after_note": "P7",
}
AT_END = {"before_complete": "P8", "after_complete": "P8"}


class stop_at(crash_at):
    """Let the process stop at the point, once, until it is told to go on."""

    def __call__(self, *args: Any, **kwargs: Any) -> None:  # type: ignore[override]
        self.point = ""
        os.kill(os.getpid(), signal.SIGSTOP)


def effects() -> list[str]:
    """The pieces that are done, each as often as it is, and what was asked, in their order."""
    names = Effect.objects.order_by("pk").values_list("name", flat=True)
    return [name.partition(":")[0] for name in names]


def calls_of(piece: str) -> list[str]:
    """The keys of the calls that the gateway got for a piece."""
    names = Effect.objects.filter(name__startswith=f"{piece}:").values_list("name", flat=True)
    return [name.partition(":")[2] for name in names]


@dataclass(frozen=True)
class Checkout:
    """
    An attempt at some pieces of work, in their order.

    The gateway does not know a key again: each call leaves a row. `uncertain` is "repeat", "refuse"
    or the name of a function: "ask" returns the call that has left a row, "deny" says without a
    look that there is none, and "void" closes the key, so that the gateway refuses a later call.
    """

    pieces: tuple[str, ...]
    uncertain: str
    key: str = "k"
    #: Where the process dies, or stops: a point of crash_at, "before" or "in", of this piece; at
    #: the end, of no piece.
    point: str = ""
    piece: str = ""
    stops: bool = False
    lease: float | None = None

    def run(self) -> Any:
        """Return what the work returns."""
        policy = {} if self.lease is None else {"lease": self.lease}
        return idempotency.run(
            _Work(self), key=self.key, scope="s", transaction="steps", **policy
        ).result


class _Work:
    """The work of one attempt."""

    def __init__(self, checkout: Checkout) -> None:
        self.checkout = checkout
        if point := checkout.point:
            kind = stop_at if checkout.stops else crash_at
            at = "in_work" if point in ("before", "in") else point
            self.crash = kind(at, exit_code=DIED)

    def __call__(self, lease: Lease) -> list[str]:
        results = []
        for piece in self.checkout.pieces:
            self.reach("before", piece)
            if piece in CALLS:
                results.append(self.external(lease, piece))
            else:
                results.append(lease.step(piece, self.step, piece))
        self.reach("before", "")
        return results

    def external(self, lease: Lease, piece: str) -> str:
        """Make a call; if a function has voided it, make it under another name."""
        uncertain: Any = self.checkout.uncertain
        if uncertain in FUNCTIONS:
            uncertain = partial(FUNCTIONS[uncertain], piece)
        call = partial(self.call, piece)
        result = lease.external(piece, call, uncertain=uncertain)
        if result == "voided":
            result = lease.external(f"{piece} again", call, uncertain=uncertain)
        return result

    def reach(self, point: str, piece: str) -> None:
        """Die or stop here, or else at the point of crash_at that this piece is about to pass."""
        at = self.checkout
        if at.point and at.piece == piece:
            if at.point == point:
                self.crash()
            elif point == "before" and at.point != "in":
                self.crash.__enter__()

    def step(self, piece: str) -> str:
        Effect.objects.create(name=piece)
        self.reach("in", piece)
        return piece

    def call(self, piece: str, key: str) -> str:
        if Effect.objects.filter(name=f"voided:{key}").exists():
            return "refused"
        Effect.objects.create(name=f"{piece}:{key}")
        self.reach("in", piece)
        return "made"


def ask(piece: str, key: str) -> str:
    Effect.objects.create(name=f"asked:{key}")
    if key in calls_of(piece):
        return "found"
    raise NotDone


def deny(piece: str, key: str) -> str:
    Effect.objects.create(name=f"asked:{key}")
    raise NotDone


def void(piece: str, key: str) -> str:
    Effect.objects.create(name=f"voided:{key}")
    return "found" if key in calls_of(piece) else "voided"


FUNCTIONS = {"ask": ask, "deny": deny, "void": void}


@dataclass(frozen=True)
class Case(Checkout):
    """
    An attempt that dies, and what is to be expected of it and of its retry.

    `joins` says whether the note of a step is in the transaction of its work.
    """

    failure: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, (self.failure, self.point, self.piece, self.uncertain)))

    @property
    def is_uncertain(self) -> bool:
        """Whether nobody knows whether the call was made."""
        in_call = self.piece in CALLS and self.failure in ("P2", "P5", "P6")
        return in_call and self.uncertain != "repeat"

    def noted(self, joins: bool) -> list[str]:
        """The pieces whose results are in the journal of the dead attempt."""
        if self.point == "after_complete":
            return []
        is_noted = self.failure == "P7" or (self.point == "after_note" and not joins)
        return [*self._before, *[self.piece] * is_noted]

    def effects(self, joins: bool) -> list[str]:
        """The pieces that the dead attempt has done, and no transaction has undone."""
        failures = ("P2", "P6", "P7")
        if self.piece not in CALLS:
            failures = ("P7",) if joins else ("P2", "P3", "P7")
        return [*self._before, *[self.piece] * (self.failure in failures)]

    def times(self, joins: bool) -> list[int]:
        """How often each piece is done in the end."""
        is_known = self.piece in CALLS and self.uncertain in ("refuse", "ask")
        twice = [] if is_known else set(self.effects(joins)) - {*self.noted(joins), *self._before}
        return [1 + (piece in twice) for piece in self.pieces]

    @property
    def results(self) -> list[str]:
        """What the checkout returns in the end; an operator has told the result of a call."""
        results = ["made" if piece in CALLS else piece for piece in self.pieces]
        if self.is_uncertain and self.piece in self.effects(joins=True):
            told = {"ask": "found", "deny": "made", "refuse": "told"}
            results[self.pieces.index(self.piece)] = told[self.uncertain]
        return results

    @property
    def _before(self) -> tuple[str, ...]:
        return self.pieces[: self.pieces.index(self.piece)] if self.piece else self.pieces


def _cases(pieces: tuple[str, ...], uncertain: str) -> Iterator[Case]:
    for piece in (*pieces, ""):
        points = AT_END if not piece else IN_CALL if piece in CALLS else IN_STEP
        for point, failure in points.items():
            if uncertain != "repeat" or not point.endswith("intent"):
                yield Case(pieces, uncertain, piece=piece, point=point, failure=failure)


_STEP_FIRST = [*_cases(("order", "charge", "paid"), "repeat")]
_CALL_FIRST = {
    answer: [*_cases(("charge", "order", "mail"), answer)]
    for answer in ("repeat", "refuse", "ask", "deny")
}
#: What runs with each change: each place with "repeat", and those in a call with other answers.
CASES = (
    *_STEP_FIRST,
    *(case for case in _CALL_FIRST["refuse"] if case.piece == "charge"),
    *(case for case in _CALL_FIRST["ask"] if case.piece == "charge"),
)
#: The other places that an answer can make a difference to.
MORE_CASES = (
    *(case for case in _CALL_FIRST["refuse"] if case.piece != "charge"),
    *(case for case in _CALL_FIRST["ask"] if case.piece != "charge"),
    *(case for case in _CALL_FIRST["repeat"] if case.piece in CALLS),
    *(case for case in _CALL_FIRST["deny"] if case.is_uncertain),
)
