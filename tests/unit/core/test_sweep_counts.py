"""What ``idempotency_sweep --dry-run`` says of each store: counted, and nothing deleted."""

from __future__ import annotations

import io
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import call_command

import django_idempotency as idempotency
from django_idempotency.conf import store_for
from django_idempotency.stores.base import BaseStore
from django_idempotency.stores.memory import MemoryStore
from django_idempotency.testing import FakeClock, override_store


class CannotCount(MemoryStore):
    """A store that leaves `count_expired` as it is."""

    count_expired: Any = BaseStore.count_expired


def said() -> str:
    out = io.StringIO()
    call_command("idempotency_sweep", "--dry-run", "--store", "default", stdout=out)
    return out.getvalue()


@pytest.mark.parametrize(
    ("store_class", "expected"),
    [
        (MemoryStore, "default: 2 expired records\n"),
        (CannotCount, "default: this store cannot count its expired records\n"),
    ],
)
def test_I9_dry_run_counts_where_the_store_can_and_deletes_nothing(
    store_class: type[MemoryStore], expected: str
) -> None:
    clock = FakeClock()
    with override_store(store_class, clock=clock):
        for key in ("a", "b"):
            idempotency.run(lambda lease: 1, key=key, scope="s")
        clock.advance(timedelta(hours=25))
        idempotency.run(lambda lease: 1, key="c", scope="s")

        assert said() == expected

        assert store_for().sweep() == 2
