"""What browsing shows beside a record that somebody has damaged."""

from __future__ import annotations

import pytest

from django_idempotency.models import IdempotencyRecord
from django_idempotency.records import Filters
from tests.integration.database import claims
from tests.integration.database.claims import claim_request

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def damaged(store):
    """Records of which the second of three is damaged."""
    leases = [claims.completed(store, claim_request(name)) for name in ("a", "b", "c")]
    newest_first = [record.record_id for record in store.browse().records]
    IdempotencyRecord.objects.filter(pk=newest_first[1]).update(state="NO STATE")
    assert len(leases) == 3
    return newest_first


def test_damaged_record_is_left_out_and_logged(store, damaged, caplog):
    page = store.browse()

    assert [record.record_id for record in page.records] == [damaged[0], damaged[2]]
    [message] = [record.getMessage() for record in caplog.records]
    assert message.startswith("Record ")
    assert "cannot be shown" in message
    assert "NO STATE" not in message


def test_damaged_record_ends_no_page(store, damaged):
    found, cursor = [], None
    while True:
        page = store.browse(filters=Filters(), cursor=cursor, limit=1)
        found += [record.record_id for record in page.records]
        if (cursor := page.cursor) is None:
            break

    assert found == [damaged[0], damaged[2]]
