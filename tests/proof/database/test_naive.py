"""More tests than one find most of the naive statements, which do their work meanwhile."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

import pytest
from django.db import transaction

from django_idempotency.engine import Engine
from tests.integration.database import (
    claims,
    naive,
    test_fence,
    test_naive,
    test_reclaims,
    test_single,
)
from tests.integration.database.claims import claim_request, operation, packed, state_of, won, work
from tests.integration.database.test_naive import VENDOR, reclaimed, rule

pytestmark = pytest.mark.django_db(transaction=True)

MORE = [
    ("reclaim by token", reclaimed("lapsed", "renewed by its owner", "IN_PROGRESS")),
    ("reclaim by state", reclaimed("expired", "failed by another", "FAILED")),
    *(
        (f"{write} without the fence", rule(name, loss="taken over and completed"))
        for write, name in (
            ("complete", "test_R66_I7_late_completion_is_refused"),
            ("fail", "test_R67_I7_late_failure_changes_nothing"),
            ("release", "test_R67_I7_late_release_changes_nothing"),
        )
    ),
]
MORE_ON_POSTGRESQL = [
    ("complete without the fence", test_fence.test_R66_I7_late_work_is_rolled_back),
    (
        "fail without the fence",
        test_fence.test_R67_late_failure_of_work_leaves_the_result_of_the_owner,
    ),
    (
        "claim without the lock",
        partial(
            test_single.test_R49_R53_duplicate_is_told_at_once_while_the_work_runs,
            mode="joined",
            before=claims.absent,
        ),
    ),
    (
        "claim without the lock",
        partial(
            test_single.test_R49_duplicate_never_waits_for_the_uncommitted_completion,
            mode="separate",
            before=claims.absent,
        ),
    ),
    (
        "reclaim that waits",
        partial(
            test_reclaims.test_claim_does_not_wait_for_an_owner_between_completion_and_commit,
            before=claims.lapsed,
        ),
    ),
    (
        "renew that waits",
        test_reclaims.test_renewal_does_not_wait_for_an_owner_between_completion_and_commit,
    ),
]


@pytest.mark.parametrize(
    ("mistake", "test"), [*MORE, *(MORE_ON_POSTGRESQL if VENDOR == "postgresql" else [])]
)
def test_naive_statement_is_found_out(two, monkeypatch, mistake, test):
    monkeypatch.setitem(test_naive.FOUND_OUT, mistake, test)
    test_naive.test_naive_statement_is_found_out(two, monkeypatch, mistake)


@pytest.mark.parametrize("mistake", naive.MISTAKES[VENDOR])
def test_naive_statement_works_while_nobody_interferes(two, monkeypatch, mistake):
    naive.MISTAKES[VENDOR][mistake](monkeypatch)
    engine = Engine(two.mine)
    for mode in ("single", "joined", "separate"):
        assert engine.run(operation(mode, transaction=mode), work(mode)).result == mode
        assert engine.run(operation(mode, transaction=mode), work(mode)).replayed
    assert claims.effects() == ["single", "joined", "separate"]
    for end in (claims.failed, claims.released, claims.lapsed):
        end(two.mine, claim_request(end.__name__))
        lease = won(two.mine.claim(claim_request(end.__name__)))
        assert two.mine.renew([lease], timedelta(seconds=60)) == {lease}
        two.mine.complete(lease, packed("second"), retention=claims.RETENTION)
        claims.expire(end.__name__)
    with transaction.atomic():
        assert two.mine.sweep(limit=10) == 3
    assert state_of(two.mine, "lapsed") is None
