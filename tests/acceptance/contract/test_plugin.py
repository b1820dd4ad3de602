"""The pytest plugin in runs of its own: what it imports, and what it says of contracts."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.services.processes import ROOT

pytestmark = [pytest.mark.processes, pytest.mark.leg("postgres18")]

PLUGIN = "django_idempotency.testing.pytest_plugin"

# The contract of a store outside of any Django project, with a rule that fails.
CONTRACT = """
from django_idempotency.stores.memory import MemoryStore
from django_idempotency.testing import FakeClock, StoreContract

class Forgetful(MemoryStore):
    def claim(self, request):
        claimed = super().claim(request)
        self._records.pop(request.record_id)
        return claimed

class TestMine(StoreContract):
    backend = "django_idempotency.stores.memory.MemoryStore"
    options = {"clock": FakeClock()}
    shared = False
    thread_keys = 2

class TestForgetful(TestMine):
    backend = "test_mine.Forgetful"
"""

# A suite from before REQUIRED.
KEYLESS = """
import django
from django.conf import settings

settings.configure(ROOT_URLCONF=__name__)
django.setup()

from django.http import HttpResponse
from django.test import Client
from django.urls import path
from django_idempotency.http import idempotent

@idempotent(required=True)
def pay(request):
    return HttpResponse(status=201)

urlpatterns = [path("", pay)]

def test_old():
    assert Client().post("/").status_code == 201

def test_passes():
    assert Client().post("/").status_code == 400

def test_fails_otherwise():
    assert Client().get("/").status_code == 400
"""


def run(directory, *arguments):
    """Run Python in a project of its own, which has no settings."""
    others = ("DJANGO", "PYTEST")
    env = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    return subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        cwd=directory,
        env={**env, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_loading_the_plugin_imports_neither_Django_nor_the_contract(tmp_path):
    done = run(tmp_path, "-c", f"import {PLUGIN}, sys; print(*sys.modules)")

    loaded = [name for name in done.stdout.split() if name.startswith(("django.", "django_id"))]
    ours = ["", ".exceptions", ".exceptions.base", ".testing"]
    assert sorted(loaded) == [*(f"django_idempotency{name}" for name in ours), PLUGIN]


def test_contracts_are_summed_up_without_Django_and_over_the_workers_of_xdist(tmp_path):
    (tmp_path / "test_mine.py").write_text(CONTRACT)
    rules = "TestMine and (test_I6 or test_R68) or TestForgetful and won_claim_is_recorded"

    done = run(tmp_path, "-m", "pytest", "-p", "no:cacheprovider", "-v", "-n", "2", "-k", rules)

    assert done.returncode == 1, done.stdout + done.stderr
    passed = done.stdout.count("PASSED test_mine.py::TestMine::")
    assert passed > 10
    for line in (
        " store contract ",
        f"\nTestMine: {passed} passed\n",
        "left out: 4, because its records belong to one process",
        "left out: 2, because there is no hook corrupt()",
        "    test_get_of_a_damaged_record_is_an_error\n",  # as -v asks
        "\nTestForgetful: 0 passed, 1 did not\n",
        "the record is gone",
        "assert None is not None",  # pytest's own explanation
    ):
        assert line in done.stdout


def test_a_test_that_fails_and_has_sent_no_key_is_told_of_the_marker(tmp_path):
    (tmp_path / "test_mine.py").write_text(KEYLESS)

    plain = ("-p", "no:cacheprovider", "-p", "no:django", "-p", "no:randomly", "-rA")
    done = run(tmp_path, "-m", "pytest", *plain)

    assert "2 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    old, otherwise = done.stdout.split("___ test_fails_otherwise ___")
    assert "assert 400 == 201" in old
    assert "@pytest.mark.idempotency_keys adds the keys" in old
    assert "idempotency_keys" not in otherwise
