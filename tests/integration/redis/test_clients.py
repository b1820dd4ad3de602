"""Clients: coroutines that share them, one for a fork; and the round trips of each operation."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
from asgiref.sync import sync_to_async

from django_idempotency.claims import Resolution
from django_idempotency.engine import Engine
from django_idempotency.exceptions import StoreError
from django_idempotency.records import State
from django_idempotency.stores.redis import RedisStore, scripts
from django_idempotency.stores.redis.connections import Connections
from tests.claims import HOUR, asked, found, lost, operation, record_id, won
from tests.integration.redis.conftest import through
from tests.services.forks import in_child
from tests.services.processes import wait_until

NAME = "coroutines"


@pytest.fixture
def named(url, make_store):
    """A store whose connections have a name, and are no more than three for threads or a loop."""
    return make_store(url, client_name=NAME, max_connections=3)


def connections(client):
    """How many connections of that name the server has."""
    return [connection["name"] for connection in client.client_list()].count(NAME)


def test_server_that_has_forgotten_the_scripts_is_told_them_again(store, client):
    client.script_flush()
    store.complete(won(store.claim(asked("one"))), b"result", retention=HOUR)
    client.script_flush()
    lease = won(store.claim(asked()))
    client.script_flush()
    assert store.renew([lease], HOUR) == {lease}


def test_more_coroutines_than_connections_wait_for_one(named, client):
    async def done(lease):
        return "done"

    async def main():
        engine = Engine(named)
        calls = (engine.arun(operation(key=f"{n}"), done) for n in range(100))
        return await asyncio.gather(*calls)

    assert all(outcome.stored for outcome in asyncio.run(main()))
    assert 1 <= connections(client) <= 3


def test_more_threads_than_connections_wait_for_one(named, client):
    with ThreadPoolExecutor(20) as threads:
        for claimed in threads.map(lambda n: named.claim(asked(f"{n}")), range(100)):
            won(claimed)
    assert 1 <= connections(client) <= 3


def test_thread_that_finds_no_connection_in_time_and_those_that_cannot_be_opened(
    url, link, make_store
):
    link.refuse()
    store = make_store(f"{through(url, link)}?timeout=0.1", max_connections=1, timeout=2)
    for _ in range(2):
        with pytest.raises(StoreError):
            store.claim(asked())
    link.heal()
    won(store.claim(asked()))

    link.swallow()
    with ThreadPoolExecutor(2) as threads:
        calls = [threads.submit(store.get, record_id()) for _ in range(2)]
        causes = {type(call.exception().__cause__) for call in calls}
    assert causes == {redis.TimeoutError, redis.ConnectionError}
    link.heal()
    assert found(store).live


def test_last_one_that_was_used_is_used_next(url, link, make_store):
    """The others may be closed by the server's idle limit meanwhile."""
    connections = make_store(through(url, link))._clients._connections
    link.delay(0.2)  # so that two commands overlap
    with ThreadPoolExecutor(2) as threads:
        calls = [threads.submit(connections.execute_command, "CLIENT", "ID") for _ in range(2)]
        both = {call.result() for call in calls}
    link.heal()
    assert len(both) == 2
    assert len({connections.execute_command("CLIENT", "ID") for _ in range(3)}) == 1


def test_interrupted_thread_leaves_a_connection_that_is_not_used_again(url, link, make_store):
    store = make_store(through(url, link), max_connections=1)
    won(store.claim(asked()))
    link.delay(0.2)

    def interrupt(frame, event, argument):  # as a signal's handler, before the answer is read
        if event == "return" and frame.f_code.co_name == "send_command":
            sys.setprofile(None)
            raise KeyboardInterrupt

    sys.setprofile(interrupt)
    with pytest.raises(KeyboardInterrupt):
        store.claim(asked("interrupted"))
    link.heal()
    assert found(store).key == "key"  # and not the answer to the claim


def test_thread_that_is_ended_while_it_waits_takes_no_connection_along(url, make_store):
    store = make_store(url, max_connections=1, timeout=5)
    won(store.claim(asked()))
    connections = store._clients._connections
    connections._places.get()  # as a command does that has not been answered yet
    execute = Connections.execute_command
    ended = []

    def wait():
        try:
            store.get(record_id())
        except KeyboardInterrupt as error:
            ended.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(
        lambda: sys._current_frames()[thread.ident].f_code is execute.__code__,
        seconds=20,
        what="the thread to wait",
    )
    raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc  # as the time limits of workers do
    raise_in(ctypes.c_ulong(thread.ident), ctypes.py_object(KeyboardInterrupt))
    connections._places.put(None)
    thread.join()
    assert ended
    assert found(store).key == "key"


