"""ATOMIC_REQUESTS of a guarded view: the guard opens the transactions in place of Django."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

from django.db import Error, connections, transaction

from django_idempotency.stores.database.atomic import RollbackWatch, is_rolled_back, not_begun

__all__ = [
    "AtomicRequests",
    "answering",
    "atomic_aliases",
    "exempt",
    "is_marked",
    "mark",
    "refuse_coroutine",
]

View = TypeVar("View", bound=Callable[..., Any])


class _EveryAlias(set[str]):
    """
    Exempts a view on all aliases, also later ones, so that Django opens no transaction.

    It contains the aliases that the project has named.
    """

    def __contains__(self, alias: object) -> bool:
        return True


class AtomicRequests:
    """
    The transactions of ATOMIC_REQUESTS, as a block, and what has become of them.

    One for each ATOMIC_REQUESTS alias but those `without`; around them one for each alias `beside`.
    """

    def __init__(self, *, without: Collection[str] = (), beside: Collection[str] = ()) -> None:
        self._beside = beside
        self._aliases = [*beside, *atomic_aliases({*without, *beside})]
        self._watches: dict[str, RollbackWatch] = {}
        self._blocks: list[tuple[str, Any]] = []
        self._committed: set[str] = set()

    def __len__(self) -> int:
        return len(self._aliases)

    def __enter__(self) -> AtomicRequests:
        if not self._aliases:
            return self
        with ExitStack() as begun:
            for alias in self._aliases:
                block: Any = transaction.atomic(using=alias)
                try:
                    begun.enter_context(block)
                except Error as error:
                    if alias not in self._beside:
                        raise
                    raise not_begun(connections[alias], error) from error
                self._blocks.append((alias, block))
                self._watches[alias] = watch = RollbackWatch(connections[alias])
                begun.callback(watch.end)
                if len(connections[alias].atomic_blocks) == 1:  # it is this block that commits
                    transaction.on_commit(partial(self._committed.add, alias), using=alias)
            begun.pop_all()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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
                if raised is None and alias in self._committed:
                    raised_by_hooks.append(error)
                else:
                    raised = error
        if raised is not None and raised is not exc_value:
            raise raised
        if raised is None and raised_by_hooks:
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


def mark(view: View) -> View:
    """Mark a view as non_atomic_requests, for every database."""
    view._non_atomic_requests = _EveryAlias(exempt(view))  # type: ignore[attr-defined]
    return view


def is_marked(view: Callable[..., Any] | None) -> bool:
    """Return whether a view, or a method of one, guards itself."""
    return isinstance(getattr(view, "_non_atomic_requests", None), _EveryAlias)


def exempt(view: Callable[..., Any] | None) -> set[str]:
    """Return the aliases that the project has named with non_atomic_requests on a view."""
    return set(getattr(view, "_non_atomic_requests", ()))


@contextmanager
def answering(*, without: Collection[str] = ()) -> Iterator[None]:
    """
    Open the blocks in which DRF turns an exception into an answer (R84).

    DRF then marks each open transaction of an ATOMIC_REQUESTS alias for rollback. So it finds a
    block of the guard, never that of the caller or of a TestCase, also on exempt aliases.
    """
    closed = {alias for alias in without if not connections[alias].in_atomic_block}
    with AtomicRequests(without=closed):
        yield


def atomic_aliases(without: Collection[str] = ()) -> list[str]:
    """Return the ATOMIC_REQUESTS aliases but those that a view is exempt from."""
    databases = connections.settings.items()
    return [
        alias for alias, given in databases if given["ATOMIC_REQUESTS"] and alias not in without
    ]


def refuse_coroutine(without: Collection[str]) -> None:
    """Raise Django's error for a coroutine view that would lose its ATOMIC_REQUESTS (R96)."""
    if atomic_aliases(without):
        raise RuntimeError("You cannot use ATOMIC_REQUESTS with async views.")
