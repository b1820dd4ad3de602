"""R87: database routers do not decide where records live; the alias of the store does."""

from __future__ import annotations

from typing import Any

import pytest

from django_idempotency.engine import Engine
from django_idempotency.models import IdempotencyRecord
from django_idempotency.stores.database import DatabaseStore
from tests.integration.database.claims import effects, operation, work
from tests.unit.http.api import replayed

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])


class ReadsFromTheReplica:
    """What a project with a replica has; here the replica is a database of its own."""

    def db_for_read(self, model: Any, **hints: Any) -> str:
        return "other"

    def db_for_write(self, model: Any, **hints: Any) -> str:
        return "default"


@pytest.fixture(autouse=True)
def routers(settings):
    settings.DATABASE_ROUTERS = ["tests.integration.database.test_routers.ReadsFromTheReplica"]


@pytest.mark.parametrize("mode", ["single", "joined", "separate"])
def test_R87_claim_and_replay_are_on_the_database_that_is_written(store, mode):
    engine = Engine(store)
    engine.run(operation(transaction=mode), work("mine"))
    assert engine.run(operation(transaction=mode), work("again")).replayed
    assert IdempotencyRecord.objects.using("default").count() == 1
    assert IdempotencyRecord.objects.using("other").count() == 0
    assert effects("default") == ["mine"]


def test_R87_store_of_another_alias():
    engine = Engine(DatabaseStore(using="other"))
    engine.run(operation(transaction="separate"), work("mine"))
    assert engine.run(operation(transaction="separate"), work("again")).replayed
    assert IdempotencyRecord.objects.using("other").count() == 1


def test_R87_view(api, settings):
    settings.DATABASE_ROUTERS = []
    api(key="another")  # alice is there, where the view reads
    settings.DATABASE_ROUTERS = ["tests.integration.database.test_routers.ReadsFromTheReplica"]
    assert api(path="/atomic/").status_code == 200
    assert replayed(api(path="/atomic/"))
