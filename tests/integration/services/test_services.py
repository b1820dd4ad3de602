"""The servers that other tests rely on: they start, break and come back as the tests believe."""

from __future__ import annotations

import http.client
import os
import signal
import sys
import threading
from contextlib import closing

import psycopg
import pytest
import redis
from django.contrib.auth.models import Group
from django.db import OperationalError, connections, transaction
from django.db.backends.postgresql.base import DatabaseWrapper

from tests.services.postgres import PostgresServer
from tests.services.processes import describe, marked, spawn, wait_until
from tests.services.redis import RedisServer
from tests.services.servers import HOST
from tests.services.threads import run_in_threads as run_together


class TestOwnServer:
    def test_stop_and_start_keep_the_port_and_the_data(self):
        with RedisServer(appendonly="yes") as server, server.client() as client:
            port, directory = server.port, server.directory
            client.set("key", "value")
            server.stop()
            with pytest.raises(redis.ConnectionError):
                client.get("key")
            server.start()
            assert (server.port, client.get("key")) == (port, b"value")
        assert not directory.exists()

    def test_another_server_on_its_port_is_not_taken_for_it(self):
        with RedisServer() as other:
            server = RedisServer()
            server.port = other.port
            with server:
                assert server.port != other.port

    def test_one_that_was_stopped_by_a_signal_can_be_ended(self):
        with RedisServer() as server:
            pid = server.pid
            os.kill(pid, signal.SIGSTOP)
        assert describe(pid) == str(pid)

    def test_a_start_that_fails_shows_the_output_and_leaves_nothing(self):
        server = RedisServer(nonesuch="1")
        with pytest.raises(RuntimeError, match=r"redis ended with 1:(.|\n)*nonesuch"):
            server.start()
        assert server.process is None
        assert server._directory is None


class TestPostgresServer:
    def test_crash_keeps_what_was_committed_and_restart_keeps_the_port(self, postgres_server):
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

    def test_an_older_version(self):
        with PostgresServer(16) as server, psycopg.connect(server.url) as session:
            assert session.info.server_version // 10_000 in {14, 15, 16, 17}


@pytest.fixture
def through_proxy(proxy, transactional_db):
    """A Django connection through a proxy, a plain session beside it, and the proxy."""
    default = connections["default"].settings_dict
    between = proxy(HOST, int(default["PORT"]))
    settings = {**default, "PORT": str(between.port)}
    with (
        closing(DatabaseWrapper(settings, "proxied")) as proxied,
        psycopg.connect(
            host=HOST, port=default["PORT"], user=default["USER"], dbname=default["NAME"]
        ) as direct,
    ):
        direct.autocommit = True
        yield proxied, direct, between


class TestProxy:
    def insert(self, connection):
        connection.set_autocommit(False)
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO auth_group (name) VALUES ('clerks')")
        connection.commit()

    def rows(self, direct):
        return direct.execute("SELECT count(*) FROM auth_group").fetchone()[0]

    def test_cut_after_commit_gives_an_error_and_a_row(self, through_proxy):
        connection, direct, between = through_proxy
        between.cut_after(b"COMMIT")
        with pytest.raises(OperationalError):
            self.insert(connection)
        assert between.fired.is_set()
        assert self.rows(direct) == 1

    def test_cut_before_commit_gives_an_error_and_no_row(self, through_proxy):
        connection, direct, between = through_proxy
        between.cut_before(b"COMMIT")
        with pytest.raises(OperationalError):
            self.insert(connection)
        assert between.fired.wait(5)
        assert self.rows(direct) == 0

    def test_cut_drops_open_connections_and_new_ones_pass(self, through_proxy):
        connection, direct, between = through_proxy
        connection.ensure_connection()
        between.cut()
        assert between.open_connections == 0
        with pytest.raises(OperationalError):
            self.insert(connection)
        connection.close()
        self.insert(connection)
        assert self.rows(direct) == 1

    def test_refuse_and_heal(self, through_proxy):
        connection, direct, between = through_proxy
        between.refuse()
        with pytest.raises(OperationalError):
            connection.ensure_connection()
        between.heal()
        self.insert(connection)
        assert self.rows(direct) == 1

    def test_swallow_leaves_the_client_waiting(self, through_proxy):
        connection, direct, between = through_proxy
        connection.ensure_connection()
        between.swallow()
        connection.inc_thread_sharing()
        errors = []

        def insert():
            with pytest.raises(OperationalError) as raised:
                self.insert(connection)
            errors.append(raised.value)

        waiting = threading.Thread(target=insert)
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()
        between.cut()
        waiting.join(5)
        assert len(errors) == 1
        assert self.rows(direct) == 0


