"""`django_idempotency.tasks.sweep_expired`: the sweep for beat."""

from __future__ import annotations

import importlib.util
import logging
import runpy

import pytest
from celery import Celery

import django_idempotency as idempotency
from django_idempotency import StoreError, tasks
from django_idempotency.conf import store_for
from django_idempotency.tasks import sweep_expired
from tests.unit.celery.conftest import MEMORY


@pytest.fixture(autouse=True)
def aliases(settings, clock):
    """Two aliases with three and one expired records."""
    memory = {"BACKEND": MEMORY, "OPTIONS": {"clock": clock}, "RETENTION": 3600}
    settings.IDEMPOTENCY = {"default": memory, "other": dict(memory)}
    for alias, keys in {"default": "012", "other": "0"}.items():
        for key in keys:
            idempotency.run(lambda lease: None, key=key, scope="s", store=alias)
    clock.advance(5000)


def test_it_is_a_task_of_every_app_which_counts_and_logs_what_it_deleted(caplog):
    caplog.set_level(logging.DEBUG, logger="django_idempotency")
    task = Celery(set_as_current=False, fixups=[]).tasks["django_idempotency.tasks.sweep_expired"]

    assert task.apply(kwargs={"limit": 2}).get() == {"default": 3, "other": 1}

    ours = [line.getMessage() for line in caplog.records if line.name == "django_idempotency"]
    assert ours[-2:] == [
        "Swept default: 3 expired records deleted.",
        "Swept other: 1 expired records deleted.",
    ]
    assert "Sweeping default: 2 expired records deleted so far." in ours


def test_it_can_be_of_one_alias_and_is_bounded():
    assert sweep_expired(max_seconds=0) == {"default": 0, "other": 0}
    assert sweep_expired("other") == {"other": 1}
    assert len(store_for()._records) == 3


def test_one_that_is_down_fails_the_task_when_the_others_are_swept(monkeypatch):
    def down(**arguments):
        raise StoreError("The server is down.")

    monkeypatch.setattr(store_for("default"), "sweep", down)

    with pytest.raises(StoreError, match="The server is down"):
        sweep_expired()
    assert len(store_for("other")._records) == 0


def test_without_celery_it_is_a_function(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    swept = runpy.run_path(tasks.__file__)["sweep_expired"]

    assert type(swept) is type(lambda: None)
    assert swept() == {"default": 3, "other": 1}
