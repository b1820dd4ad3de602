"""Transactions on several databases, as one block; of requests: tests/unit/http/test_work.py."""

from __future__ import annotations

import pytest
from django.db import IntegrityError, OperationalError, connections, transaction

from django_idempotency.exceptions.base import SessionLost
from django_idempotency.transactions.aliases import AtomicBlocks
from tests.app.models import Child, Effect
from tests.unit.core.steps import Boom

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])

BOTH = ["default", "other"]


def write(*, orphan):
    for using in BOTH:
        Effect.objects.using(using).create(name="x")
    Child.objects.using(orphan).create(parent_id=10**9)


def effects():
    return [Effect.objects.using(using).count() for using in BOTH]


@pytest.mark.parametrize(
    ("of_store", "error"),
    [([], OperationalError), (["default"], OperationalError), (["other"], SessionLost)],
)
def test_R61_what_cannot_be_begun_is_an_error_of_the_store_on_its_own_alias(
    monkeypatch, of_store, error
):
    def refuse(*arguments, **options):
        raise OperationalError("the server is down")

    monkeypatch.setattr(connections["other"], "set_autocommit", refuse)
    with pytest.raises(error), AtomicBlocks(BOTH, of_store=of_store):
        pytest.fail("ran")


def test_R90_where_one_is_refused_at_its_COMMIT_none_commits():
    blocks = AtomicBlocks(BOTH)
    with pytest.raises(IntegrityError), blocks:
        write(orphan="other")
    assert effects() == [0, 0]
    assert not blocks.committed


@pytest.mark.parametrize(
    ("at_the_end", "passes_on"),
    [(OperationalError("the server is down"), Boom), (KeyboardInterrupt(), KeyboardInterrupt)],
    ids=["server", "interrupt"],
)
def test_R58_what_the_work_raises_passes_on_though_a_server_is_gone(
    monkeypatch, at_the_end, passes_on
):
    """Django connects anew after the rollback: that it cannot does not hide what was raised."""
    connection = connections["other"]
    set_autocommit = connection.set_autocommit

    def refuse(autocommit, **options):
        set_autocommit(autocommit, **options)
        raise at_the_end

    def fail():
        write(orphan="other")
        monkeypatch.setattr(connection, "set_autocommit", refuse)
        raise Boom

    with pytest.raises(passes_on), AtomicBlocks(BOTH):
        fail()
    assert effects() == [0, 0]


def test_R91_the_rollback_of_one_is_deliberate_whatever_the_other_does():
    with AtomicBlocks(BOTH) as blocks:
        transaction.set_rollback(True, using="other")
        assert (blocks.rolled_back(), blocks.rollback_is_deliberate()) == (True, True)


def test_R84_within_a_transaction_it_leaves_no_hook_to_the_one_around():
    """Who captures the hooks of a TestCase gets those of the work alone."""
    with transaction.atomic():
        with AtomicBlocks(["default"]) as blocks:
            Effect.objects.create(name="x")
        assert connections["default"].run_on_commit == []
        assert not blocks.committed
