"""The servers that other tests rely on: they start, break and come back as the tests believe."""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import closing

import psycopg
import pytest
from django.db import OperationalError, connections
from django.db.backends.postgresql.base import DatabaseWrapper

from tests.services.postgres import PostgresServer
from tests.services.processes import describe, marked, spawn, wait_until
from tests.services.redis import RedisServer
from tests.services.servers import HOST
from tests.services.threads import run_in_threads as run_together


def test_another_server_on_its_port_is_not_taken_for_it():
    with RedisServer() as other:
        server = RedisServer()
        server.port = other.port
        with server:
            assert server.port != other.port


def test_server_that_was_stopped_by_a_signal_can_be_ended():
    with RedisServer() as server:
        pid = server.pid
        os.kill(pid, signal.SIGSTOP)
    assert describe(pid) == str(pid)


def test_start_that_fails_shows_the_output_and_leaves_nothing():
    server = RedisServer(nonesuch="1")
    with pytest.raises(RuntimeError, match=r"redis ended with 1:(.|\n)*nonesuch"):
        server.start()
    assert (server.process, server._directory) == (None, None)


def test_crash_of_postgres_keeps_what_was_committed_and_restart_keeps_the_port(postgres_server):
    server = postgres_server()
    with psycopg.connect(server.url, autocommit=True) as session:
        session.execute("CREATE TABLE payment (id int)")
        session.execute("INSERT INTO payment VALUES (1)")
        session.execute("BEGIN")
        session.execute("INSERT INTO payment VALUES (2)")
        server.crash()
        with pytest.raises(psycopg.OperationalError):
            session.execute("COMMIT")
    port = server.port
    server.restart()
    assert server.port == port
    with psycopg.connect(server.url) as session:
        assert session.execute("SELECT id FROM payment").fetchall() == [(1,)]


def test_older_postgres():
    with PostgresServer(16) as server, psycopg.connect(server.url) as session:
        assert session.info.server_version // 10_000 in {14, 15, 16, 17}


@pytest.fixture
def through_proxy(proxy, transactional_db):
    """A Django connection through a proxy, a plain session beside it, and the proxy."""
    default = connections["default"].settings_dict
    between = proxy(HOST, int(default["PORT"]))
    with (
        closing(DatabaseWrapper({**default, "PORT": str(between.port)}, "proxied")) as proxied,
        psycopg.connect(
            host=HOST, port=default["PORT"], user=default["USER"], dbname=default["NAME"]
        ) as direct,
    ):
        direct.autocommit = True
        yield proxied, direct, between


def insert(connection):
    connection.set_autocommit(False)
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO auth_group (name) VALUES ('clerks')")
    connection.commit()


def rows(direct):
    return direct.execute("SELECT count(*) FROM auth_group").fetchone()[0]


@pytest.mark.parametrize(("cut", "left"), [("cut_after", 1), ("cut_before", 0)])
def test_proxy_that_cuts_at_the_commit_leaves_its_row_or_not(through_proxy, cut, left):
    connection, direct, between = through_proxy
    getattr(between, cut)(b"COMMIT")
    with pytest.raises(OperationalError):
        insert(connection)
    assert between.fired.wait(5)
    assert rows(direct) == left


@pytest.mark.parametrize("broken", ["cut", "refuse"])
def test_proxy_that_has_cut_or_refused_lets_new_connections_pass(through_proxy, broken):
    connection, direct, between = through_proxy
    if broken == "cut":
        connection.ensure_connection()
    getattr(between, broken)()
    with pytest.raises(OperationalError):
        insert(connection)
    connection.close()
    between.heal()
    insert(connection)
    assert rows(direct) == 1


def test_proxy_that_swallows_leaves_the_client_waiting(through_proxy):
    connection, direct, between = through_proxy
    connection.ensure_connection()
    between.swallow()
    connection.inc_thread_sharing()
    errors = []

    def wait():
        with pytest.raises(OperationalError) as raised:
            insert(connection)
        errors.append(raised.value)

    waiting = threading.Thread(target=wait)
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    between.cut()
    waiting.join(5)
    assert (len(errors), rows(direct)) == (1, 0)


@pytest.mark.django_db(transaction=True)
def test_gunicorn_replaces_a_killed_worker_and_outlives_no_killed_arbiter(gunicorn):
    server = gunicorn(workers=2, threads=2, options=["--preload"])
    victim = server.worker_pids()[0]
    with pytest.raises(ValueError, match="not one of ours"):
        server.kill(os.getppid(), signal.SIGCONT)
    server.kill(victim)
    wait_until(
        lambda: victim not in server.worker_pids() and server.is_whole(),
        seconds=20,
        what="a new worker",
    )
    workers = server.worker_pids()
    server.kill()
    wait_until(
        lambda: not any("gunicorn" in describe(pid) for pid in workers),
        seconds=10,
        what="workers to end",
    )


def test_threads_raise_the_first_error_again_and_tell_who_does_not_end():
    def work(index):
        if index == 1:
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run_together(3, work)
    release = threading.Event()
    try:
        with pytest.raises(TimeoutError, match="test-0"):
            run_together(1, lambda index: release.wait(20), seconds=0.05)
    finally:
        release.set()


def test_process_dies_with_the_one_that_started_it(tmp_path):
    mark = f"IDEMPOTENCY_TEST_MARK={tmp_path.name}-{os.getpid()}"
    code = (
        "import sys, time; from tests.services.processes import spawn;"
        "spawn([sys.executable, '-c', 'import time; time.sleep(60)']); time.sleep(60)"
    )
    name, _, value = mark.partition("=")
    runner = spawn([sys.executable, "-c", code], env={name: value})
    wait_until(lambda: len(marked(mark)) == 2, seconds=20, what="both processes")
    runner.kill()
    runner.wait()
    wait_until(lambda: not marked(mark), seconds=10, what="the grandchild to end")
