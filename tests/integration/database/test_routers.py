"""R87: database routers do not decide where records live; the alias of the store does."""

from __future__ import annotations

from typing import Any

import pytest

from django_idempotency.engine import Engine
from django_idempotency.models import IdempotencyRecord
from django_idempotency.stores.database import DatabaseStore
from tests.integration.database.claims import effects, operation, work

pytestmark = [
    pytest.mark.django_db(transaction=True, databases=["default", "other"]),
    pytest.mark.leg("postgres18"),
]


class ReadsFromTheReplica:
    """What a project with a replica has; here the replica is a database of its own."""

    def db_for_read(self, model: Any, **hints: Any) -> str:
        return "other"

    def db_for_write(self, model: Any, **hints: Any) -> str:
        return "default"


@pytest.mark.parametrize("mode", ["single", "joined", "separate"])
@pytest.mark.parametrize(("using", "other"), [("default", "other"), ("other", "default")])
def test_R87_claim_and_replay_are_on_the_database_that_is_written(settings, mode, using, other):
    settings.DATABASE_ROUTERS = ["tests.integration.database.test_routers.ReadsFromTheReplica"]
    engine = Engine(DatabaseStore(using=using))
    engine.run(operation(transaction=mode), work("mine"))
    assert engine.run(operation(transaction=mode), work("again")).replayed
    assert IdempotencyRecord.objects.using(using).count() == 1
    assert IdempotencyRecord.objects.using(other).count() == 0
    assert effects("default") == ["mine"]
