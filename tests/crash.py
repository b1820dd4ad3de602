"""A process that dies at a point of an attempt: ``python -m tests.crash POINT MODE``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

#: The exit code of a death as planned.
DIED = 42

POINTS = (
    "before_claim",
    "after_claim",
    "in_work",
    "after_work",
    "after_completion",
    "after_commit",
)


def die(*args: Any) -> Any:
    """End without cleaning anything up, as SIGKILL does."""
    os._exit(DIED)


def main(point: str, mode: str) -> None:
    import django

    django.setup()

    import django_idempotency as idempotency
    from django_idempotency.conf import store_for
    from tests.app.models import Effect

    store: Any = store_for()
    claim, complete = store.claim, store.complete

    def then_die(function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            function(*args, **kwargs)
            die()

        return called

    def work(lease: Any) -> str:
        Effect.objects.create(name="crash")
        if point == "in_work":
            die()
        return "done"

    if point == "before_claim":
        store.claim = die
    elif point == "after_claim":
        store.claim = then_die(claim)
    elif point == "after_work":
        store.complete = lambda *args, **kwargs: die()
    elif point == "after_completion":
        store.complete = then_die(complete)
    idempotency.run(work, key="crash", scope="tests", transaction=mode)
    die()


if __name__ == "__main__":
    main(*sys.argv[1:])
