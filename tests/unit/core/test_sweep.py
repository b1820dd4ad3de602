"""Sweeping: the function and the command delete what is expired, and nothing else."""

from __future__ import annotations

import io
import itertools
import logging
import time
import uuid
from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command
from django.core.management.base import SystemCheckError
from django.utils import timezone

from django_idempotency import InvalidStore, StoreError
from django_idempotency.conf import store_for
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

    def test_rests_for_the_rest_of_the_time(self, monkeypatch):
        add(5)
        rests = []
        monkeypatch.setattr("django_idempotency.sweep.time.sleep", rests.append)
        began = time.monotonic()
        assert sweep("default", limit=2, share=0.25) == {"default": 5}
        worked = time.monotonic() - began
        assert len(rests) == 2
        assert 0 < sum(rests) <= worked * 3

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            *[("share", value) for value in (0, -1, 1.5)],
            *[("limit", value) for value in (0, -1)],
            *[("max_seconds", value) for value in (-1, float("nan"))],
        ],
    )
    def test_values_that_make_no_sense_are_told_before_anything_is_deleted(self, name, value):
        add(1)
        with pytest.raises(ValueError, match=f"{name} must be"):
            sweep("default", **{name: value})
        assert left() == 1

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

    def count_expired(self):
        raise StoreError("The server is down.")


