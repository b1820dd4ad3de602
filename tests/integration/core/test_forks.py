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


def test_store_does_not_wait_for_a_thread_of_the_parent() -> None:
    store = MemoryStore()
    store.claim(asked())
    with held_by_a_thread(store._mutex):
        assert holds_in_a_child(lambda: isinstance(store.claim(asked()), Record))


def test_settings_do_not_wait_for_a_thread_of_the_parent() -> None:
    memory = {"default": {"BACKEND": MEMORY}}
    with override_settings(IDEMPOTENCY=memory), held_by_a_thread(stores._mutex):
        assert holds_in_a_child(lambda: type(store_for()) is MemoryStore)


KEEPERS = {
    "its parent's leases are not renewed": """
import os, sys
from tests.unit.core.test_renewal import Renewals, make_lease
from django_idempotency.engine.renewal import Keeper, keeper as own

store, keeper, lease = Renewals(), Keeper(), make_lease()
keeper.add(store, lease)
own.add(store, make_lease(key="own"))
store.wait_for_calls(1)
keeper._changed.acquire()  # as another thread might at that moment
child = os.fork()
if child == 0:
    assert (keeper._kept, keeper._threads) == ({}, {}), keeper._kept
    assert (own._kept, own._threads) == ({}, {}), own._kept
    mine = Renewals()
    keeper.add(mine, make_lease(key="child"))
    mine.wait_for_calls(2)
    assert all(lease not in call.leases for call in mine.calls)
    os._exit(0)
keeper._changed.release()
_, status = os.waitpid(child, 0)
sys.exit(os.waitstatus_to_exitcode(status))
""",
    "its own are, on a store in mid-renewal": """
import os, sys
from tests.unit.core.test_renewal import Blocked, Renewals, make_lease
from django_idempotency.engine.renewal import keeper

store, lease = Blocked(), make_lease()
keeper.add(store, lease)
assert store.entered.wait(10)
child = os.fork()
if child == 0:
    store.free.set()
    mine = make_lease(key="child")
    keeper.add(store, mine)
    store.wait_for_calls(2)
    assert all(call.leases == {mine} for call in store.calls), store.calls
    os._exit(0)
_, status = os.waitpid(child, 0)
assert store.calls == []
store.free.set()
store.wait_for_calls(2)
assert all(call.leases == {lease} for call in store.calls), store.calls
lease.check()
sys.exit(os.waitstatus_to_exitcode(status))
""",
}


@pytest.mark.parametrize("code", KEEPERS.values(), ids=KEEPERS.keys())
def test_R69_keeper_of_a_child(code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
