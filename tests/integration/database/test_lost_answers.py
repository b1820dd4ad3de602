"""The connection breaks, and what was done is not what was heard of it."""

from __future__ import annotations

from contextlib import nullcontext, suppress

import pytest
from django.db import DatabaseError, connection

from django_idempotency.engine import Engine
from django_idempotency.engine.attempt import Unkept
from django_idempotency.exceptions import InProgress, LeaseLost, StoreError
from django_idempotency.records import State
from tests.app.models import Effect
from tests.integration.database.claims import (
    Boom,
    effects,
    lapse,
    operation,
    state_of,
    work,
)
from tests.integration.database.sessions import PATIENCE
from tests.services.processes import wait_until
from tests.unit.http.api import problem, replayed

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.leg("postgres18", "postgres16"),
]

JOINS = pytest.mark.parametrize("mode", ["single", "joined"])
ALL = pytest.mark.parametrize("mode", ["single", "joined", "separate"])


@pytest.fixture
def engine(store):
    return Engine(store)


@pytest.fixture
def direct(other):
    """Call a function in a session whose connection is not the broken one."""
    return other


@pytest.fixture
def rolled_back(direct):
    """Wait until the server has noticed which sessions are gone, and rolled back their work."""
    return lambda: wait_until(
        lambda: direct(transactions) == 0, seconds=PATIENCE, what="the server to roll back"
    )


def transactions():
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND backend_type = 'client backend'"
            " AND xact_start IS NOT NULL AND pid <> pg_backend_pid()"
        )
        return cursor.fetchone()[0]


def execute(sql):
    with connection.cursor() as cursor:
        cursor.execute(sql)


def run(engine, mode, name="mine"):
    return engine.run(operation(transaction=mode), work(name))


# The COMMIT of work and record.


@JOINS
def test_answer_to_the_commit_is_lost(wire, engine, direct, mode):
    connection.ensure_connection()
    wire.cut_after(b"COMMIT")
    outcome = run(engine, mode)
    assert wire.fired.wait(PATIENCE)
    assert (outcome.result, outcome.replayed, outcome.stored) == ("mine", False, True)
    assert direct(effects) == ["mine"]
    assert run(engine, mode, "again").replayed
    assert direct(effects) == ["mine"]


@JOINS
def test_R60_commit_does_not_reach_the_server(wire, engine, direct, rolled_back, mode):
    connection.ensure_connection()
    wire.cut_before(b"COMMIT")
    with pytest.raises(StoreError):
        run(engine, mode)
    assert wire.fired.wait(PATIENCE)
    rolled_back()
    assert direct(effects) == []
    assert run(engine, mode, "again").result == "again"
    assert direct(effects) == ["again"]


def refuse(engine, mode, verdict):
    """Work that commits with its record released or failed."""
    with engine.attempt(operation(transaction=mode)) as attempt:
        Effect.objects.create(name="refused")
        attempt.verdict = verdict
        attempt.complete("refused")
    return attempt.result


@pytest.mark.parametrize(
    ("mode", "verdict", "state", "known"),
    [
        ("joined", "release", State.RELEASED, True),
        ("joined", "fail", State.FAILED, True),
        ("single", "release", State.RELEASED, False),
    ],
)
def test_R57_answer_to_the_commit_of_a_refusal_is_lost(
    wire, engine, direct, mode, verdict, state, known
):
    connection.ensure_connection()
    wire.cut_after(b"COMMIT")
    with nullcontext() if known else pytest.raises(StoreError):
        assert refuse(engine, mode, verdict) == "refused"
    assert direct(effects) == ["refused"]
    assert direct(state_of, engine.store) is state


@pytest.mark.parametrize(("mode", "verdict"), [("single", "release"), ("joined", "fail")])
def test_R57_R60_commit_of_a_refusal_does_not_reach_the_server(
    wire, engine, direct, rolled_back, mode, verdict
):
    connection.ensure_connection()
    wire.cut_before(b"COMMIT")
    with pytest.raises(StoreError):
        refuse(engine, mode, verdict)
    rolled_back()
    assert direct(effects) == []
    assert run(engine, mode, "again").result == "again"


