"""Fixtures of the tests of the database store."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import connection

from django_idempotency.stores.database import DatabaseStore
from tests.database.sessions import SECONDS, Session, Two, hang_up_after


@pytest.fixture
def store() -> DatabaseStore:
    """The store of the default database."""
    return DatabaseStore()


@pytest.fixture
def other(transactional_db: None) -> Iterator[Session]:
    """A second session, on a thread of its own."""
    session = Session()
    yield session
    session.close()


@pytest.fixture
def two(other: Session) -> Iterator[Two]:
    """Two sessions, neither of which hangs for longer than a moment."""
    hang_up_after(SECONDS)
    yield Two(other)
    connection.close()