class Seconds:
    """The time of `sweep`: it passes when a store works, and when `sweep` rests."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


class Backlog(BaseStore):
    """A store with so many expired records, of which each batch takes a second."""

    def __init__(self, records=0, error=None):
        self.records = records
        self.error = error
        self.seconds = Seconds()

    def sweep(self, *, limit=5000):
        self.seconds.now += 1
        if self.error is not None:
            raise StoreError(self.error)
        batch = min(self.records, limit)
        self.records -= batch
        return batch


class TestSeveralStores:
    """Stores do not stand in one another's way, and the time is for all of them."""

    @pytest.fixture
    def seconds(self, monkeypatch):
        seconds = Seconds()
        monkeypatch.setattr("django_idempotency.sweep.time", seconds)
        return seconds

    @pytest.fixture
    def configure(self, settings, seconds):
        def configure(**backlogs):
            backend = f"{__name__}.Backlog"
            settings.IDEMPOTENCY = {
                alias: {"BACKEND": backend, "OPTIONS": options}
                for alias, options in {"default": {}, **backlogs}.items()
            }
            for alias in settings.IDEMPOTENCY:
                store_for(alias).seconds = seconds

        return configure

    def test_a_batch_of_each_in_turn(self, configure):
        configure(one={"records": 50}, two={"records": 15})
        told = []
        swept = sweep(limit=10, progress=lambda *batch: told.append(batch))
        assert swept == {"default": 0, "one": 50, "two": 15}
        assert told[:5] == [("default", 0), ("one", 10), ("two", 10), ("one", 20), ("two", 15)]
        assert told[5:] == [("one", 30), ("one", 40), ("one", 50), ("one", 50)]

    def test_a_backlog_of_one_leaves_the_others_their_time(self, configure):
        configure(one={"records": 10**6}, two={"records": 20})
        assert sweep(limit=10, max_seconds=10) == {"default": 0, "one": 60, "two": 20}

    def test_one_that_is_down_keeps_no_other_from_being_swept(self, configure, caplog):
        caplog.set_level(logging.INFO, logger="django_idempotency")
        configure(
            one={"error": "one is down"}, two={"records": 20}, three={"error": "three is down"}
        )
        with pytest.raises(StoreError, match="one is down"):
            sweep(limit=15)
        assert store_for("two").records == 0
        assert caplog.messages == [
            "The sweep of one has failed.",
            "The sweep of three has failed.",
            "Swept default: 0 expired records deleted.",
            "Swept one: 0 expired records deleted.",
            "Swept two: 20 expired records deleted.",
            "Swept three: 0 expired records deleted.",
        ]
        assert [str(entry.exc_info[1]) for entry in caplog.records[:2]] == [
            "one is down",
            "three is down",
        ]

    def test_one_that_is_down_takes_none_of_the_others_time(self, configure):
        """It would take all of it, time and again: an attempt to connect can take minutes."""
        configure(one={"error": "one is down"}, two={"records": 20})
        with pytest.raises(StoreError):
            sweep(limit=10, max_seconds=2.5)
        assert store_for("two").records == 0

    def test_an_unknown_one_is_told_before_any_is_swept(self, configure, settings, seconds):
        configure(one={"records": 5})
        settings.IDEMPOTENCY = {**settings.IDEMPOTENCY, "bad": {"BACKEND": "nonesuch"}}
        store_for("one").seconds = seconds
        with pytest.raises(InvalidStore):
            sweep()
        assert store_for("one").records == 5

    @pytest.mark.parametrize(
        ("max_seconds", "batches", "ended"),
        [(10, 3, 9), (9, 3, 9), (8, 2, 5), (1, 1, 1), (0.5, 1, 1)],
        ids=lambda value: str(value),
    )
    def test_a_rest_that_would_pass_the_end_is_the_end(
        self, configure, seconds, max_seconds, batches, ended
    ):
        """Batches end after 1, 5 and 9 seconds."""
        configure(one={"records": 10**6})
        swept = sweep("one", limit=10, max_seconds=max_seconds, share=0.25)
        assert (swept, seconds.now) == ({"one": batches * 10}, ended)

    def test_no_rest_after_the_last_batch(self, configure, seconds):
        configure(one={"records": 20})
        sweep("one", limit=15, share=0.25)
        assert seconds.now == 1 + 3 + 1

    def test_the_command_tells_what_went_although_one_is_down(self, configure):
        configure(one={"error": "one is down"}, two={"records": 20})
        output = io.StringIO()
        with pytest.raises(CommandError, match="one is down") as caught:
            call_command("idempotency_sweep", stdout=output)
        assert caught.value.returncode == 1
        assert output.getvalue().splitlines() == [
            "default: 0 expired records deleted",
            "two: 20 expired records deleted",
        ]


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

    def test_a_store_that_expires_by_itself_is_left_out_and_says_why(self, settings):
        settings.IDEMPOTENCY = {
            "default": {},
            "native": {"BACKEND": f"{__name__}.ExpiresByItself"},
        }
        why = "native: nothing to sweep, this store deletes its expired records by itself\n"
        assert command() == f"default: 0 expired records deleted\n{why}"
        assert command("--dry-run") == f"default: 0 expired records\n{why}"
        assert command("--store", "native") == command("--store", "native", "--dry-run") == why

    def test_dry_run_counts_the_others_although_one_is_down(self, settings):
        settings.IDEMPOTENCY = {
            "down": {"BACKEND": f"{__name__}.CannotBeReached"},
            "default": {},
        }
        add(2)
        output = io.StringIO()
        with pytest.raises(CommandError, match="down: The server is down"):
            call_command("idempotency_sweep", "--dry-run", stdout=output)
        assert output.getvalue() == "default: 2 expired records\n"

    def test_a_terminal_gets_progress(self, monkeypatch):
        add(3)
        output = io.StringIO()
        output.isatty = lambda: True
        call_command("idempotency_sweep", "--limit=2", stdout=output)
        assert output.getvalue().split("\r") == [
            "",
            "default: 2 expired records deleted",
            "default: 2, other: 0 expired records deleted",
            "default: 3, other: 0 expired records deleted\n"
            "default: 3 expired records deleted\n"
            "other: 0 expired records deleted\n",
        ]


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
            (["--store", "nonesuch"], 2),
            (["--store", "nonesuch", "--dry-run"], 2),
            (["--store", ""], 2),
            (["--store", "down"], 1),
            (["--store", "down", "--dry-run"], 1),
            (["--limit", "0"], 2),
            (["--limit", "-1"], 2),
            (["--limit", "many"], 2),
            (["--max-seconds", "soon"], 2),
            (["--max-seconds", "-5"], 2),
            (["--max-seconds", "nan"], 2),
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