@JOINS
def test_answer_to_the_commit_is_lost_and_the_server_out_of_reach(wire, engine, direct, mode):
    connection.ensure_connection()
    wire.refuse()
    wire.cut_after(b"COMMIT")
    with pytest.raises(StoreError):
        run(engine, mode)
    assert direct(effects) == ["mine"]
    wire.heal()
    assert run(engine, mode, "again").result == "mine"


@JOINS
def test_R60_commit_does_not_reach_a_server_out_of_reach(wire, engine, direct, rolled_back, mode):
    connection.ensure_connection()
    wire.refuse()
    wire.cut_before(b"COMMIT")
    with pytest.raises(StoreError):
        run(engine, mode)
    wire.heal()
    rolled_back()
    if mode == "joined":
        with pytest.raises(InProgress):  # whether it was committed is not known here
            run(engine, mode, "again")
        direct(lapse)
    assert run(engine, mode, "again").result == "again"
    assert direct(effects) == ["again"]


def begin_anew(api, wire):
    """Let alice be there, and the next request begin on a connection that has sent nothing yet."""
    api(key="another")
    connection.close()
    wait_until(lambda: wire.open_connections == 0, seconds=PATIENCE, what="the connection to close")


def test_R60_view_whose_commit_is_lost(wire, api, direct, rolled_back):
    begin_anew(api, wire)
    wire.cut_before(b"COMMIT")
    refused = api()
    assert problem(refused) == (503, "store_unavailable")
    assert int(refused.headers["Retry-After"]) >= 1
    rolled_back()
    again = api()
    assert (again.status_code, replayed(again)) == (201, False)
    assert direct(effects) == ["first", "first"]


def test_view_whose_answer_to_the_commit_is_lost(wire, api, direct):
    begin_anew(api, wire)
    wire.cut_after(b"COMMIT")
    first = api()
    assert (first.status_code, replayed(first)) == (201, False)
    again = api()
    assert (again.content, replayed(again)) == (first.content, True)
    assert direct(effects) == ["first", "first"]


# In the middle of the work.


@pytest.fixture
def cut_off(wire, rolled_back):
    """Work whose connection is cut after it has written."""

    def write_twice(lease):
        Effect.objects.create(name="mine")
        wire.cut()
        rolled_back()
        Effect.objects.create(name="mine, too")

    return write_twice


@ALL
def test_R58_connection_is_cut_in_mid_work(cut_off, engine, direct, mode):
    with pytest.raises(DatabaseError):
        engine.run(operation(transaction=mode), cut_off)
    assert direct(effects) == (["mine"] if mode == "separate" else [])
    assert direct(state_of, engine.store) is (None if mode == "single" else State.FAILED)
    assert run(engine, mode, "again").result == "again"


@ALL
def test_R58_connection_is_cut_in_mid_work_and_the_server_out_of_reach(
    cut_off, wire, engine, direct, mode
):
    def cut_off_for_good(lease):
        wire.refuse()
        cut_off(lease)

    with pytest.raises(DatabaseError):
        engine.run(operation(transaction=mode), cut_off_for_good)
    wire.heal()
    if mode != "single":
        with pytest.raises(InProgress):
            run(engine, mode, "again")
        direct(lapse)
    assert run(engine, mode, "again").result == "again"


@JOINS
def test_R57_answer_is_kept_on_another_connection(cut_off, engine, direct, mode):
    outcome = engine.run(operation(transaction=mode), cut_off, lambda error: "kept")
    assert (outcome.result, outcome.stored) == ("kept", True)
    assert direct(effects) == []
    assert run(engine, mode, "again").result == "kept"


@JOINS
def test_R57_answer_of_another_counts_if_it_came_first(cut_off, engine, direct, mode):
    """Nothing holds the key any more when the connection is gone, so another may have run."""

    def another_answers(error):
        if mode == "joined":
            direct(lapse)
        direct(run, engine, mode, "another")
        return "kept"

    if mode == "joined":
        with pytest.raises(LeaseLost):
            engine.run(operation(transaction=mode), cut_off, another_answers)
    else:
        outcome = engine.run(operation(transaction=mode), cut_off, another_answers)
        assert (outcome.result, outcome.replayed) == ("another", True)
    assert direct(effects) == ["another"]
    assert run(engine, mode, "again").result == "another"


