"""The rights that docs/howto/dynamodb.md asks for are those that the store uses, and no others."""

from __future__ import annotations

import re
from dataclasses import replace

from django_idempotency.claims import Resolution
from django_idempotency.keys import new_token
from django_idempotency.stores.dynamodb import DynamoDBStore
from django_idempotency.stores.dynamodb import schema as dynamodb_schema
from django_idempotency.testing import FakeClock
from tests.integration.dynamodb.claims import DAY, HOUR, asked, found, won
from tests.integration.dynamodb.conftest import MakeStore
from tests.integration.dynamodb.wire import Wire
from tests.services.processes import ROOT


def documented() -> tuple[set[str], set[str]]:
    """The actions of a running process, and those that ``--create`` needs on top of them."""
    page = (ROOT / "docs/howto/dynamodb.md").read_text()
    section = page.partition("## Permissions\n")[2].partition("\n## ")[0]
    table, _, rest = section.partition("`idempotency_table --create`")
    creating = rest.partition(". ")[0]
    return (
        set(re.findall(r"dynamodb:(\w+)", table)),
        set(re.findall(r"dynamodb:(\w+)", creating)),
    )


def every_operation(store: DynamoDBStore, clock: FakeClock) -> None:
    lease = won(store.claim(asked()))
    store.renew([lease], HOUR)
    store.fail(lease, "boom")
    lease = won(store.claim(replace(lease.request, token=new_token())))
    store.release(lease)
    seen = found(store)
    store.resolve(seen.record_id, Resolution("expire", epoch=seen.epoch, state=seen.state))
    clock.advance(DAY)
    lease = won(store.claim(asked()))  # in the place of an expired record: PutItem
    store.complete(lease, b"result", retention=HOUR)
    store.browse()
    clock.advance(DAY)
    store.count_expired()
    store.sweep()
    store.check()


def test_documented_rights_are_those_that_are_used(make_store: MakeStore) -> None:
    used = set()
    for sort_key in (None, "SK"):
        clock = FakeClock()
        store = make_store(ttl=False, sort_key=sort_key, clock=clock)
        wire = Wire(store)
        every_operation(store, clock)
        used |= set(wire.taken())
    creating = DynamoDBStore(
        table_name=f"{store.table.name}-created",
        endpoint_url=store.table.client.native.meta.endpoint_url,
    )
    wire = Wire(creating)
    dynamodb_schema.create(creating)

    running, more = documented()

    assert used == running
    assert set(wire.taken()) - running == more
