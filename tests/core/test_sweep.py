"""Sweeping: the function and the command delete what is expired, and nothing else."""

from __future__ import annotations

import io
import itertools
import uuid
from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command
from django.core.management.base import SystemCheckError
from django.utils import timezone

from django_idempotency import InvalidStore, StoreError
from django_idempotency.management.commands.idempotency_sweep import Command
from django_idempotency.models import IdempotencyRecord
from django_idempotency.stores.base import BaseStore
from django_idempotency.stores.database import DatabaseStore
from django_idempotency.sweep import sweep

pytestmark = pytest.mark.django_db(databases=["default", "other"])

HOUR = timedelta(hours=1)
State = IdempotencyRecord.State
numbers = itertools.count(1)


@pytest.fixture(autouse=True)
def aliases(settings):
    settings.IDEMPOTENCY = {"default": {}, "other": {"OPTIONS": {"using": "other"}}}


def add(number=1, *, using="default", state=State.COMPLETED, expires=-HOUR, lease=None):
    """Add records that expire, and whose leases end, so long from now (None: never)."""
    now = timezone.now()
    return [
        IdempotencyRecord.objects.using(using).create(
            id=uuid.UUID(int=next(numbers)),
            scope="s",
            key="k",
            state=state,
            epoch=1,
            token=uuid.uuid4(),
            lease_until=None if lease is None else now + lease,
            created_at=now,
            updated_at=now,
            expires_at=None if expires is None else now + expires,
        )
        for _ in range(number)
    ]


def left(using="default"):
    return IdempotencyRecord.objects.using(using).count()


def command(*words):
    output = io.StringIO()
    call_command("idempotency_sweep", *words, stdout=output)
    return output.getvalue()


class TestWhatGoes:
    @pytest.mark.parametrize("state", list(State))
    def test_expired_without_a_lease(self, state):
        add(state=state, lease=-HOUR if state == State.IN_PROGRESS else None)
        assert sweep("default") == {"default": 1}
        assert left() == 0

    @pytest.mark.parametrize("state", list(State))
    def test_not_expired_stays(self, state):
        add(state=state, expires=HOUR, lease=-HOUR if state == State.IN_PROGRESS else None)
        assert sweep("default") == {"default": 0}
        assert left() == 1

    def test_R75_a_live_lease_stays(self):
        add(state=State.IN_PROGRESS, lease=HOUR)
        assert sweep("default") == {"default": 0}
        assert left() == 1

    def test_R71_a_record_without_expiry_stays(self):
        add(state=State.IN_PROGRESS, expires=None, lease=-HOUR)
        assert sweep("default") == {"default": 0}
        assert left() == 1

    def test_of_every_alias(self):
        add(2)
        add(3, using="other")
        assert sweep() == {"default": 2, "other": 3}

    def test_of_one_alias(self):
        add(2)
        add(3, using="other")
        assert sweep("other") == {"other": 3}
        assert (left(), left("other")) == (2, 0)


class TestBatches:
    @pytest.mark.parametrize(
        ("records", "limit", "batches"), [(5, 2, [2, 4, 5]), (4, 2, [2, 4, 4]), (0, 2, [0])]
    )
    def test_until_nothing_is_left(self, records, limit, batches):
        add(records)
        told = []
        swept = sweep("default", limit=limit, progress=lambda alias, count: told.append(count))
        assert swept == {"default": records}
        assert told == batches
        assert left() == 0

    def test_max_seconds_of_zero_sweeps_nothing(self):
        add(5)
        assert sweep("default", max_seconds=0) == {"default": 0}
        assert left() == 5

    def test_a_time_of_its_own_is_enough(self):
        add(5)
        assert sweep("default", limit=2, max_seconds=60) == {"default": 5}


class ExpiresByItself(BaseStore):
    """A store that needs no sweep."""

    native_expiry = True

    def sweep(self, *, limit=5000):
        raise AssertionError("it needs none")


class CannotBeReached(DatabaseStore):
    """A store whose server is down."""

    def sweep(self, *, limit=5000):
        raise StoreError("The server is down.")