def test_R58_coroutines_that_wait_for_a_server_stop_no_others(url, link, make_store):
    """As many as 50 of them: neither a thread of the loop's nor that of its database work waits."""

    async def done(lease):
        return "done"

    async def main():
        hanging = Engine(make_store(through(url, link), timeout=20, max_connections=60))
        other = Engine(make_store(url))
        link.swallow()
        calls = [
            asyncio.ensure_future(hanging.arun(operation(key=f"{n}"), done)) for n in range(50)
        ]
        while threading.active_count() < 50:
            await asyncio.sleep(0)
        outcome = await asyncio.wait_for(other.arun(operation(key="other"), done), 15)
        assert await asyncio.wait_for(asyncio.to_thread(lambda: "its own"), 15) == "its own"
        assert await asyncio.wait_for(sync_to_async(lambda: "the work's")(), 15) == "the work's"
        assert not any(call.done() for call in calls)
        link.heal()
        link.cut()
        await asyncio.gather(*calls, return_exceptions=True)
        return outcome

    assert asyncio.run(main()).stored


# Python warns of a fork beside threads, which a test run has and a pre-forking server not.
over_a_fork = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")


@over_a_fork
def test_store_survives_a_fork(store):
    lease = won(store.claim(asked()))  # the connection is open
    free = store._clients._connections._free

    def child():
        own = won(store.claim(asked("child")))
        store.complete(own, b"child", retention=HOUR)
        assert lost(store.claim(asked())).token == lease.token
        assert store._clients._connections._free is not free

    assert in_child(child) == 0
    assert store._clients._connections._free is free
    store.complete(lease, b"result", retention=HOUR)
    assert found(store, "child").result == b"child"


@over_a_fork
def test_coroutine_of_a_child_does_not_wait_for_the_threads_of_its_parent(store):
    threads = Engine(store)._threads
    won(asyncio.run(threads.call(store.claim, asked())))

    def child():
        lease = won(asyncio.run(threads.call(store.claim, asked("child"))))
        assert asyncio.run(threads.call(store.renew, [lease], HOUR)) == {lease}

    with store._clients._mutex:
        assert in_child(child) == 0
    assert found(store, "child").live


def test_clients_of_a_store_that_nobody_uses_are_not_kept(url):
    clients = weakref.ref(RedisStore(url)._clients)
    gc.collect()
    assert clients() is None


@pytest.fixture
def linked(link, url, client, make_store):
    """A store whose connection is open and whose scripts are known to the server."""
    store = make_store(through(url, link))
    for script in ("COMPLETE", "FAIL", "LOOK", "NOTE", "RELEASE", "RENEW", "RESOLVE"):
        client.script_load(getattr(scripts, script).text)
    store.complete(won(store.claim(asked("complete"))), b"result", retention=HOUR)
    link.spoken.clear()
    return store


CALLS = {
    "claim of a duplicate": lambda store, lease: lost(store.claim(asked("complete"))),
    "completion": lambda store, lease: store.complete(lease, b"result", retention=HOUR),
    "release": lambda store, lease: store.release(lease),
    "note": lambda store, lease: store.note(lease, b"entry", duration=HOUR, held=False),
    "look": lambda store, lease: store.get(lease.record_id),
}


@pytest.mark.parametrize("name", CALLS)
def test_B4_call_is_one_round_trip_by_the_scripts_digest(linked, link, name):
    lease = won(linked.claim(asked()))
    assert link.round_trips == 1
    link.spoken.clear()
    CALLS[name](linked, lease)
    assert link.round_trips == 1
    assert link.sent.count(b"EVALSHA") == 1
    assert b"redis.call" not in link.sent


@pytest.mark.parametrize(("action", "trips"), [("release", 1), ("resume", 2)])
def test_B4_decision_is_a_write_and_to_resume_is_a_look_before(linked, link, action, trips):
    lease = won(linked.claim(asked()))
    link.spoken.clear()
    decision = Resolution(action, lease.fencing_token, State.IN_PROGRESS, force=True, noted=0)
    assert linked.resolve(lease.record_id, decision)
    assert link.round_trips == trips


def test_B4_many_leases_are_renewed_in_one_round_trip_and_a_sweep_asks_nothing(linked, link):
    leases = {won(linked.claim(asked(f"key {number}"))) for number in range(20)}
    linked.renew(leases, HOUR)  # which opens a connection
    link.spoken.clear()
    assert linked.renew(leases, HOUR) == leases
    assert linked.sweep() == 0
    assert link.round_trips == 1


def test_marker_of_the_prefix_is_asked_for_once(link, url, client, make_store):
    client.script_load(scripts.OWNER.text)  # whose text would name the marker, too
    store = make_store(through(url, link))
    won(store.claim(asked("first")))
    assert link.sent.count(b":owner") == 1
    won(store.claim(asked("second")))
    assert link.sent.count(b":owner") == 1
