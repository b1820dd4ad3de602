"""What processes find: a forked child of its parent's stores, a new one of the package."""

from __future__ import annotations

import subprocess
import sys

import pytest
from django.test import override_settings

from django_idempotency.conf import store_for, stores
from django_idempotency.stores.memory import MemoryStore
from tests.claims import asked, lost
from tests.services.forks import held, in_child
from tests.services.processes import ROOT

pytestmark = [
    pytest.mark.processes,
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]


def test_store_and_settings_do_not_wait_for_a_thread_of_the_parent() -> None:
    store = MemoryStore()
    store.claim(asked())
    with held(store._mutex):
        assert in_child(lambda: lost(store.claim(asked()))) == 0
    memory = {"default": {"BACKEND": "django_idempotency.stores.memory.MemoryStore"}}
    with override_settings(IDEMPOTENCY=memory), held(stores._mutex):
        assert in_child(store_for) == 0


def run_python(code: str, *options: str) -> None:
    done = subprocess.run(
        [sys.executable, *options, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr


#: The child has none of its parent's leases, and renews its own, even on a store in mid-renewal.
KEEPER = """
import os, sys
from tests.unit.core.test_renewal import Renewals, make_lease
from django_idempotency.engine.renewal import LeaseRenewer, lease_renewer as own

blocked, store, keeper, lease = Renewals(), Renewals(), LeaseRenewer(), make_lease()
blocked.free.clear()
own.add(blocked, lease)
keeper.add(store, make_lease(key="another"))
assert blocked.entered.wait(30)
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
    run_python(KEEPER, "-W", "ignore")


#: The child has none of its parent's waiters, and its own are woken.
POLLER = """
import os, sys, threading, time
from datetime import timedelta
from django_idempotency.engine.waiting import Poller, Waiter
from django_idempotency.stores.memory import MemoryStore
from tests.claims import DAY, asked, won

def waits(poller, store, lease):
    waiter = Waiter(lease.record_id, timedelta(seconds=30))
    assert waiter.goes_on(store.get(lease.record_id))
    found = []
    thread = threading.Thread(target=lambda: found.append(poller.wait(store, waiter)))
    thread.start()
    while not poller._waiters.get(store):
        time.sleep(0.001)
    return thread, found

def is_woken(store, lease, thread, found):
    store.complete(lease, b"done", retention=DAY)
    thread.join(30)
    assert [record.result for record in found] == [b"done"], found

poller, store = Poller(), MemoryStore()
lease, others = won(store.claim(asked())), won(store.claim(asked("child")))
parents = waits(poller, store, lease)
poller._changed.acquire()  # as another thread might at that moment
child = os.fork()
if child == 0:
    assert poller._waiters == {}
    is_woken(store, others, *waits(poller, store, others))
    os._exit(0)
poller._changed.release()
_, status = os.waitpid(child, 0)
is_woken(store, lease, *parents)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_R51_poller_of_a_child() -> None:
    run_python(POLLER, "-W", "ignore")


#: Each step must leave these alone.
CLIENTS = (
    *("boto3", "botocore", "celery", "jmespath", "opentelemetry", "prometheus_client", "psycopg"),
    *("redis", "rest_framework"),
)
CODE = f"""
import sys

def loaded(names):
    return [name for name in names if name in sys.modules]

import django_idempotency
from django_idempotency import InProgress, InvalidKey
assert not loaded(("django", *{CLIENTS})), loaded(("django", *{CLIENTS}))

import django
from django.conf import settings
settings.configure(
    SECRET_KEY="secret",
    INSTALLED_APPS=["django_idempotency"],
    DATABASES={{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}}},
)
django.setup()

from django.core.management import call_command
with open("/dev/null", "w") as nowhere:
    call_command("migrate", verbosity=0)
    call_command("check", stdout=nowhere)
    outcomes = [django_idempotency.run(lambda lease: 5, key="k", scope="s") for _ in range(2)]
    assert [outcome.replayed for outcome in outcomes] == [False, True]
    call_command("idempotency_sweep", stdout=nowhere)
assert not loaded({CLIENTS}), loaded({CLIENTS})
"""


SETUP = """
import sys
import django
from django.conf import settings
settings.configure(INSTALLED_APPS=["rest_framework", "django_idempotency"])
django.setup()
for name in ("rest_framework.views", "django_idempotency.engine", "django_idempotency.http"):
    assert name not in sys.modules, name
"""


@pytest.mark.parametrize("code", [CODE, SETUP], ids=["the app without clients", "setup alone"])
def test_only_what_is_used_is_imported(code: str) -> None:
    run_python(code, "-W", "error")
