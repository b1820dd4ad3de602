"""ATOMIC_REQUESTS of a guarded view: the guard opens the transactions in place of Django."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from django.db import connections
from django.http import HttpRequest

from django_idempotency.transactions.aliases import AtomicBlocks

View = TypeVar("View", bound=Callable[..., Any])


class _EveryAlias(set[str]):
    """
    Exempts a view on all aliases, also later ones, so that Django opens no transaction.

    It contains the aliases that the project has named.
    """

    def __contains__(self, alias: object) -> bool:
        return True


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


def atomic_of(request: HttpRequest, dispatch: Callable[..., Any] | None = None) -> list[str]:
    """
    Return the aliases on which ATOMIC_REQUESTS gives a transaction to the view of a request.

    The project may exempt some on the view that the URLconf names, and on a class's `dispatch`.
    """
    atomic = atomic_aliases()
    if not atomic:
        return atomic
    match = request.resolver_match
    exempted = exempt(match.func if match else None) | exempt(dispatch)
    return [alias for alias in atomic if alias not in exempted]


def blocks_on(aliases: Sequence[str]) -> AbstractContextManager[Any]:
    """Return a transaction on each of the aliases, as one block."""
    return AtomicBlocks(aliases) if aliases else nullcontext()


def answering(atomic: Collection[str]) -> AbstractContextManager[Any]:
    """
    Return the block in which DRF turns an exception of a view with `atomic` into an answer (R84).

    DRF then marks each open transaction of an ATOMIC_REQUESTS alias for rollback. So it finds a
    block of the guard, never that of the caller or of a TestCase, also on exempt aliases.
    """
    aliases = atomic_aliases()
    return blocks_on([it for it in aliases if it in atomic or connections[it].in_atomic_block])


def atomic_aliases(without: Collection[str | None] = ()) -> list[str]:
    """Return the ATOMIC_REQUESTS aliases but those that a view is exempt from."""
    databases = connections.settings.items()
    return [
        alias for alias, given in databases if given["ATOMIC_REQUESTS"] and alias not in without
    ]


def refuse_coroutine(atomic: Collection[str], own: str | None) -> None:
    """Raise Django's error for a coroutine that would lose its ATOMIC_REQUESTS but its `own`."""
    if any(alias != own for alias in atomic):  # R96
        raise RuntimeError("You cannot use ATOMIC_REQUESTS with async views.")
