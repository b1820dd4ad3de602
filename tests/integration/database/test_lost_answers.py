"""The connection breaks, and what was done is not what was heard of it."""

from __future__ import annotations

from contextlib import nullcontext, suppress

import pytest
from django.db import DatabaseError, connection

from django_idempotency.engine import Engine
from django_idempotency.engine.attempt import RollBack
from django_idempotency.exceptions import InProgress, LeaseLost, StoreError
from django_idempotency.records import State
from tests.app.models import Effect
from tests.integration.database.claims import Boom, effects, lapse, operation, state_of, work
from tests.integration.database.sessions import PATIENCE, execute
from tests.services.processes import wait_until
from tests.unit.http.api import problem, replayed

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.leg("postgres18")]

JOINS = pytest.mark.parametrize("mode", ["single", "joined"])
ALL = pytest.mark.parametrize("mode", ["single", "joined", "separate"])


@pytest.fixture
def engine(store):
    return Engine(store)


@pytest.fixture
def rolled_back(other):
    """Wait until the server has noticed which sessions are gone, and rolled back their work."""
    others = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND backend_type = 'client backend'"
        " AND xact_start IS NOT NULL AND pid <> pg_backend_pid()"
    )
    return lambda: wait_until(
        lambda: other(execute, others) == 0, seconds=PATIENCE, what="the server to roll back"
    )


def run(engine, mode, name="mine"):
    return engine.run(operation(transaction=mode), work(name))


# The COMMIT of work and record.


@JOINS
def test_answer_to_the_commit_is_lost(wire, engine, other, mode):
    connection.ensure_connection()
    wire.cut_after(b"COMMIT")
    outcome = run(engine, mode)
    assert wire.fired.wait(PATIENCE)
    assert (outcome.result, outcome.replayed, outcome.stored) == ("mine", False, True)
    assert run(engine, mode, "again").replayed
    assert other(effects) == ["mine"]


@JOINS
def test_R60_commit_does_not_reach_the_server(wire, engine, other, rolled_back, mode):
    connection.ensure_connection()
    wire.cut_before(b"COMMIT")
    with pytest.raises(StoreError):
        run(engine, mode)
    rolled_back()
    assert other(effects) == []
    assert run(engine, mode, "again").result == "again"


@pytest.mark.parametrize(
    ("mode", "verdict", "state", "known"),
    [
        ("joined", "release", State.RELEASED, True),
        ("joined", "fail", State.FAILED, True),
        ("single", "release", State.RELEASED, False),
    ],
)
def test_R57_answer_to_the_commit_of_a_refusal_is_lost(
    wire, engine, other, mode, verdict, state, known
):
    connection.ensure_connection()
    wire.cut_after(b"COMMIT")
    with (
        nullcontext() if known else pytest.raises(StoreError),
        engine.attempt(operation(transaction=mode)) as attempt,
    ):
        Effect.objects.create(name="refused")
        attempt.verdict = verdict
        attempt.complete("refused")
    assert other(effects) == ["refused"]
    assert other(state_of, engine.store) is state


@JOINS
def test_answer_to_the_commit_is_lost_and_the_server_out_of_reach(wire, engine, other, mode):
    connection.ensure_connection()
    wire.refuse()
    wire.cut_after(b"COMMIT")
    with pytest.raises(StoreError):
        run(engine, mode)
    assert other(effects) == ["mine"]
    wire.heal()
    assert run(engine, mode, "again").result == "mine"


@JOINS
def test_R60_commit_does_not_reach_a_server_out_of_reach(wire, engine, other, rolled_back, mode):
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
        other(lapse)
    assert run(engine, mode, "again").result == "again"
    assert other(effects) == ["again"]


@pytest.mark.parametrize("lost", ["R60 the COMMIT", "its answer"])
def test_view_whose_answer_to_the_commit_is_lost(wire, api, other, rolled_back, lost):
    api(key="another")  # alice is there
    connection.close()
    wait_until(lambda: wire.open_connections == 0, seconds=PATIENCE, what="the connection to close")
    (wire.cut_after if lost == "its answer" else wire.cut_before)(b"COMMIT")
    first = api()
    if lost == "its answer":
        assert (first.status_code, replayed(first)) == (201, False)
    else:
        assert problem(first) == (503, "store_unavailable")
        assert int(first.headers["Retry-After"]) >= 1
    rolled_back()
    again = api()
    assert (again.status_code, replayed(again)) == (201, lost == "its answer")
    assert other(effects) == ["first", "first"]


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
def test_R58_connection_is_cut_in_mid_work(cut_off, engine, other, mode):
    with pytest.raises(DatabaseError):
        engine.run(operation(transaction=mode), cut_off)
    assert other(effects) == (["mine"] if mode == "separate" else [])
    assert other(state_of, engine.store) is (None if mode == "single" else State.FAILED)
    assert run(engine, mode, "again").result == "again"


