"""R58, R60: a pool without health checks, whose connections have all died."""

from __future__ import annotations

import pytest
from django.db import DatabaseError, connection, connections

from django_idempotency.engine import Engine
from django_idempotency.exceptions import StoreError
from django_idempotency.records import State
from django_idempotency.stores.database import DatabaseStore
from django_idempotency.stores.database.atomic import Block
from tests.integration.database.claims import Boom, effects, operation, state_of, work
from tests.integration.database.sessions import PATIENCE
from tests.services.processes import wait_until

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.leg("postgres18"),
]

#: More connections than a statement is sent on.
SIZE = 6


@pytest.fixture
def kill(other):
    """End all sessions but that of `other`; ours come from a pool."""
    unpooled = connections["default"]
    unpooled.close()
    connections["default"] = pooled = unpooled.copy()
    pool = {"min_size": SIZE, "max_size": SIZE, "timeout": 10}
    pooled.settings_dict["OPTIONS"]["pool"] = pool
    try:
        pooled.ensure_connection()
        wait_until(
            lambda: pooled.pool.get_stats()["pool_available"] == SIZE - 1,
            seconds=PATIENCE,
            what="the pool to be full",
        )
        yield lambda: other(end_the_others)
    finally:
        connections["default"] = unpooled
        pooled.close()
        pooled.close_pool()


def end_the_others():
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            " AND backend_type = 'client backend'"
        )


@pytest.mark.parametrize(("mode", "state"), [("separate", State.FAILED), ("single", None)])
def test_R58_the_record_of_work_that_failed_with_its_connection_is_failed(
    store, other, kill, mode, state, caplog
):
    def fail(lease):
        kill()
        raise Boom

    with pytest.raises(Boom):
        Engine(store).run(operation(transaction=mode), fail)
    assert other(state_of, store) is state
    told = [entry.getMessage() for entry in caplog.records if entry.name == "django_idempotency"]
    assert len(told) == (mode == "single")  # which has no lease to lapse
    assert all("it ends with its transaction." in message for message in told)


class Killed(Block):
    """A transaction whose connection, and all others, die before its COMMIT."""

    def __exit__(self, *exc_info):
        if self.outer is None:
            self.kill()
        super().__exit__(*exc_info)


class KilledStore(DatabaseStore):
    """A store whose first transaction is `Killed`."""

    def __init__(self, kill):
        super().__init__()
        self.kill = kill

    def atomic(self, *, committed=None):
        if self.kill is None:
            return super().atomic(committed=committed)
        block = Killed(self.using, committed)
        block.kill, self.kill = self.kill, None
        return block


@pytest.mark.parametrize(("mode", "state"), [("joined", State.RELEASED), ("single", State.FAILED)])
def test_R60_what_the_commit_did_is_asked_on_a_fresh_connection(other, kill, mode, state):
    store = KilledStore(kill)
    with pytest.raises((StoreError, DatabaseError)):
        Engine(store).run(operation(transaction=mode), work("mine"))
    assert (other(state_of, store), other(effects)) == (state, [])