@pytest.mark.django_db(transaction=True)
class TestGunicorn:
    def status(self, server):
        with closing(http.client.HTTPConnection(HOST, server.port, timeout=10)) as client:
            client.request("GET", "/nowhere/")
            return client.getresponse().status

    def test_replaces_a_killed_worker_and_outlives_no_killed_arbiter(self, gunicorn):
        server = gunicorn(workers=2, threads=2)
        victim = server.worker_pids()[0]
        with pytest.raises(ValueError, match="not one of ours"):
            server.kill(os.getppid(), signal.SIGCONT)
        server.kill(victim)
        wait_until(
            lambda: victim not in server.worker_pids() and server.is_whole(),
            seconds=10,
            what="a new worker",
        )
        assert self.status(server) == 404
        workers = server.worker_pids()
        server.kill()
        wait_until(
            lambda: not any("gunicorn" in describe(pid) for pid in workers),
            seconds=5,
            what="workers to end",
        )

    def test_an_app_that_does_not_import_is_an_error_with_its_output(self, gunicorn):
        with pytest.raises(RuntimeError, match="No module named 'nonesuch'"):
            gunicorn("nonesuch:application", workers=1)


@pytest.mark.django_db(transaction=True)
class TestConnections:
    def test_other_connection_sees_only_what_is_committed(self, other_connection):
        def groups():
            with other_connection.cursor() as cursor:
                cursor.execute("SELECT count(*) FROM auth_group")
                return cursor.fetchone()[0]

        with transaction.atomic():
            Group.objects.create(name="clerks")
            assert groups() == 0
        assert groups() == 1

    def test_a_process_sees_what_the_test_committed(self, process_environment, tmp_path):
        Group.objects.create(name="clerks")
        code = (
            "import django; django.setup();"
            "from django.contrib.auth.models import Group; print(*Group.objects.all())"
        )
        output = tmp_path / "output"
        with output.open("wb") as file:
            process = spawn([sys.executable, "-c", code], env=process_environment, output=file)
        assert process.wait(30) == 0, output.read_text()
        assert output.read_text() == "clerks\n"

    def test_threads_start_together_and_give_results_in_order(self, run_in_threads):
        together = threading.Barrier(4)

        def work(index):
            together.wait(5)
            Group.objects.create(name=str(index))
            return index

        assert run_in_threads(4, work, using=["default"]) == [0, 1, 2, 3]
        assert Group.objects.count() == 4


class TestThreads:
    def test_first_error_is_raised_again(self, run_in_threads):
        def work(index):
            if index == 1:
                raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            run_in_threads(3, work)

    def test_a_thread_that_does_not_end_is_an_error(self):
        release = threading.Event()
        try:
            with pytest.raises(TimeoutError, match="test-0"):
                run_together(1, lambda index: release.wait(20), seconds=0.05)
        finally:
            release.set()


class TestProcesses:
    def test_dies_with_the_one_that_started_it(self, tmp_path):
        mark = f"IDEMPOTENCY_TEST_MARK={tmp_path.name}-{os.getpid()}"
        code = (
            "import sys, time; from tests.services.processes import spawn;"
            "spawn([sys.executable, '-c', 'import time; time.sleep(60)']); time.sleep(60)"
        )
        name, _, value = mark.partition("=")
        runner = spawn([sys.executable, "-c", code], env={name: value})
        wait_until(lambda: len(marked(mark)) == 2, seconds=10, what="both processes")
        runner.kill()
        runner.wait()
        wait_until(lambda: not marked(mark), seconds=5, what="the grandchild to end")