# The completion.


@JOINS
def test_R60_answer_to_the_completion_is_lost(wire, engine, direct, rolled_back, mode):
    table = b"UPDATE idempotency_record" if mode == "joined" else b"INSERT INTO idempotency_record"

    def write(lease):
        wire.cut_after(table)
        return work("mine")(lease)

    with pytest.raises(StoreError):
        engine.run(operation(transaction=mode), write)
    assert wire.fired.wait(PATIENCE)
    rolled_back()
    assert direct(effects) == []
    assert run(engine, mode, "again").result == "again"


@pytest.mark.parametrize("end", ["complete", "fail", "release"])
def test_R58_end_of_separate_is_sent_again_on_another_connection(wire, engine, direct, end):
    def write(lease):
        (wire.cut_after if end == "complete" else wire.cut_before)(b"UPDATE idempotency_record")
        if end == "complete":
            return work("mine")(lease)
        raise Unkept("release") if end == "release" else Boom

    with suppress(Boom):
        outcome = engine.run(operation(transaction="separate"), write)
    assert wire.fired.wait(PATIENCE)
    expected = {"complete": State.COMPLETED, "fail": State.FAILED, "release": State.RELEASED}
    assert direct(state_of, engine.store) is expected[end]
    if end == "complete":
        assert (outcome.result, outcome.replayed, outcome.stored) == ("mine", False, True)
        assert run(engine, "separate", "again").replayed


@pytest.mark.parametrize("done", [True, False], ids=["done", "not done"])
def test_R60_completion_of_separate_gets_no_answer(wire, engine, direct, done):
    def write(lease):
        wire.refuse()
        (wire.cut_after if done else wire.cut_before)(b"UPDATE idempotency_record")
        return work("mine")(lease)

    outcome = engine.run(operation(transaction="separate"), write)
    assert (outcome.result, outcome.replayed, outcome.stored) == ("mine", False, False)
    wire.heal()
    if done:
        assert run(engine, "separate", "again").result == "mine"
        return
    with pytest.raises(InProgress):
        run(engine, "separate", "again")
    direct(lapse)
    assert run(engine, "separate", "again").result == "again"


# The claim.


@ALL
def test_R61_server_is_out_of_reach_at_the_claim(wire, engine, direct, mode):
    wire.refuse()
    ran = []
    with pytest.raises(StoreError):
        engine.run(operation(transaction=mode), ran.append)
    assert ran == []
    wire.heal()
    assert run(engine, mode).result == "mine"


def test_R61_view_is_not_run(wire, api):
    wire.refuse()
    refused = api(path="/atomic/")
    assert problem(refused) == (503, "store_unavailable")
    assert int(refused.headers["Retry-After"]) >= 1
    wire.heal()
    assert not replayed(api(path="/atomic/"))


@pytest.mark.parametrize("mode", ["joined", "separate"])
def test_R61_answer_to_the_claim_is_lost(wire, engine, direct, mode):
    """The claim may have been won, so its lease has to lapse: nobody runs twice."""
    connection.ensure_connection()
    wire.cut_after(b"INSERT INTO idempotency_record")
    ran = []
    with pytest.raises(StoreError):
        engine.run(operation(transaction=mode), ran.append)
    assert ran == []
    direct(lapse)
    assert run(engine, mode).result == "mine"


@ALL
def test_R88_connection_that_the_server_closed_is_replaced(engine, other, mode):
    """As a pooler or a restart leaves it; no request ends here that would close it."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        other(execute, f"SELECT pg_terminate_backend({cursor.fetchone()[0]}, 3000)")
    with pytest.raises(StoreError):
        run(engine, mode)
    assert run(engine, mode).result == "mine"
    assert effects() == ["mine"]
