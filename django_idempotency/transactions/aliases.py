"""Transactions on several database aliases, as one block."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from django.db import Error, connections, transaction

from django_idempotency.transactions.state import RollbackWatch, is_rolled_back, not_begun


class AtomicBlocks:
    """
    An ``atomic()`` on each of the aliases, as one block, and what has become of them.

    A transaction that cannot be begun raises the driver's error, on the aliases `of_store`
    SessionLost.
    """

    def __init__(self, aliases: Sequence[str], *, of_store: Collection[str] = ()) -> None:
        self._aliases = aliases
        self._of_store = of_store
        self._watches: dict[str, RollbackWatch] = {}
        self._blocks: list[tuple[str, Any]] = []
        self._committed: set[str] = set()

    def __len__(self) -> int:
        return len(self._aliases)

    def __enter__(self) -> AtomicBlocks:
        if not self._aliases:
            return self
        blocks = []
        with ExitStack() as begun:
            for alias in self._aliases:
                block: Any = transaction.atomic(using=alias)
                try:
                    begun.enter_context(block)
                except Error as error:
                    if alias not in self._of_store:
                        raise
                    raise not_begun(connections[alias], error) from error
                blocks.append((alias, block))
                self._watches[alias] = watch = RollbackWatch(connections[alias])
                begun.callback(watch.end)
                if len(connections[alias].atomic_blocks) == 1:  # it is this block that commits
                    transaction.on_commit(partial(self._committed.add, alias), using=alias)
            begun.pop_all()
        self._blocks = blocks  # now: those of a failure have ended
        return self

    def __exit__(self, exc_type: object, exc_value: BaseException | None, trace: object) -> None:
        """
        Commit them all, or roll them all back, the innermost first.

        A hook that raises after the commit of one does not roll back another (R58), because half of
        the work would stay. Its exception passes on after all have committed.
        """
        raised: BaseException | None = exc_value
        raised_by_hooks: list[BaseException] = []
        for alias, block in reversed(self._blocks):
            self._watches[alias].end()
            try:
                block.__exit__(None if raised is None else type(raised), raised, None)
            except BaseException as error:
                if alias in self._committed:
                    raised_by_hooks.append(error)
                elif raised is None or not isinstance(error, Error):
                    raised = error  # or else Django could not connect anew after the rollback
        if raised is not None and raised is not exc_value:
            raise raised
        if raised_by_hooks:  # nothing was rolled back
            raise raised_by_hooks[0]

    def rolled_back(self) -> bool:
        """
        Return whether one of them can only be rolled back, though it is still open.

        Raises SessionLost where its session is lost.
        """
        return bool([alias for alias in self._aliases if is_rolled_back(connections[alias])])

    def rollback_is_deliberate(self) -> bool:
        """Return whether the work called ``set_rollback(True)`` for each of those (R91)."""
        return all(
            watch.deliberate
            for alias, watch in self._watches.items()
            if is_rolled_back(connections[alias])
        )

    @property
    def committed(self) -> bool:
        """Whether there are any, and all have committed."""
        return 0 < len(self) == len(self._committed)
