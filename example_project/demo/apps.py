"""What only the demo does to the shop: stop payments, call a card company, take the guard off."""

from __future__ import annotations

import os
import uuid
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.apps import AppConfig
from django.db import transaction
from django.db.models.signals import post_save

import django_idempotency as idempotency
from example_project.demo import pauses

if TYPE_CHECKING:
    from example_project.shop.models import Order, Payment

#: Which guard the payments have: LIBRARY, or what others do instead.
GUARD = "EXAMPLE_GUARD"
LIBRARY, NONE, NAIVE = "library", "none", "naive"
#: Names the file with a line for each call of the card company: a reference, and a key.
CALLS = "EXAMPLE_CALLS"


class DemoConfig(AppConfig):
    name = "example_project.demo"

    def ready(self) -> None:
        if pauses.FOLDER in os.environ:
            from example_project.shop import gateway

            post_save.connect(paid, sender="shop.Payment")
            post_save.connect(marked, sender="shop.Order")
            gateway.called.connect(charged)
        if os.environ.get(GUARD, LIBRARY) != LIBRARY:
            take_the_guard_off()


def paid(instance: Payment, created: bool, **kwargs: Any) -> None:
    """Call the card company, and stop where the demo wants it."""
    if not created:
        return
    lease = idempotency.current()
    key = uuid.uuid4() if lease is None else lease.derive_key("card")
    with Path(os.environ[CALLS]).open("a") as calls:
        calls.write(f"{instance.reference} {key}\n")
    pauses.stop(pauses.WRITTEN)
    transaction.on_commit(partial(pauses.stop, pauses.COMMITTED))


def charged(reference: str, key: str, **kwargs: Any) -> None:
    """Write down a call that the shop's own code makes."""
    with Path(os.environ[CALLS]).open("a") as calls:
        calls.write(f"{reference} {key}\n")


def marked(instance: Order, created: bool, **kwargs: Any) -> None:
    """Stop where the demo wants it, before the step commits that marks an order as paid."""
    if not created:
        pauses.stop(pauses.MARKED)


def card_company(reference: str) -> list[str]:
    """Return the key of each call for a payment. The company charges once per key."""
    calls = [line.split() for line in Path(os.environ[CALLS]).read_text().splitlines()]
    return [key for called, key in calls if called == reference]


def take_the_guard_off() -> None:
    from example_project.shop.views import PaymentViewSet, TransferViewSet

    for view in (PaymentViewSet, TransferViewSet):
        view.idempotency_actions = frozenset()
