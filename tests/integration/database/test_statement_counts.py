"""How many statements and commits each outcome costs, and in which transaction they run."""

from __future__ import annotations

from contextlib import suppress

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_idempotency.engine import Engine
from django_idempotency.engine.ending import RollBack
from django_idempotency.exceptions import FingerprintMismatch, InProgress
from tests.integration.database import claims
from tests.integration.database.claims import Boom, claim_request, operation, packed, won, work
from tests.services import current_leg

pytestmark = pytest.mark.django_db(transaction=True)

POSTGRESQL = pytest.mark.leg("postgres18", "postgres16")
TRANSACTIONS = ("BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE")


class Story(CaptureQueriesContext):
    """What was sent: statements of the store, of the work, and of transactions, in order."""

    def __init__(self):
        super().__init__(connection)

    @property
    def told(self):
        return " ".join(self._word(query["sql"]) for query in self.captured_queries)

    def _word(self, sql):
        if "idempotency_record" in sql:
            return "store"
        first = sql.partition(" ")[0]
        return first if first in TRANSACTIONS else "work" if "app_effect" in sql else sql


def fail(lease):
    work("failed")(lease)
    raise Boom


def release(lease):
    work("released")(lease)
    raise RollBack("release", "answer")


#: What was there before, what is done, and what is made of an error.
OUTCOMES = {
    "R24 new key": (claims.absent, work("mine"), None),
    "R25 replay": (claims.completed, work("mine"), None),
    "R37 mismatch": (claims.completed, work("mine"), None),
    "R49 in progress": (claims.live, work("mine"), None),
    "R58 failure": (claims.absent, fail, None),
    "R55 release": (claims.absent, release, None),
    # A kept error costs what a failure does: `joined` keeps it in a transaction of its own.
    "R57 kept error": (claims.absent, fail, lambda error: "kept"),
    # What may be claimed again costs an insert that finds it, a look, and the claim.
    "another try": (claims.failed, work("mine"), None),
}
#: On PostgreSQL, and elsewhere: there the claim looks first, and SQLite begins the work's
#: transaction with a write to the own record.
_FAILURE = {
    "joined": ("store BEGIN work ROLLBACK store", "store store BEGIN fence work ROLLBACK store"),
    "separate": ("store work store", "store store work store"),
    "single": (
        "BEGIN store store SAVEPOINT work ROLLBACK RELEASE store COMMIT",
        "store BEGIN store SAVEPOINT work ROLLBACK RELEASE store COMMIT",
    ),
}
EXPECTED = {
    "R24 new key": {
        # The claim commits by itself; work and completion commit together.
        "joined": ("store BEGIN work store COMMIT", "store store BEGIN fence work store COMMIT"),
        "separate": ("store work store", "store store work store"),
        "single": (
            "BEGIN store store SAVEPOINT work store COMMIT",
            "store BEGIN store SAVEPOINT work store COMMIT",
        ),
    },
    # On SQLite `single` reads before it opens a transaction, which other writers would wait for.
    "R25 replay": {"joined": ("store store", "store"), "single": ("BEGIN store COMMIT", "store")},
    "R37 mismatch": {"single": ("BEGIN store ROLLBACK", "store")},
    "R49 in progress": {
        "joined": ("store store", "store"),
        "single": ("BEGIN store store ROLLBACK", "store"),
    },
    "R58 failure": _FAILURE,
    "R55 release": {"joined": _FAILURE["joined"]},
    "R57 kept error": {"joined": _FAILURE["joined"]},
    "another try": {
        "joined": (
            "store store store BEGIN work store COMMIT",
            "store store BEGIN fence work store COMMIT",
        )
    },
}
FENCE = {"sqlite": "store ", "mariadb": ""}.get(current_leg())


@pytest.mark.parametrize(
    ("outcome", "mode"),
    [
        (outcome, mode)
        for outcome, modes in EXPECTED.items()
        for mode in modes
        if mode != "single" or current_leg() != "mariadb"
    ],
)
def test_statements_of_an_outcome(store, outcome, mode):
    before, do, on_error = OUTCOMES[outcome]
    before(store, claim_request())
    changed = {"fingerprint": claims.OTHER_FINGERPRINT} if outcome == "R37 mismatch" else {}
    with Story() as story, suppress(Boom, FingerprintMismatch, InProgress):
        Engine(store).run(operation(transaction=mode, **changed), do, on_error)
    expected = EXPECTED[outcome][mode][FENCE is not None]
    assert story.told == expected.replace("fence ", FENCE or "")


@POSTGRESQL
def test_R49_single_is_told_by_one_statement_that_another_holds_the_lock(two):
    with two.mine.atomic():
        won(two.mine.claim(claim_request(transaction="single")))

        def duplicate():
            with Story() as story, pytest.raises(InProgress):
                Engine(two.theirs).run(operation(transaction="single"), work("theirs"))
            return story.told

        assert two.other(duplicate) == "BEGIN store ROLLBACK"


def test_in_the_transaction_of_the_caller(store):
    with transaction.atomic(), Story() as story:
        Engine(store).run(operation(transaction="single"), work("mine"))
    claim = "store store" if current_leg() != "sqlite" else "store"
    assert story.told == f"SAVEPOINT {claim} SAVEPOINT work store RELEASE RELEASE"


@POSTGRESQL
def test_completion_is_a_hot_update(store):
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE idempotency_record")  # other tests may have filled its pages
    lease = claims.live(store, claim_request(transaction="joined"))
    with transaction.atomic():
        store.complete(lease, packed("result"), retention=claims.RETENTION)
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_xact_user_tables"
                " WHERE relname = 'idempotency_record'"
            )
            assert cursor.fetchone() == (1, 1)
