"""An app in memory for the rules, and a real broker with real workers for the rest."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from typing import Any, Protocol

import pytest
from celery import _state
from celery.contrib.testing.app import TestApp, setup_default_app

from django_idempotency.conf import store_for
from django_idempotency.stores.dynamodb import DynamoDBStore
from django_idempotency.stores.dynamodb_schema import create
from tests.acceptance.celery.stage import Test
from tests.services import MissingService, may_be_missing
from tests.services.celery import CeleryWorker
from tests.services.databases import environment_for_children
from tests.services.dynamodb import ENVIRONMENT, dynamodb_url
from tests.services.redis import redis_url
from tests.unit.celery.local import Local

WORKERS = pytest.StashKey[list[CeleryWorker]]()
MEMORY = "django_idempotency.stores.memory.MemoryStore"


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch) -> Iterator[Local]:
    """An app of this test alone, whose messages the test delivers."""
    # As before when the test is over: the checks look at the tasks of the app that is current.
    monkeypatch.setattr(_state, "default_app", None)
    monkeypatch.setattr(_state._tls, "current_app", None)
    app = TestApp("rules", config={"result_backend": "cache+memory://"})
    with setup_default_app(app):
        monkeypatch.setattr(_state, "_on_app_finalizers", set())  # no shared tasks of others
        app.set_current()
        found = Local(app)
        found.sent()  # what another test left: there is one memory in a process
        yield found


@pytest.fixture
def app(local: Local) -> Any:
    return local.app


@pytest.fixture
def memory(settings: Any) -> Any:
    """The default alias is a memory store."""
    settings.IDEMPOTENCY = {"default": {"BACKEND": MEMORY}}
    return store_for()


# Real workers.


class WorkerFactory(Protocol):
    def __call__(self, number: int = 1, **arguments: Any) -> list[CeleryWorker]: ...


@pytest.fixture(scope="session")
def broker_url() -> Iterator[str]:
    """A server of the run's own, that keeps messages, results, and what tests and tasks tell."""
    version = "valkey9" if sys.version_info >= (3, 11) else "redis6"
    with ExitStack() as stack:
        try:
            url = stack.enter_context(redis_url(version))
        except MissingService as error:
            if may_be_missing():
                pytest.skip(str(error))
            raise
        yield url


@pytest.fixture(scope="module")
def stage(broker_url: str) -> Iterator[Test]:
    """A broker without messages, and a log without events; for one module."""
    test = Test(broker_url, f"{uuid.uuid4().hex[:8]}:")
    yield test
    test.close()


@pytest.fixture(scope="session")
def tasks_table() -> Iterator[str]:
    """A DynamoDB of the run's own, with the table of the workers' store."""
    with ExitStack() as stack:
        try:
            url = stack.enter_context(dynamodb_url())
        except MissingService as error:
            if may_be_missing():
                pytest.skip(str(error))
            raise
        with pytest.MonkeyPatch.context() as patch:
            for name, value in ENVIRONMENT.items():
                patch.setenv(name, value)
            create(DynamoDBStore(table_name="tasks", endpoint_url=url, timeout=10))
        yield url


@pytest.fixture(scope="module")
def workers(
    request: pytest.FixtureRequest, stage: Test, tasks_table: str, django_db_setup: None
) -> Iterator[WorkerFactory]:
    """Start workers on the run's own database; they end with the module."""
    started = request.node.stash.setdefault(WORKERS, [])
    with ExitStack() as stack:

        def start(number: int = 1, **arguments: Any) -> list[CeleryWorker]:
            table = {"IDEMPOTENCY_TEST_TASKS_DYNAMODB": tasks_table, **ENVIRONMENT}
            env = {**environment_for_children(), **stage.environment, **table}
            found = []
            for _ in range(number):
                options = ["--hostname", f"worker-{len(started)}"]
                found.append(CeleryWorker(env=env, options=options, **arguments))
                started.append(found[-1])
                stack.callback(found[-1].close)
                found[-1].launch()
            for worker in found:
                worker.start()
            return found

        yield start


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what the workers of a failed test's module wrote."""
    report = yield
    module = item.getparent(pytest.Module)
    if report.failed and module is not None:
        for worker in module.stash.get(WORKERS, []):
            report.sections.append(("output of a worker", worker.output))
    return report
