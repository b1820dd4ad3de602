"""Fixtures for tests with gunicorn processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import pytest
from django.contrib.auth.models import User

from tests.acceptance.processes.clients import USER, Work
from tests.conftest import GunicornFactory
from tests.services.gunicorn import Gunicorn


class Serve(Protocol):
    def __call__(
        self,
        transaction: str | None = None,
        *,
        lease: float = ...,
        renew: bool = ...,
        max_duration: float = ...,
        atomic_requests: bool = ...,
        **arguments: Any,
    ) -> Gunicorn: ...


@pytest.fixture(autouse=True)
def threads() -> Iterator[ThreadPoolExecutor]:
    """Threads for requests under way; they end after gunicorn, whatever a test left waiting."""
    with ThreadPoolExecutor(8, thread_name_prefix="test-client") as executor:
        yield executor


@pytest.fixture(autouse=True)
def user(transactional_db: None) -> User:
    """The caller, there from the start: creating it is not part of any race."""
    return User.objects.create(username=USER)


@pytest.fixture
def work(tmp_path: Path, threads: ThreadPoolExecutor) -> Callable[..., Work]:
    """`work(name)`: work that waits to be told."""
    return lambda name="pay": Work(tmp_path, threads, name)


@pytest.fixture
def serve(gunicorn: GunicornFactory) -> Serve:
    """`serve(transaction, …)`: start gunicorn under that policy; 2 workers."""

    def start(
        transaction: str | None = None,
        *,
        lease: float = 60,
        renew: bool = True,
        max_duration: float = 3600,
        atomic_requests: bool = False,
        **arguments: Any,
    ) -> Gunicorn:
        env = {
            "IDEMPOTENCY_TEST_LEASE": str(lease),
            "IDEMPOTENCY_TEST_RENEW": str(int(renew)),
            "IDEMPOTENCY_TEST_MAX_DURATION": str(max_duration),
            "IDEMPOTENCY_TEST_ATOMIC_REQUESTS": str(int(atomic_requests)),
            **arguments.pop("env", {}),
        }
        if transaction is not None:
            env["IDEMPOTENCY_TEST_TRANSACTION"] = transaction
        return gunicorn(env=env, **{"workers": 2, **arguments})

    return start
