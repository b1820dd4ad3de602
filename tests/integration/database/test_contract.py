"""The contract on the database store, on the database of the running leg."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import pytest

from django_idempotency.models import IdempotencyRecord
from django_idempotency.stores.base import BaseStore
from django_idempotency.testing import StoreContract
from django_idempotency.testing.contract_claims import ClaimRules
from django_idempotency.testing.contract_races import RaceRules
from tests.services import current_leg

pytestmark = pytest.mark.django_db(transaction=True)


class TestDatabaseStore(StoreContract):
    backend = "django_idempotency.stores.database.DatabaseStore"
    options = {"using": "default"}
    moment = timedelta(milliseconds=20)
    own_clock = current_leg() != "sqlite"

    def corrupt(self, store: BaseStore, record_id: UUID) -> None:
        assert IdempotencyRecord.objects.filter(pk=record_id).update(state="NO STATE") == 1

    def forget(self, store: BaseStore, record_id: UUID) -> None:
        assert IdempotencyRecord.objects.filter(pk=record_id).delete()[0] == 1


class TestDatabaseStoreJoined(ClaimRules, RaceRules):
    """Claims of the mode that commits them alone and completes them with the work."""

    backend = TestDatabaseStore.backend
    transaction = "joined"
    moment = TestDatabaseStore.moment
