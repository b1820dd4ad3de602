"""R51: what requests that wait cost the server, and how they meet its failure."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest
from django.db import connection, connections
from django.db.backends.signals import connection_created

from django_idempotency.engine.waiting import poller
from tests.app.models import Effect
from tests.integration.database.sessions import execute
from tests.services.processes import wait_until
from tests.unit.http.api import problem, replayed
from tests.unit.views.conftest import send, sending, together

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.leg("postgres18")]

PATIENCE = 60
#: Requests that come at the same moment: the server takes 300 connections.
AT_ONCE = 25


def number_waiting():
    return sum(map(len, list(poller._waiters.values())))


def others_connections():
    return execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
    )


@pytest.mark.parametrize(
    ("transaction", "waiters"), [("joined", 150), ("single", 50), ("separate", 20)]
)
def test_R51_all_waiters_cost_one_connection(policy, gate, runs, transaction, waiters):
    """Beside the owner's: they are one look, and its record answers them all."""
    policy(TRANSACTION=transaction, WAIT=PATIENCE)
    with together(sending("function")) as first, ExitStack() as stack:
        assert gate.reached.wait(PATIENCE)
        answers = []
        for number in range(0, waiters, AT_ONCE):
            some = min(AT_ONCE, waiters - number)
            answers.append(stack.enter_context(together(*[sending("function")] * some)))
            expected = number + some
            wait_until(lambda n=expected: number_waiting() == n, seconds=PATIENCE, what="waiters")
        wait_until(lambda: others_connections() == 2, seconds=PATIENCE, what="owner and poller")
        gate.open.set()
        wait_until(lambda: others_connections() == 0, seconds=PATIENCE, what="no connection")
    assert [replayed(answer) for some in (first, *answers) for answer in some] == [
        False,
        *[True] * waiters,
    ]
    assert (len(runs), Effect.objects.count()) == (1, 1)


@pytest.mark.parametrize("transaction", ["joined", "separate"])
def test_R51_coroutines_that_wait_cost_one_connection(policy, gate, in_loop, transaction):
    """Each request of ASGI has a thread to itself."""
    policy(TRANSACTION=transaction, WAIT=PATIENCE)

    async def main():
        first = asyncio.create_task(send("async-function"))
        assert await asyncio.to_thread(gate.reached.wait, PATIENCE)
        others = [asyncio.create_task(send("async-function")) for _ in range(20)]
        await asyncio.to_thread(
            wait_until, lambda: number_waiting() == 20, seconds=PATIENCE, what="waiters"
        )
        in_use = await asyncio.to_thread(counted)
        gate.open.set()
        return in_use, await asyncio.gather(first, *others)

    def counted():
        try:
            wait_until(lambda: others_connections() <= 3, seconds=PATIENCE, what="idle waiters")
            return others_connections()
        finally:
            connections.close_all()

    in_use, answers = in_loop(main)
    assert in_use <= 3  # the owner's, the poller's and the test's
    assert [replayed(answer) for answer in answers] == [False] + [True] * 20


def test_R60_store_that_fails_meanwhile_is_a_503_for_each_waiter(policy, gate, monkeypatch):
    policy(TRANSACTION="separate", WAIT=PATIENCE)
    with together(sending("function")) as first:
        assert gate.reached.wait(PATIENCE)
        with together(*[sending("function")] * 5) as others:
            wait_until(lambda: number_waiting() == 5, seconds=PATIENCE, what="waiters")
            execute("ALTER TABLE idempotency_record RENAME TO away")
            try:
                wait_until(lambda: None not in others, seconds=PATIENCE, what="their answers")
            finally:
                execute("ALTER TABLE away RENAME TO idempotency_record")
        gate.open.set()
    assert [problem(answer) for answer in others] == [(503, "store_unavailable")] * 5
    assert first[0].status_code == 201


def test_R51_session_of_work_after_a_wait_is_announced(policy, gate, runs, monkeypatch):
    """So a project can give it what its middleware had set in the one before (waiting.md)."""
    roles, save = [], Effect.save

    def set_role(connection, **signal):
        execute("SET app.role = 'clerk'")

    def saving(effect, *arguments, **keywords):
        roles.append(execute("SELECT current_setting('app.role', true)"))
        save(effect, *arguments, **keywords)

    monkeypatch.setattr(Effect, "save", saving)
    policy(TRANSACTION="joined", WAIT=PATIENCE)
    connection_created.connect(set_role)
    try:
        with together(sending("function")):
            assert gate.reached.wait(PATIENCE)
            with together(sending("function")) as second:
                wait_until(lambda: number_waiting() == 1, seconds=PATIENCE, what="the waiter")
                execute("UPDATE idempotency_record SET state = 'RELEASED', epoch = epoch + 1")
                gate.open.set()
    finally:
        connection_created.disconnect(set_role)
    assert (second[0].status_code, replayed(second[0])) == (201, False)
    assert roles == ["clerk"] * 2


def test_R51_poller_that_loses_its_connection_takes_another(policy, gate, runs):
    policy(TRANSACTION="joined", WAIT=PATIENCE)
    with together(sending("function")) as first:
        assert gate.reached.wait(PATIENCE)
        with together(*[sending("function")] * 5) as others:
            wait_until(lambda: number_waiting() == 5, seconds=PATIENCE, what="waiters")
            wait_until(lambda: others_connections() == 2, seconds=PATIENCE, what="the poller")
            execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE pid <> pg_backend_pid() AND query LIKE '%pg_locks%'"
            )
            wait_until(lambda: number_waiting() == 5, seconds=PATIENCE, what="waiters")
            gate.open.set()
    assert [replayed(answer) for answer in (*first, *others)] == [False] + [True] * 5
    assert len(runs) == 1
    connection.close()
