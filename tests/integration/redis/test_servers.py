"""Where a server may be, and what it has lost when it comes back (docs/howto/redis.md)."""

from __future__ import annotations

import sys
from contextlib import ExitStack

import pytest
import redis

from django_idempotency.exceptions import LeaseLost, StoreError
from tests.claims import HOUR, asked, found, lost, record_id, won
from tests.integration.redis.conftest import whole_life
from tests.services.processes import wait_until
from tests.services.redis import HOST, RedisSentinel, RedisServer


@pytest.fixture
def start_sentinel():
    with ExitStack() as stack:
        yield lambda *server, **how: stack.enter_context(RedisSentinel(*server, **how))


def test_sentinels(start_server, start_sentinel, make_store):
    sentinels = [(HOST, start_sentinel(start_server()).port)]
    place = {"sentinels": sentinels, "service_name": "main"}
    store = make_store(**place)
    whole_life(store)

    with pytest.raises(StoreError):
        make_store(sentinels=sentinels, service_name="nobody").claim(asked())

    # A URL beside them says all that is not the place.
    other = make_store("redis://nobody.invalid:1/3", **place)
    other.claim(asked())
    assert found(other).live
    assert store.get(record_id()) is None  # that is database 0


def test_failover_is_followed(start_server, start_sentinel, make_store):
    primary = start_server("redis6")
    replica = start_server("redis6", replicaof=f"{HOST} {primary.port}")
    with primary.client() as client:
        client.set("written", "before")
        wait_until(lambda: client.wait(1, 100) == 1, seconds=60, what="the replica")
    sentinel = start_sentinel(primary, down_after=3)
    place = {"sentinels": [(HOST, sentinel.port)], "service_name": "main"}
    store = make_store(**place, wait_replicas=1, wait_timeout=20)
    lease = won(store.claim(asked()))  # the replica has it
    with sentinel.client() as client:
        wait_until(
            lambda: len(client.execute_command("SENTINEL", "REPLICAS", "main")) == 1,
            seconds=60,
            what="the sentinel to know the replica",
        )
    primary.kill()
    wait_until(lambda: leads_to(sentinel) == replica.port, seconds=60, what="the failover")

    store.complete(lease, b"result", retention=HOUR)

    assert found(make_store(replica.url)).result == b"result"


def test_answer_that_was_not_read_is_not_taken_for_the_next_one(
    start_server, start_sentinel, proxy, make_store
):
    server = start_server("redis6")
    link = proxy(HOST, server.port)
    sentinel = start_sentinel(server, port=link.port)
    store = make_store(sentinels=[(HOST, sentinel.port)], service_name="main", timeout=5)
    for key in ("one", "two"):
        won(store.claim(asked(key)))
    link.delay(0.2)

    def interrupt(frame, event, argument):  # as a time limit does, while the answer is awaited
        if event == "call" and frame.f_code.co_name.endswith("read_from_socket"):
            sys.setprofile(None)
            raise KeyboardInterrupt

    sys.setprofile(interrupt)
    with pytest.raises(KeyboardInterrupt):
        store.claim(asked("one"))
    link.heal()
    assert lost(store.claim(asked("two"))).key == "two"  # and not the answer about "one"


@pytest.mark.parametrize("version", ["valkey9", "redis6"])
def test_failover_behind_a_name_is_followed(start_server, proxy, make_store, version):
    """The name leads to the new primary, while connections to the old one, a replica now, last."""
    old = start_server(version)
    new = start_server(version)
    link = proxy(HOST, old.port)
    store = make_store(f"redis://{HOST}:{link.port}/0", timeout=5)

    leases = [won(store.claim(asked("before")))]
    assert store.renew(leases, HOUR) == set(leases)
    follow(new, old)
    with new.client() as client:
        client.replicaof("NO", "ONE")
    follow(old, new)
    link.lead_to(new.port)
    leases.append(won(store.claim(asked("after"))))
    assert store.renew(leases, HOUR) == set(leases)
    assert found(make_store(new.url), "before").live


def follow(replica, primary):
    with replica.client() as client:
        client.replicaof(HOST, primary.port)
        wait_until(
            lambda: client.info("replication")["master_link_status"] == "up",
            seconds=30,
            what="the replica",
        )


def leads_to(sentinel):
    """The port that a sentinel sends clients to; None while it knows of none."""
    asked = redis.Sentinel([(HOST, sentinel.port)])
    try:
        return asked.discover_master("main")[1]
    except redis.sentinel.MasterNotFoundError:
        return None
    finally:
        for client in asked.sentinels:
            client.close()


def test_unix_socket(start_server, make_store):
    server = start_server(unixsocket="redis.sock", unixsocketperm="700")
    whole_life(make_store(f"unix://{server.directory}/redis.sock?db=2"))


# Restarts.

#: What each persistence is called in the docs, and how a server is told.
NOTHING = {"save": "", "appendonly": "no"}
SNAPSHOTS = {"save": "3600 1", "appendonly": "no"}
APPEND_ALWAYS = {"appendonly": "yes", "appendfsync": "always"}


@pytest.mark.parametrize(
    ("options", "end"),
    [(NOTHING, RedisServer.stop), (SNAPSHOTS, RedisServer.kill)],
    ids=["nothing-stopped", "snapshots-killed"],
)
def test_without_a_log_every_record_is_lost_and_work_can_run_again(
    start_server, make_store, options, end
):
    server = start_server(**options)
    store = make_store(server.url)
    store.complete(won(store.claim(asked("before"))), b"result", retention=HOUR)
    if options is SNAPSHOTS:
        with server.client() as client:
            client.save()
    owner = won(store.claim(asked("live")))

    end(server)
    server.start()

    # A snapshot keeps what it has, and nothing that came after.
    assert (store.get(record_id("before")) is not None) is (options is SNAPSHOTS)
    second = won(store.claim(asked("live")))
    assert second.fencing_token > owner.fencing_token  # the clock, and not a count
    with pytest.raises(LeaseLost):
        store.complete(owner, b"late", retention=HOUR)
    assert store.renew([owner], HOUR) == set()


@pytest.mark.parametrize(
    ("options", "end"),
    [(SNAPSHOTS, RedisServer.stop), (APPEND_ALWAYS, RedisServer.kill)],
    ids=["snapshots-stopped", "append-always-killed"],
)
def test_with_a_log_records_survive_and_so_do_leases(start_server, make_store, options, end):
    server = start_server(**options)
    store = make_store(server.url)
    owner = won(store.claim(asked("live")))
    store.complete(won(store.claim(asked("completed"))), b"result", retention=HOUR)
    store.fail(won(store.claim(asked("failed"))), "boom")

    end(server)
    server.start()

    assert lost(store.claim(asked("live"))).epoch == owner.fencing_token
    assert lost(store.claim(asked("completed"))).result == b"result"
    assert won(store.claim(asked("failed"))).fencing_token > owner.fencing_token
    store.complete(owner, b"result", retention=HOUR)
    assert found(store, "live").result == b"result"
