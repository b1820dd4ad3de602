"""ATOMIC_REQUESTS of a guarded view: Django leaves its transactions to us, we open them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

from django.db import connections, transaction

__all__ = ["atomic_requests", "mark"]

View = TypeVar("View", bound=Callable[..., Any])


class _EveryAlias(set[str]):
    """The aliases whose transactions are not Django's to open: all of them, also later ones."""

    def __contains__(self, alias: object) -> bool:
        return True


def mark(view: View) -> View:
    """Mark a view as non_atomic_requests, for every database."""
    view._non_atomic_requests = _EveryAlias()  # type: ignore[attr-defined]
    return view


@contextmanager
def atomic_requests(*, without: Collection[str] = ()) -> Iterator[list[str]]:
    """
    Open a transaction on each ATOMIC_REQUESTS alias but those that a view is exempt from.

    Yields the aliases on which one was opened.
    """
    opened = []
    with ExitStack() as blocks:
        for alias, settings in connections.settings.items():
            if settings["ATOMIC_REQUESTS"] and alias not in without:
                blocks.enter_context(transaction.atomic(using=alias))
                opened.append(alias)
        yield opened
