"""The tests of REPEATABLE READ and SERIALIZABLE, with what makes them so the other way round."""

from __future__ import annotations

import pytest

from tests.integration.database.conftest import at_level
from tests.integration.database.test_isolation import *  # noqa: F403
from tests.integration.database.test_isolation import pytestmark  # noqa: F401


@pytest.fixture(params=[("serializable", "option"), ("repeatable read", "server")], ids=" by ".join)
def isolation(request, transactional_db, monkeypatch):
    yield from at_level(request, monkeypatch)