class TestCommand:
    def test_deletes_and_says_how_many(self):
        add(2)
        add(1, expires=HOUR)
        add(3, using="other")
        output = command()
        assert output.splitlines() == [
            "default: 2 expired records deleted",
            "other: 3 expired records deleted",
        ]
        assert (left(), left("other")) == (1, 0)

    def test_R75_not_live_leases(self):
        add(1, state=State.IN_PROGRESS, lease=HOUR)
        assert command("--store", "default") == "default: 0 expired records deleted\n"
        assert left() == 1

    def test_store(self):
        add(2)
        add(3, using="other")
        assert command("--store", "other") == "other: 3 expired records deleted\n"
        assert left() == 2

    def test_limit_is_per_batch(self):
        add(5)
        assert command("--store", "default", "--limit", "2").startswith("default: 5 ")
        assert left() == 0

    def test_max_seconds(self):
        add(5)
        assert command("--store", "default", "--max-seconds", "0").startswith("default: 0 ")
        assert left() == 5

    def test_dry_run_counts_what_a_sweep_would(self):
        add(2)
        add(1, state=State.IN_PROGRESS, lease=HOUR)
        add(1, expires=HOUR)
        add(3, using="other")
        output = command("--dry-run")
        assert output.splitlines() == ["default: 2 expired records", "other: 3 expired records"]
        assert (left(), left("other")) == (4, 3)

    def test_dry_run_of_one_store(self):
        add(2)
        add(3, using="other")
        assert command("--dry-run", "--store", "other") == "other: 3 expired records\n"
        assert left("other") == 3

    def test_a_store_that_expires_by_itself_is_left_out(self, settings):
        settings.IDEMPOTENCY = {
            "default": {},
            "native": {"BACKEND": f"{__name__}.ExpiresByItself"},
        }
        assert command() == "default: 0 expired records deleted\n"
        assert command("--dry-run") == "default: 0 expired records\n"

    def test_a_terminal_gets_progress(self, monkeypatch):
        add(3)
        output = io.StringIO()
        output.isatty = lambda: True
        call_command("idempotency_sweep", "--store=default", "--limit=2", stdout=output)
        assert "\rdefault: 2 expired records deleted" in output.getvalue()
        assert output.getvalue().endswith("default: 3 expired records deleted\n")


class TestExitCodes:
    def code(self, *words, monkeypatch):
        """The exit code of the command as the shell would see it."""
        # It closes connections at its end, and with them the test's transaction.
        monkeypatch.setattr("django.core.management.base.connections.close_all", lambda: None)
        try:
            Command(stdout=io.StringIO(), stderr=io.StringIO()).run_from_argv(
                ["manage.py", "idempotency_sweep", *words]
            )
        except SystemExit as error:
            return error.code
        return 0

    @pytest.mark.parametrize(
        ("words", "code"),
        [
            ([], 0),
            (["--dry-run"], 0),
            (["--store", "default", "--limit", "1", "--max-seconds", "1.5"], 0),
            (["--store", "nonesuch"], 1),
            (["--store", "nonesuch", "--dry-run"], 1),
            (["--store", "down"], 1),
            (["--limit", "0"], 2),
            (["--limit", "-1"], 2),
            (["--limit", "many"], 2),
            (["--max-seconds", "soon"], 2),
            (["--nonesuch"], 2),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, list) else None,
    )
    def test_code(self, settings, monkeypatch, words, code):
        if "down" in words:
            settings.IDEMPOTENCY = {
                "default": {},
                "down": {"BACKEND": f"{__name__}.CannotBeReached"},
            }
        assert self.code(*words, monkeypatch=monkeypatch) == code

    def test_unknown_store_with_a_suggestion(self):
        with pytest.raises(CommandError, match="Did you mean 'other'"):
            command("--store", "othr")

    def test_a_bad_setting_is_told(self, settings):
        settings.IDEMPOTENCY = {"default": {"LEESE": 5}}
        with pytest.raises((CommandError, SystemCheckError), match="LEASE"):
            command()

    def test_the_function_raises_what_the_command_tells(self):
        with pytest.raises(InvalidStore):
            sweep("nonesuch")
