"""Sweeping: the function and the command delete what is expired, and nothing else."""

from __future__ import annotations

import io
import itertools
import logging
import uuid
from contextlib import nullcontext
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
from django_idempotency.sweep import sweep

HOUR = timedelta(hours=1)
State = IdempotencyRecord.State
numbers = itertools.count(1)


def command(*words, **options):
    output = io.StringIO()
    call_command("idempotency_sweep", *words, stdout=output, **options)
    return output.getvalue()


def add(number=1, *, using="default", state=State.COMPLETED, expires=-HOUR, lease=None):
    """Add records that expire, and whose leases end, so long from now (None: never)."""
    now = timezone.now()
    for _ in range(number):
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


@pytest.mark.django_db(databases=["default", "other"])
class TestWhatGoes:
    @pytest.fixture(autouse=True)
    def aliases(self, settings):
        settings.IDEMPOTENCY = {"default": {}, "other": {"OPTIONS": {"using": "other"}}}

    def test_I9_R71_R75_what_is_expired_and_holds_no_live_lease(self):
        for state in State:
            lease = -HOUR if state == State.IN_PROGRESS else None
            add(state=state, lease=lease)
            add(state=state, lease=lease, expires=HOUR)
        add(state=State.IN_PROGRESS, lease=HOUR)
        add(state=State.IN_PROGRESS, expires=None, lease=-HOUR)
        add(3, using="other")
        left = IdempotencyRecord.objects.filter
        assert command("--dry-run") == "default: 4 expired records\nother: 3 expired records\n"
        assert command("--dry-run", "--store", "other") == "other: 3 expired records\n"
        assert sweep("default", limit=3) == {"default": 4}
        assert left(expires_at__lt=timezone.now()).get().lease_until > timezone.now()
        assert left().count() == 6
        assert command("--limit", "2") == (
            "default: 0 expired records deleted\nother: 3 expired records deleted\n"
        )


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

    def __init__(self, records=0, error=None, counts=True):
        self.records = records
        self.error = error
        self.counts = counts
        self.seconds = Seconds()

    def sweep(self, *, limit=5000):
        self.seconds.now += 1
        if self.error is not None:
            raise StoreError(self.error)
        batch = min(self.records, limit)
        self.records -= batch
        return batch

    def count_expired(self):
        if self.error is not None:
            raise StoreError(self.error)
        return self.records if self.counts else super().count_expired()


class ExpiresByItself(Backlog):
    """A store that needs no sweep."""

    native_expiry = True


@pytest.fixture
def seconds(monkeypatch):
    seconds = Seconds()
    monkeypatch.setattr("django_idempotency.sweep.time", seconds)
    return seconds


@pytest.fixture
def configure(settings, seconds):
    def configure(**backlogs):
        settings.IDEMPOTENCY = {
            alias: {"BACKEND": f"{__name__}.Backlog", "OPTIONS": options}
            for alias, options in {"default": {}, **backlogs}.items()
        }
        for alias in settings.IDEMPOTENCY:
            store_for(alias).seconds = seconds

    return configure


class TestBatches:
    def test_until_nothing_is_left(self, configure):
        for records, batches in ((5, [2, 4, 5]), (4, [2, 4, 4]), (0, [0])):
            configure(one={"records": records})
            told = []
            swept = sweep(
                "one", limit=2, progress=lambda alias, count, told=told: told.append(count)
            )
            assert (swept, told, store_for("one").records) == ({"one": records}, batches, 0)

    def test_values_that_make_no_sense_are_told_before_anything_is_deleted(self, configure):
        configure(one={"records": 5})
        wrong = [("share", 0), ("share", -1), ("share", 1.5), ("limit", 0), ("limit", -1)]
        for name, value in [*wrong, ("max_seconds", -1), ("max_seconds", float("nan"))]:
            with pytest.raises(ValueError, match=f"{name} must be"):
                sweep("one", **{name: value})
        assert sweep("one", max_seconds=0) == {"one": 0}
        assert store_for("one").records == 5

    def test_a_rest_that_would_pass_the_end_is_the_end(self, configure, seconds):
        """Batches end after 1, 5 and 9 seconds."""
        for max_seconds, batches, ended in [
            (10, 3, 9),
            (9, 3, 9),
            (8, 2, 5),
            (1, 1, 1),
            (0.5, 1, 1),
        ]:
            configure(one={"records": 10**6})
            seconds.now = 0
            swept = sweep("one", limit=10, max_seconds=max_seconds, share=0.25)
            assert (swept, seconds.now) == ({"one": batches * 10}, ended)

    def test_no_rest_after_the_last_batch(self, configure, seconds):
        configure(one={"records": 20})
        sweep("one", limit=15, share=0.25)
        assert seconds.now == 1 + 3 + 1


