"""The transactions of an attempt's work, and what is known of their end."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

from django_idempotency.transactions.aliases import AtomicBlocks

#: In the place of a block that an attempt does not open.
_NOT_OPEN = nullcontext()
_NO_ALIASES = AtomicBlocks(())


class WorkBlocks:
    """The transactions of the work: from the inside, its own, those beside it, and all of it."""

    #: `single`: the transaction of claim, work and record, once it is open.
    whole: AbstractContextManager[Any] = _NOT_OPEN
    #: The block in which the work and its record commit together, once it is open.
    work: AbstractContextManager[Any] = _NOT_OPEN
    #: Whether the transaction of work and completion is known to have committed.
    committed = False
    #: What a hook raised after those beside had committed.
    raised_by_hook: Exception | None = None

    def __init__(self, aliases: Sequence[str]) -> None:
        #: The transactions of the work on other aliases.
        self.beside = AtomicBlocks(aliases) if aliases else _NO_ALIASES

    def open(self, block: AbstractContextManager[Any]) -> None:
        """Open the block of the work, which the end of the attempt leaves."""
        opened = ExitStack()
        opened.enter_context(block)
        self.work = opened

    def note_commit(self) -> None:
        """Note that the transaction of work and completion has committed."""
        self.committed = True
