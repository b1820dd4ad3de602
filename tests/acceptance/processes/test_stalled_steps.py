"""Owners that stall in a step past their lease, and come back (P10, P11)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import django_idempotency as idempotency
from django_idempotency.conf import store_for
from django_idempotency.models import IdempotencyRecord
from tests.acceptance.processes.test_steps import effects
from tests.services.databases import environment_for_children
from tests.services.processes import ROOT, wait_until

# On SQLite a step keeps all other writers out: nobody can take over.
pytestmark = [pytest.mark.processes, pytest.mark.leg("postgres18", "mariadb")]

#: How an owner ends that has lost its lease.
LEASE_LOST = 7
#: The work of each attempt; the owner's stops its own process at a place.
WORK = """
import os, signal, sys
import django
django.setup()
import django_idempotency as idempotency
from django_idempotency.conf import store_for
from tests.app.models import Effect

places = [{place!r}]

def reach(here):
    if here in places:
        places.remove(here)
        os.kill(os.getpid(), signal.SIGSTOP)

def step(name):
    Effect.objects.create(name=name)
    reach("in " + name)
    return name

def call(key):
    Effect.objects.create(name="called")
    reach("in call")
    return key

def note(*args, **given):
    noted(*args, **given)
    reach("after the note")

store = store_for()
noted, store.note = store.note, note

def work(lease):
    lease.step("one", step, "one")
    lease.external("call", call, uncertain="repeat")
    lease.step("two", step, "two")

try:
    idempotency.run(work, key="k", scope="s", transaction="steps", lease=1)
except idempotency.LeaseLost:
    sys.exit(7)
"""


@pytest.fixture(autouse=True)
def default_store(settings: Any, transactional_db: None) -> None:
    settings.IDEMPOTENCY = {"default": {}}


@contextmanager
def attempt(place: str = "nowhere") -> Iterator[subprocess.Popen[bytes]]:
    """Run the work in a process of its own, which ends with the block."""
    command = [sys.executable, "-c", WORK.format(place=place)]
    with subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, **environment_for_children()}
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def stalled(place: str) -> Iterator[subprocess.Popen[bytes]]:
    """Stop an owner at this place until its lease has lapsed."""
    with attempt(place) as owner:
        _, status = os.waitpid(owner.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        wait_until(is_stale, seconds=30, what="the end of the lease")
        yield owner


def is_stale() -> bool:
    record = store_for().get(IdempotencyRecord.objects.get().pk)
    return record is not None and record.stale


@pytest.mark.parametrize(("place", "calls"), [("in one", 1), ("in two", 1), ("in call", 2)])
def test_P10_a_late_note_is_refused_and_its_work_undone(place: str, calls: int) -> None:
    with stalled(place) as owner:
        with attempt() as successor:
            assert successor.wait(60) == 0
        owner.send_signal(signal.SIGCONT)
        assert owner.wait(60) == LEASE_LOST

    left = effects()
    assert [left.count(name) for name in ("one", "two", "called")] == [1, 1, calls]
    assert IdempotencyRecord.objects.get().state == "COMPLETED"


def test_P11_nobody_takes_over_between_note_and_commit() -> None:
    with stalled("after the note") as owner:
        for _ in range(2):
            with pytest.raises(idempotency.InProgress):
                idempotency.run(lambda lease: 1, key="k", scope="s", transaction="steps")
        owner.send_signal(signal.SIGCONT)
        assert owner.wait(60) == 0

    assert effects() == ["one", "called", "two"]
    assert IdempotencyRecord.objects.get().state == "COMPLETED"
