"""What tests/acceptance/asgi shows, with 200 MB and 200 clients that hang up."""

from __future__ import annotations

import pytest

from tests.acceptance.asgi.conftest import gunicorn, peer, uvicorn, wsgi_peer
from tests.acceptance.asgi.test_disconnects import (
    hang_up,
    test_R63_a_view_that_waits_when_its_client_hangs_up_is_ended,
    test_R63_clients_that_hang_up_at_every_moment_leave_no_half_committed_work,
)
from tests.acceptance.asgi.test_uploads import (
    MEGABYTE,
    test_R43_large_uploads_behind_gunicorn,
    test_R43_large_uploads_behind_uvicorn,
)

__all__ = [
    "gunicorn",
    "hang_up",
    "peer",
    "test_R43_large_uploads_behind_gunicorn",
    "test_R43_large_uploads_behind_uvicorn",
    "test_R63_a_view_that_waits_when_its_client_hangs_up_is_ended",
    "test_R63_clients_that_hang_up_at_every_moment_leave_no_half_committed_work",
    "uvicorn",
    "wsgi_peer",
]

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def size() -> int:
    return 200 * MEGABYTE


@pytest.fixture
def times() -> int:
    return 200
