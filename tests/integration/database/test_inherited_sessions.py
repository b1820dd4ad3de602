"""Sessions that a forked child has from its parent are refused: both would read their answers."""

from __future__ import annotations

import gc

import pytest
from django.db import connection, connections

from django_idempotency.exceptions import StoreError
from tests.claims import asked, lost, won
from tests.integration.database.sessions import PATIENCE
from tests.services.forks import in_child
from tests.services.processes import wait_until

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.leg("postgres18"),
    pytest.mark.processes,
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]


@pytest.fixture
def pool(transactional_db, monkeypatch):
    """The default database has a pool of one session, which is idle."""
    settings = connections.settings["default"]
    connection.close()
    options = {**settings["OPTIONS"], "pool": {"min_size": 1, "max_size": 1}}
    monkeypatch.setitem(settings, "OPTIONS", options)
    connection.ensure_connection()
    connection.close()
    wait_until(
        lambda: connection.pool.get_stats()["pool_available"] == 1,
        seconds=PATIENCE,
        what="the session to be back in its pool",
    )
    yield
    connection.close()
    connection.close_pool()


def refused(store):
    with pytest.raises(StoreError, match=r"opened before this process was forked.*close_pool"):
        store.claim(asked("child"))


def test_session_of_the_parent_is_refused(store):
    won(store.claim(asked("parent")))
    assert in_child(lambda: refused(store)) == 0
    won(store.claim(asked("child")))  # the parent's session is still good


def test_idle_session_of_the_parents_pool_is_refused(store, pool):
    assert in_child(lambda: refused(store)) == 0
    won(store.claim(asked("child")))


def test_child_that_has_let_go_of_its_parents_sessions_claims_on_its_own(store):
    won(store.claim(asked("parent")))

    def claim():
        connection.connection = None  # the parent's session stays open
        gc.collect()
        won(store.claim(asked("child")))

    assert in_child(claim) == 0
    assert lost(store.claim(asked("child"))).key == "child"
