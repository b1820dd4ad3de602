"""How many statements and commits each outcome costs, and in which transaction they run."""

from __future__ import annotations

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_idempotency.attempts import Unkept
from django_idempotency.engine import Engine
from django_idempotency.exceptions import FingerprintMismatch, InProgress
from tests.integration.database import claims
from tests.integration.database.claims import Boom, claim_request, operation, packed, won, work
from tests.services import current_leg

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.leg("postgres18", "postgres16", "sqlite"),
]

ON_SQLITE = current_leg() == "sqlite"


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


TRANSACTIONS = ("BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE")


def fail(lease):
    work("failed")(lease)
    raise Boom


def unkept(lease):
    work("unkept")(lease)
    raise Unkept("release", "answer")


NEW = {
    # The claim commits by itself; work and completion commit together.
    "joined": "store BEGIN work store COMMIT",
    "separate": "store work store",
    # The claim: under the lock it looks again.
    "single": "BEGIN store store SAVEPOINT work store RELEASE COMMIT",
}
NEW_ON_SQLITE = {
    # The claim looks first; the work's transaction begins with a write to the own record.
    "joined": "store store BEGIN store work store COMMIT",
    "separate": "store store work store",
    "single": "store BEGIN store SAVEPOINT work store RELEASE COMMIT",
}


@pytest.mark.parametrize("mode", NEW)
def test_new_key(store, mode):
    with Story() as story:
        Engine(store).run(operation(transaction=mode), work("mine"))
    assert story.told == (NEW_ON_SQLITE if ON_SQLITE else NEW)[mode]


REPLAY = {"joined": "store store", "separate": "store store", "single": "BEGIN store COMMIT"}
REPLAY_ON_SQLITE = {"joined": "store", "separate": "store", "single": "store"}


@pytest.mark.parametrize("mode", REPLAY)
def test_R25_replay(store, mode):
    claims.completed(store, claim_request())
    with Story() as story:
        assert Engine(store).run(operation(transaction=mode), work("mine")).replayed
    assert story.told == (REPLAY_ON_SQLITE if ON_SQLITE else REPLAY)[mode]


@pytest.mark.parametrize("mode", REPLAY)
def test_R37_mismatch(store, mode):
    claims.completed(store, claim_request())
    asked = operation(transaction=mode, fingerprint=claims.OTHER_FINGERPRINT)
    with Story() as story, pytest.raises(FingerprintMismatch):
        Engine(store).run(asked, work("mine"))
    ends = "ROLLBACK" if mode == "single" else ""
    expected = (REPLAY_ON_SQLITE if ON_SQLITE else REPLAY)[mode].replace("COMMIT", ends)
    assert story.told == expected


DUPLICATE = {
    "joined": "store store",
    "separate": "store store",
    # The lock is free, for the claim is a row: so it looks again.
    "single": "BEGIN store store ROLLBACK",
}
DUPLICATE_ON_SQLITE = {"joined": "store", "separate": "store", "single": "store"}


@pytest.mark.parametrize("mode", DUPLICATE)
def test_R49_duplicate_in_progress(store, mode):
    claims.live(store, claim_request())
    with Story() as story, pytest.raises(InProgress):
        Engine(store).run(operation(transaction=mode), work("mine"))
    assert story.told == (DUPLICATE_ON_SQLITE if ON_SQLITE else DUPLICATE)[mode]


@pytest.mark.leg("postgres18", "postgres16")
def test_R49_duplicate_of_single_is_one_statement(two):
    with two.mine.atomic():
        won(two.mine.claim(claim_request(transaction="single")))

        def duplicate():
            with Story() as story, pytest.raises(InProgress):
                Engine(two.theirs).run(operation(transaction="single"), work("theirs"))
            return story.told

        assert two.other(duplicate) == "BEGIN store ROLLBACK"


FAILURE = {
    "joined": "store BEGIN work ROLLBACK store",
    "separate": "store work store",
    "single": "BEGIN store store SAVEPOINT work ROLLBACK RELEASE store COMMIT",
}
FAILURE_ON_SQLITE = {
    "joined": "store store BEGIN store work ROLLBACK store",
    "separate": "store store work store",
    "single": "store BEGIN store SAVEPOINT work ROLLBACK RELEASE store COMMIT",
}


@pytest.mark.parametrize("mode", FAILURE)
def test_R58_failure(store, mode):
    with Story() as story, pytest.raises(Boom):
        Engine(store).run(operation(transaction=mode), fail)
    assert story.told == (FAILURE_ON_SQLITE if ON_SQLITE else FAILURE)[mode]


@pytest.mark.parametrize("mode", FAILURE)
def test_R55_release(store, mode):
    with Story() as story:
        Engine(store).run(operation(transaction=mode), unkept)
    assert story.told == (FAILURE_ON_SQLITE if ON_SQLITE else FAILURE)[mode]


@pytest.mark.parametrize("mode", FAILURE)
def test_R57_kept_error(store, mode):
    """A kept error costs what a failure costs: `joined` keeps it in a transaction of its own."""
    with Story() as story:
        Engine(store).run(operation(transaction=mode), fail, lambda error: "kept")
    assert story.told == (FAILURE_ON_SQLITE if ON_SQLITE else FAILURE)[mode]


@pytest.mark.parametrize("mode", ["joined", "separate"])
def test_another_try(store, mode):
    """What may be claimed again costs an insert that finds it, a look, and the claim."""
    claims.failed(store, claim_request())
    with Story() as story:
        Engine(store).run(operation(transaction=mode), work("mine"))
    added = "" if ON_SQLITE else "store store "
    assert story.told == added + (NEW_ON_SQLITE if ON_SQLITE else NEW)[mode]


def test_in_the_transaction_of_the_caller(store):
    with transaction.atomic(), Story() as story:
        Engine(store).run(operation(transaction="single"), work("mine"))
    claim = "store" if ON_SQLITE else "store store"
    assert story.told == f"SAVEPOINT {claim} SAVEPOINT work store RELEASE RELEASE"


@pytest.mark.leg("postgres18", "postgres16")
def test_completion_is_a_hot_update(store):
    lease = claims.live(store, claim_request())
    with transaction.atomic():
        store.complete(lease, packed("result"), retention=claims.RETENTION)
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_xact_user_tables"
                " WHERE relname = 'idempotency_record'"
            )
            assert cursor.fetchone() == (1, 1)
