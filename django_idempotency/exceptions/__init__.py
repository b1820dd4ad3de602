"""The errors of an idempotent operation: one tree, whose docstrings are the default messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_idempotency.exceptions import base
from django_idempotency.exceptions.base import *  # noqa: F403

if TYPE_CHECKING:
    from uuid import UUID

    from django_idempotency.records import Record

__all__ = ["InProgress", "Uncertain"]
__all__ += base.__all__


class InProgress(base.IdempotencyError):
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
        #: The record of that attempt, where the store has given it.
        self.record = record
        #: Whole seconds after which another try makes sense, 1 to 30 (R49).
        self.retry_after = retry_after
        #: The lease has lapsed and ``on_stale="refuse"`` leaves it to an operator (R71).
        self.stale = stale


class Uncertain(InProgress):
    """Nobody knows whether a call of this operation was made. An operator has to decide."""

    def __init__(
        self,
        message: str | None = None,
        *,
        step: str = "",
        key: str = "",
        record_id: UUID | None = None,
    ) -> None:
        super().__init__(message, stale=True)
        #: The name of the call.
        self.step = step
        #: The key that the call was given, by which the other side may know it.
        self.key = key
        self.record_id = record_id
