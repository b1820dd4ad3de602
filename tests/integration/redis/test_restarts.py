"""What a server that is killed or stopped has lost when it comes back (docs/howto/redis.md)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import django_idempotency as idempotency
from django_idempotency.exceptions import LeaseLost
from tests.integration.redis.claims import HOUR, asked, found, lost, record_id, won
from tests.integration.redis.conftest import BACKEND, MakeStore, StartServer
from tests.services.processes import wait_until
from tests.services.redis import START_SECONDS, RedisServer

#: What each persistence is called in the docs, and how a server is told.
NOTHING = {"save": "", "appendonly": "no"}
SNAPSHOTS = {"save": "3600 1", "appendonly": "no"}
APPEND_ALWAYS = {"appendonly": "yes", "appendfsync": "always"}
APPEND_EACH_SECOND = {"appendonly": "yes", "appendfsync": "everysec"}


def kill_once_written(server: RedisServer) -> None:
    """Kill a server whose log is with the operating system, which survives."""
    # It answers before it has written while an fsync of the second before is under way.
    with server.client() as client:
        wait_until(
            lambda: client.info("persistence")["aof_buffer_length"] == 0,
            seconds=START_SECONDS,
            what="the log to be written",
        )
    server.kill()


End = Callable[[RedisServer], None]


@pytest.mark.parametrize(
    ("options", "end"),
    [
        pytest.param(NOTHING, RedisServer.stop, id="nothing-stopped"),
        pytest.param(SNAPSHOTS, RedisServer.kill, id="snapshots-killed"),
    ],
)
def test_without_a_log_every_record_is_lost_and_work_can_run_again(
    start_server: StartServer, make_store: MakeStore, options: dict[str, str], end: End
) -> None:
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
    [
        pytest.param(SNAPSHOTS, RedisServer.stop, id="snapshots-stopped"),
        pytest.param(APPEND_EACH_SECOND, RedisServer.stop, id="append-stopped"),
        pytest.param(APPEND_EACH_SECOND, kill_once_written, id="append-written-killed"),
        pytest.param(APPEND_ALWAYS, RedisServer.kill, id="append-always-killed"),
    ],
)
def test_with_a_log_records_survive_and_so_do_leases(
    start_server: StartServer, make_store: MakeStore, options: dict[str, str], end: End
) -> None:
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


def test_result_of_work_during_a_restart_is_kept_if_the_server_is_back_in_time(
    start_server: StartServer, settings: Any
) -> None:
    server = start_server(**APPEND_ALWAYS)
    settings.IDEMPOTENCY = {"default": {"BACKEND": BACKEND, "OPTIONS": {"url": server.url}}}

    def work(lease: object) -> str:
        server.kill()
        server.start()
        return "done"

    assert idempotency.run(work, key="key", scope="scope").stored
    assert idempotency.run(work, key="key", scope="scope").replayed
