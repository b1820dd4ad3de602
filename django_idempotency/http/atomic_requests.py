"""ATOMIC_REQUESTS of a guarded view: Django leaves its transactions to us, we open them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

from django.db import connections, transaction

from django_idempotency.exceptions import StoreError
from django_idempotency.stores.blocks import is_doomed, is_lost

__all__ = ["OpenRequests", "answering", "atomic_requests", "exempt", "is_marked", "mark"]

View = TypeVar("View", bound=Callable[..., Any])


class _EveryAlias(set[str]):
    """
    The aliases whose transactions are not Django's to open: all of them, also later ones.

    It holds those that the project has named.
    """

    def __contains__(self, alias: object) -> bool:
        return True


class OpenRequests:
    """The transactions that stand for ATOMIC_REQUESTS, and what has become of them."""

    def __init__(self) -> None:
        self._aliases: list[str] = []
        self._committed = 0

    def opened(self, alias: str) -> None:
        """Note a transaction that has just been opened."""
        self._aliases.append(alias)
        if len(connections[alias].atomic_blocks) == 1:  # it is this block that commits, or not
            transaction.on_commit(self._note_commit, using=alias)

    def _note_commit(self) -> None:
        self._committed += 1

    @property
    def doomed(self) -> bool:
        """
        Whether one of them can only be rolled back, though no exception leaves it.

        Raises StoreError where its session is gone: an answer would tell of work that is lost.
        """
        doomed = [alias for alias in self._aliases if is_doomed(connections[alias])]
        for alias in doomed:
            if is_lost(connections[alias]):
                raise StoreError(f"The connection to the database {alias!r} was lost in the work.")
        return bool(doomed)

    @property
    def committed(self) -> bool:
        """Whether there are some, and all have committed."""
        return 0 < len(self._aliases) == self._committed


def mark(view: View) -> View:
    """Mark a view as non_atomic_requests, for every database."""
    view._non_atomic_requests = _EveryAlias(exempt(view))  # type: ignore[attr-defined]
    return view


def is_marked(view: Callable[..., Any] | None) -> bool:
    """Return whether a view, or a method of one, guards itself."""
    return isinstance(getattr(view, "_non_atomic_requests", None), _EveryAlias)


def exempt(view: Callable[..., Any] | None) -> set[str]:
    """Return the aliases that the project itself has named with non_atomic_requests on a view."""
    return set(getattr(view, "_non_atomic_requests", ()))


@contextmanager
def answering(*, without: Collection[str] = ()) -> Iterator[None]:
    """
    Open the blocks in which an exception is turned into an answer (R84).

    DRF marks each open transaction of an ATOMIC_REQUESTS alias for rollback then: what it finds
    open is a block of ours, never the caller's or a TestCase's, on exempt aliases too.
    """
    closed = {alias for alias in without if not connections[alias].in_atomic_block}
    with atomic_requests(without=closed):
        yield


@contextmanager
def atomic_requests(*, without: Collection[str] = ()) -> Iterator[OpenRequests]:
    """Open a transaction on each ATOMIC_REQUESTS alias but those that a view is exempt from."""
    requests = OpenRequests()
    with ExitStack() as blocks:
        for alias, settings in connections.settings.items():
            if settings["ATOMIC_REQUESTS"] and alias not in without:
                blocks.enter_context(transaction.atomic(using=alias))
                requests.opened(alias)
        yield requests
