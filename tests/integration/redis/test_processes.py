"""A store over a fork: parent and child each have connections of their own."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from django_idempotency.stores.redis import RedisStore
from tests.integration.redis.claims import HOUR, asked, found, lost, won
from tests.integration.redis.conftest import MakeStore, or_skip
from tests.integration.redis.test_topologies import cluster
from tests.services.redis import RedisServer

pytestmark = [
    pytest.mark.processes,
    # Python warns of a fork beside threads, which a test run has and a pre-forking server not.
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
]


def in_child(function: Callable[[], object]) -> int:
    """Call `function` in a forked child; return the child's exit code."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)
        try:
            function()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_store_survives_a_fork(version: str, store: RedisStore) -> None:
    lease = won(store.claim(asked()))  # the connection is open

    def child() -> None:
        for number in range(50):
            own = won(store.claim(asked(f"child {number}")))
            store.complete(own, b"%d" % number, retention=HOUR)
        assert lost(store.claim(asked())).token == lease.token

    pid_before = store._clients._client.connection_pool.pid
    assert in_child(child) == 0
    assert store._clients._client.connection_pool.pid == pid_before
    store.complete(lease, b"result", retention=HOUR)
    for number in range(50):
        assert found(store, f"child {number}").result == b"%d" % number


def test_parent_and_child_at_the_same_time(store: RedisStore) -> None:
    store.claim(asked())
    started, start = os.pipe()

    def child() -> None:
        os.read(started, 1)
        for number in range(200):
            assert lost(store.claim(asked())).key == "key"
            won(store.claim(asked(f"child {number}")))

    pid = os.fork()
    if pid == 0:
        try:
            child()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.write(start, b"!")
    try:
        for number in range(200):
            assert won(store.claim(asked(f"parent {number}"))).request.key == f"parent {number}"
    finally:
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.close(started)
        os.close(start)
    assert code == 0


@contextmanager
def held(mutex: Any) -> Iterator[None]:
    """A mutex that another thread holds."""
    taken, over = threading.Event(), threading.Event()

    def hold() -> None:
        with mutex:
            taken.set()
            over.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert taken.wait(10)
        yield
    finally:
        over.set()
        thread.join(10)


def test_child_does_not_wait_for_a_thread_that_makes_a_client_for_its_loop(
    store: RedisStore,
) -> None:
    with held(store._clients._mutex):
        assert in_child(lambda: won(asyncio.run(store.aclaim(asked())))) == 0
    assert found(store).live


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[RedisServer]]:
    with ExitStack() as stack:
        yield or_skip(lambda: stack.enter_context(cluster("valkey9")))


def test_child_does_not_wait_for_a_thread_that_connects_to_a_cluster(
    nodes: list[RedisServer], make_store: MakeStore
) -> None:
    store = make_store(nodes[0].url, cluster=True)
    with held(store._clients._mutex):
        assert in_child(lambda: won(store.claim(asked()))) == 0
    assert found(store).live


def test_child_does_not_wait_for_a_thread_that_looks_for_the_nodes_of_a_cluster(
    nodes: list[RedisServer], make_store: MakeStore
) -> None:
    store = make_store(nodes[0].url, cluster=True)
    lease = won(store.claim(asked()))
    nodes_of_client = store._clients._client.nodes_manager
    mutexes = [store._clients._client._lock, nodes_of_client._lock]
    mutexes.append(nodes_of_client._initialization_lock)
    before = id(store._clients._client)
    del nodes_of_client

    def child() -> None:
        gc.collect()
        own = won(store.claim(asked("child")))
        assert store.renew([own, lease], HOUR) == {own, lease}
        assert store.check() == []

    with ExitStack() as stack:
        for mutex in mutexes:
            stack.enter_context(held(mutex))
        assert in_child(child) == 0
    assert id(store._clients._client) == before
    store.complete(lease, b"result", retention=HOUR)


def test_clients_of_a_store_that_nobody_uses_are_not_kept(url: str) -> None:
    with warnings.catch_warnings():  # about sockets of clients that the tests above have left
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    clients = weakref.ref(RedisStore(url)._clients)
    gc.collect()
    assert clients() is None