@JOINS
def test_R58_connection_is_cut_in_mid_work_and_the_server_out_of_reach(
    cut_off, wire, engine, other, mode
):
    def cut_off_for_good(lease):
        wire.refuse()
        cut_off(lease)

    with pytest.raises(DatabaseError):
        engine.run(operation(transaction=mode), cut_off_for_good)
    wire.heal()
    if mode == "joined":
        with pytest.raises(InProgress):
            run(engine, mode, "again")
        other(lapse)
    assert run(engine, mode, "again").result == "again"


@pytest.mark.parametrize("meanwhile", [False, True], ids=["kept", "another came first"])
@JOINS
def test_R57_answer_is_kept_on_another_connection(cut_off, engine, other, mode, meanwhile):
    """Nothing holds the key any more when the connection is gone, so another may have run."""

    def answer(error):
        if meanwhile:
            if mode == "joined":
                other(lapse)
            other(run, engine, mode, "another")
        return "kept"

    with pytest.raises(LeaseLost) if meanwhile and mode == "joined" else nullcontext():
        outcome = engine.run(operation(transaction=mode), cut_off, answer)
        result = "another" if meanwhile else "kept"
        assert (outcome.result, outcome.replayed, outcome.stored) == (result, meanwhile, True)
    assert other(effects) == (["another"] if meanwhile else [])
    assert run(engine, mode, "again").result == ("another" if meanwhile else "kept")


# The completion.


def test_R60_answer_to_the_completion_is_lost(wire, engine, other, rolled_back):
    def write(lease):
        wire.cut_after(b"UPDATE idempotency_record")
        return work("mine")(lease)

    with pytest.raises(StoreError):
        engine.run(operation(), write)
    rolled_back()
    assert other(effects) == []
    assert run(engine, "joined", "again").result == "again"


@pytest.mark.parametrize("end", ["complete", "fail", "release"])
def test_R58_end_of_separate_is_sent_again_on_another_connection(wire, engine, other, end):
    def write(lease):
        (wire.cut_after if end == "complete" else wire.cut_before)(b"UPDATE idempotency_record")
        if end == "complete":
            return work("mine")(lease)
        raise RollBack("release") if end == "release" else Boom

    with suppress(Boom):
        outcome = engine.run(operation(transaction="separate"), write)
    assert wire.fired.wait(PATIENCE)
    expected = {"complete": State.COMPLETED, "fail": State.FAILED, "release": State.RELEASED}
    assert other(state_of, engine.store) is expected[end]
    if end == "complete":
        assert (outcome.result, outcome.replayed, outcome.stored) == ("mine", False, True)


@pytest.mark.parametrize("done", [True, False], ids=["done", "not done"])
def test_R60_completion_of_separate_gets_no_answer(wire, engine, other, done):
    def write(lease):
        wire.refuse()
        (wire.cut_after if done else wire.cut_before)(b"UPDATE idempotency_record")
        return work("mine")(lease)

    outcome = engine.run(operation(transaction="separate"), write)
    assert (outcome.result, outcome.replayed, outcome.stored) == ("mine", False, False)
    wire.heal()
    if not done:
        with pytest.raises(InProgress):
            run(engine, "separate", "again")
        other(lapse)
    assert run(engine, "separate", "again").result == ("mine" if done else "again")


# The claim.


@ALL
def test_R61_server_is_out_of_reach_at_the_claim(wire, api, engine, mode):
    wire.refuse()
    ran = []
    with pytest.raises(StoreError):
        engine.run(operation(transaction=mode), ran.append)
    assert ran == []
    refused = api(path="/atomic/")
    assert problem(refused) == (503, "store_unavailable")
    assert int(refused.headers["Retry-After"]) >= 1
    wire.heal()
    assert run(engine, mode).result == "mine"
    assert not replayed(api(path="/atomic/"))


def test_R61_answer_to_the_claim_is_lost(wire, engine, other):
    """The claim may have been won, so its lease has to lapse: nobody runs twice."""
    connection.ensure_connection()
    wire.cut_after(b"INSERT INTO idempotency_record")
    ran = []
    with pytest.raises(StoreError):
        engine.run(operation(), ran.append)
    assert ran == []
    other(lapse)
    assert run(engine, "joined").result == "mine"


@JOINS
def test_R88_connection_that_the_server_closed_is_replaced(engine, other, mode):
    """As a pooler or a restart leaves it; no request ends here that would close it."""
    pid = execute("SELECT pg_backend_pid()")
    other(execute, f"SELECT pg_terminate_backend({pid}, 3000)")
    with pytest.raises(StoreError):
        run(engine, mode)
    assert run(engine, mode).result == "mine"
    assert effects() == ["mine"]