class TestSeveralStores:
    """Stores do not stand in one another's way, and the time is for all of them."""

    def test_a_batch_of_each_in_turn(self, configure):
        configure(one={"records": 50}, two={"records": 15})
        told = []
        swept = sweep(limit=10, progress=lambda *batch: told.append(batch))
        assert swept == {"default": 0, "one": 50, "two": 15}
        assert told[:5] == [("default", 0), ("one", 10), ("two", 10), ("one", 20), ("two", 15)]
        assert told[5:] == [("one", 30), ("one", 40), ("one", 50), ("one", 50)]
        configure(one={"records": 10**6}, two={"records": 20})
        assert sweep(limit=10, max_seconds=10) == {"default": 0, "one": 60, "two": 20}

    def test_one_that_is_down_keeps_no_other_from_being_swept(self, configure, caplog):
        caplog.set_level(logging.INFO, logger="django_idempotency")
        configure(one={"error": "one is down"}, two={"records": 20}, three={"error": "so is three"})
        with pytest.raises(StoreError, match="one is down"):
            sweep(limit=15)
        assert store_for("two").records == 0
        assert caplog.messages == [
            "The sweep of one has failed.",
            "The sweep of three has failed.",
            *(
                f"Swept {name}: {count} expired records deleted."
                for name, count in (("default", 0), ("one", 0), ("two", 20), ("three", 0))
            ),
        ]
        errors = [str(entry.exc_info[1]) for entry in caplog.records[:2]]
        assert errors == ["one is down", "so is three"]

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


class TestCommand:
    def test_tells_of_the_others_although_one_is_down(self, configure):
        for words, what in (((), "expired records deleted"), (("--dry-run",), "expired records")):
            configure(one={"error": "one is down"}, two={"records": 20})
            output = io.StringIO()
            with pytest.raises(CommandError, match="one is down") as caught:
                call_command("idempotency_sweep", *words, stdout=output)
            assert caught.value.returncode == 1
            assert output.getvalue() == f"default: 0 {what}\ntwo: 20 {what}\n"

    def test_I9_dry_run_counts_where_the_store_can_and_deletes_nothing(self, configure):
        configure(one={"records": 2}, two={"records": 2, "counts": False})
        assert command("--dry-run").splitlines() == [
            "default: 0 expired records",
            "one: 2 expired records",
            "two: this store cannot count its expired records",
        ]
        assert [store_for(name).records for name in ("one", "two")] == [2, 2]

    def test_a_store_that_expires_by_itself_is_left_out_and_says_why(self, settings):
        settings.IDEMPOTENCY = {
            "default": {"BACKEND": f"{__name__}.Backlog"},
            "native": {"BACKEND": f"{__name__}.ExpiresByItself"},
        }
        why = "native: nothing to sweep, this store deletes its expired records by itself\n"
        assert command() == f"default: 0 expired records deleted\n{why}"
        assert command("--dry-run") == f"default: 0 expired records\n{why}"
        assert command("--store", "native") == command("--store", "native", "--dry-run") == why

    def test_a_terminal_gets_progress(self, configure):
        configure(one={"records": 3})
        output = io.StringIO()
        output.isatty = lambda: True
        call_command("idempotency_sweep", "--limit=2", stdout=output)
        assert output.getvalue().split("\r") == [
            "",
            "default: 0 expired records deleted",
            "default: 0, one: 2 expired records deleted",
            "default: 0, one: 3 expired records deleted\n"
            "default: 0 expired records deleted\n"
            "one: 3 expired records deleted\n",
        ]

    def test_exit_code(self, configure, monkeypatch):
        monkeypatch.setattr("django.core.management.base.connections.close_all", lambda: None)
        told = ("", "--dry-run", "--store default --limit 1 --max-seconds 1.5")
        failed = ("--store down", "--store down --dry-run")
        wrong = [f"--store {it}" for it in ("nonesuch", "nonesuch --dry-run", "''")]
        wrong += [f"--limit {it}" for it in ("0", "-1", "many")]
        wrong += [f"--max-seconds {it}" for it in ("soon", "-5", "nan")]
        for code, lines in enumerate((told, failed, (*wrong, "--nonesuch"))):
            for line in lines:
                configure(**({"down": {"error": "down"}} if "down" in line else {}))
                process = Command(stdout=io.StringIO(), stderr=io.StringIO())
                words = [word.strip("'") for word in line.split()]
                with pytest.raises(SystemExit) if code else nullcontext() as raised:
                    process.run_from_argv(["manage.py", "idempotency_sweep", *words])
                assert code == (raised.value.code if raised else 0), line

    def test_mistakes_are_told(self, configure, settings):
        configure(other={})
        with pytest.raises(CommandError, match="Did you mean 'other'"):
            command("--store", "othr")
        with pytest.raises(InvalidStore):
            sweep("othr")
        settings.IDEMPOTENCY = {"default": {"LEESE": 5}}
        with pytest.raises((CommandError, SystemCheckError), match="LEASE"):
            command()
