"""`django_idempotency.tasks.sweep_expired`: the sweep for beat."""

from __future__ import annotations

import logging
import subprocess
import sys
from typing import Any

import pytest
from celery import Celery

import django_idempotency as idempotency
from django_idempotency import StoreError
from django_idempotency.conf import store_for
from django_idempotency.tasks import sweep_expired
from django_idempotency.testing import FakeClock
from tests.services.processes import ROOT
from tests.unit.celery.conftest import MEMORY

NAME = "django_idempotency.tasks.sweep_expired"


@pytest.fixture
def aliases(settings: Any, clock: FakeClock) -> None:
    """Two aliases with three and one expired records."""
    memory = {"BACKEND": MEMORY, "OPTIONS": {"clock": clock}, "RETENTION": 3600}
    settings.IDEMPOTENCY = {"default": memory, "other": dict(memory)}
    for number in range(3):
        idempotency.run(lambda lease: None, key=str(number), scope="s")
    idempotency.run(lambda lease: None, key="k", scope="s", store="other")
    clock.advance(5000)


@pytest.mark.usefixtures("aliases")
class TestTask:
    def test_it_is_a_task_of_every_app_and_counts_what_it_deleted(self) -> None:
        task = Celery(set_as_current=False, fixups=[]).tasks[NAME]

        assert task.apply().get() == {"default": 3, "other": 1}
        assert task.apply().get() == {"default": 0, "other": 0}

    def test_it_can_be_of_one_alias(self) -> None:
        assert sweep_expired("other") == {"other": 1}
        assert len(store_for()._records) == 3

    def test_it_is_bounded(self) -> None:
        assert sweep_expired(max_seconds=0) == {"default": 0, "other": 0}

    def test_its_batches_are_told_in_the_log(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG, logger="django_idempotency")

        sweep_expired(limit=2)

        assert caplog.messages == [
            "Sweeping default: 2 expired records deleted so far.",
            "Sweeping other: 1 expired records deleted so far.",
            "Sweeping default: 3 expired records deleted so far.",
            "Swept default: 3 expired records deleted.",
            "Swept other: 1 expired records deleted.",
        ]

    def test_one_that_is_down_fails_the_task_when_the_others_are_swept(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def down(**arguments: Any) -> int:
            raise StoreError("The server is down.")

        monkeypatch.setattr(store_for("default"), "sweep", down)

        with pytest.raises(StoreError, match="The server is down"):
            sweep_expired()

        assert len(store_for("other")._records) == 0


WITHOUT_CELERY = """
import importlib.machinery, sys
found = importlib.machinery.PathFinder.find_spec
importlib.machinery.PathFinder.find_spec = classmethod(
    lambda cls, name, path=None, target=None: None if name == "celery" else found(name, path)
)
import django
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["django_idempotency"],
    IDEMPOTENCY={"default": {"BACKEND": "django_idempotency.stores.memory.MemoryStore"}},
)
django.setup()
from django.utils.module_loading import autodiscover_modules
autodiscover_modules("tasks")
from django_idempotency.tasks import sweep_expired
assert "celery" not in sys.modules
print(sweep_expired())
"""


@pytest.mark.processes
def test_without_celery_it_is_a_function() -> None:
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", WITHOUT_CELERY],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (result.stdout, result.stderr) == ("{'default': 0}\n", "")
