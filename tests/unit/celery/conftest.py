"""An app in memory, and stores and a clock of the test's own."""

from __future__ import annotations

import pytest
from celery import _state
from celery.contrib.testing.app import TestApp, setup_default_app

from django_idempotency.conf import store_for
from django_idempotency.testing import FakeClock
from tests.unit.celery.local import Local

MEMORY = "django_idempotency.stores.memory.MemoryStore"


@pytest.fixture
def local(monkeypatch):
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
def app(local):
    return local.app


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def memory(settings, clock):
    """The default alias is a memory store whose time is `clock`."""
    options = {"BACKEND": MEMORY, "LEASE": 90, "OPTIONS": {"clock": clock}}
    settings.IDEMPOTENCY = {"default": options}
    return store_for()


@pytest.fixture
def state(memory):
    """The state of the only record."""
    return lambda: next(str(record.state) for [record] in [memory._records.values()])
