"""What tests/acceptance/asgi shows, with 200 MB and 200 clients that hang up."""

from __future__ import annotations

import pytest

from tests.acceptance.asgi.conftest import gunicorn, peer, uvicorn, wsgi_peer  # noqa: F401
from tests.acceptance.asgi.test_disconnects import *  # noqa: F403
from tests.acceptance.asgi.test_uploads import *  # noqa: F403
from tests.acceptance.asgi.test_uploads import MEGABYTE

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def size() -> int:
    return 200 * MEGABYTE


@pytest.fixture
def times() -> int:
    return 200
