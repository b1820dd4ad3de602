"""What a forked child finds of its parent's stores, settings and leases."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.test import override_settings

from django_idempotency.conf import store_for, stores
from django_idempotency.records import Record
from django_idempotency.stores.memory import MemoryStore
from tests.claims import asked
from tests.services.processes import ROOT

pytestmark = [
    pytest.mark.processes,
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]

MEMORY = "django_idempotency.stores.memory.MemoryStore"


@contextmanager
def held_by_a_thread(mutex: Any) -> Iterator[None]:
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with mutex:
            held.set()
            over.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(10)
    yield
    over.set()
    thread.join(10)


def holds_in_a_child(condition: Callable[[], bool]) -> bool:
    """Whether the condition holds in a forked child, within 10 seconds."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(10)
            code = 0 if condition() else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_store_and_settings_do_not_wait_for_a_thread_of_the_parent() -> None:
    store = MemoryStore()
    store.claim(asked())
    with held_by_a_thread(store._mutex):
        assert holds_in_a_child(lambda: isinstance(store.claim(asked()), Record))
    memory = {"default": {"BACKEND": MEMORY}}
    with override_settings(IDEMPOTENCY=memory), held_by_a_thread(stores._mutex):
        assert holds_in_a_child(lambda: type(store_for()) is MemoryStore)


#: The child has none of its parent's leases, and renews its own, even on a store in mid-renewal.
KEEPER = """
import os, sys
from tests.unit.core.test_renewal import Renewals, make_lease
from django_idempotency.engine.renewal import LeaseRenewer, lease_renewer as own

blocked, store, keeper, lease = Renewals(), Renewals(), LeaseRenewer(), make_lease()
blocked.free.clear()
own.add(blocked, lease)
keeper.add(store, make_lease(key="another"))
assert blocked.entered.wait(10)
store.wait_for_calls(1)
keeper._changed.acquire()  # as another thread might at that moment
child = os.fork()
if child == 0:
    blocked.free.set()
    for it in (keeper, own):
        assert (it._kept, it._threads) == ({}, {}), it._kept
    mine, fresh = make_lease(key="child"), Renewals()
    own.add(blocked, mine)
    keeper.add(fresh, mine)
    for it in (blocked, fresh):
        it.wait_for_calls(2)
        assert all(leases == {mine} for leases, *_ in it.calls), it.calls
    os._exit(0)
keeper._changed.release()
_, status = os.waitpid(child, 0)
assert blocked.calls == []
blocked.free.set()
blocked.wait_for_calls(2)
assert all(leases == {lease} for leases, *_ in blocked.calls), blocked.calls
lease.check()
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_R69_keeper_of_a_child() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", KEEPER],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
