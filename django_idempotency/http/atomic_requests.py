"""ATOMIC_REQUESTS of a guarded view: the guard opens the transactions in place of Django."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from django.db import connections

from django_idempotency.transactions.aliases import AtomicBlocks

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


class AtomicRequests(AtomicBlocks):
    """
    The transactions of ATOMIC_REQUESTS, as a block.

    One for each ATOMIC_REQUESTS alias but those `without`; around them one for each alias `beside`,
    which is the store's.
    """

    def __init__(self, *, without: Collection[str] = (), beside: Collection[str] = ()) -> None:
        super().__init__([*beside, *atomic_aliases({*without, *beside})], of_store=beside)


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


def atomic_aliases(without: Collection[str | None] = ()) -> list[str]:
    """Return the ATOMIC_REQUESTS aliases but those that a view is exempt from."""
    databases = connections.settings.items()
    return [
        alias for alias, given in databases if given["ATOMIC_REQUESTS"] and alias not in without
    ]


def refuse_coroutine(without: Collection[str | None]) -> None:
    """Raise Django's error for a coroutine view that would lose its ATOMIC_REQUESTS (R96)."""
    if atomic_aliases(without):
        raise RuntimeError("You cannot use ATOMIC_REQUESTS with async views.")
