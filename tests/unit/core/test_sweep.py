"""Sweeping: the function and the command delete what is expired, and nothing else."""

from __future__ import annotations

import io
import json
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
UP, NEVER = "expired records deleted", 10**6


def command(*words, output=None):
    output = output or io.StringIO()
    call_command("idempotency_sweep", *words, stdout=output)
    return output.getvalue()


def add(using="default", state=State.COMPLETED, expires=-HOUR, lease=None):
    """Add a record that expires, and whose lease ends, so long from now (None: never)."""
    now = timezone.now()
    IdempotencyRecord.objects.using(using).create(
        **{"id": uuid.uuid4(), "scope": "s", "key": "k", "state": state, "epoch": 1},
        **{"token": uuid.uuid4(), "created_at": now, "updated_at": now},
        lease_until=None if lease is None else now + lease,
        expires_at=None if expires is None else now + expires,
    )


@pytest.mark.django_db(databases=["default", "other"])
def test_I9_R71_R75_what_is_expired_and_holds_no_live_lease_goes(settings):
    settings.IDEMPOTENCY = {"default": {}, "other": {"OPTIONS": {"using": "other"}}}
    for state in State:
        lease = -HOUR if state == State.IN_PROGRESS else None
        for expires in (-HOUR, HOUR):
            add(state=state, lease=lease, expires=expires)
    add(state=State.IN_PROGRESS, lease=HOUR)
    add(state=State.IN_PROGRESS, expires=None, lease=-HOUR)
    for _ in range(3):
        add("other")
    left = IdempotencyRecord.objects.filter
    assert command("--dry-run") == "default: 4 expired records\nother: 3 expired records\n"
    assert command("--dry-run", "--store", "other") == "other: 3 expired records\n"
    assert sweep("default", limit=3) == {"default": 4}
    assert left(expires_at__lt=timezone.now()).get().lease_until > timezone.now()
    assert left().count() == 6
    assert command("--limit", "2") == f"default: 0 {UP}\nother: 3 {UP}\n"


class Seconds:
    """The time of `sweep`: it passes when a store works, and when `sweep` rests."""

    now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


class Backlog(BaseStore):
    """A store with so many expired records, of which each batch takes a second."""

    def __init__(self, records=0, error=None, counts=True, native_expiry=False):
        self.records = records
        self.error = error
        self.counts = counts
        self.native_expiry = native_expiry
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
        seconds.now = 0
        for alias in settings.IDEMPOTENCY:
            store_for(alias).seconds = seconds

    return configure


def test_batches_until_nothing_is_left(configure):
    for records, batches in ((5, [2, 4, 5]), (4, [2, 4, 4]), (0, [0])):
        configure(one={"records": records})
        told = []
        swept = sweep("one", limit=2, progress=lambda alias, count, told=told: told.append(count))
        assert (swept, told, store_for("one").records) == ({"one": records}, batches, 0)


def test_values_that_make_no_sense_are_told_before_anything_is_deleted(configure, settings):
    configure(one={"records": 5})
    wrong = [("share", 0), ("share", 1.5), ("limit", 0), ("max_seconds", -1)]
    for name, value in [*wrong, ("max_seconds", float("nan"))]:
        with pytest.raises(ValueError, match=f"{name} must be"):
            sweep("one", **{name: value})
    assert sweep("one", max_seconds=0) == {"one": 0}
    assert store_for("one").records == 5
    settings.IDEMPOTENCY = {**settings.IDEMPOTENCY, "bad": {"BACKEND": "nonesuch"}}
    for alias in (None, "othr"):
        with pytest.raises(InvalidStore):
            sweep(alias)
    assert store_for("one").records == 5


def test_a_rest_that_would_pass_the_end_is_the_end_and_none_follows_the_last_batch(
    configure, seconds
):
    """Batches end after 1, 5 and 9 seconds."""
    for max_seconds, batches, ended in [(10, 3, 9), (9, 3, 9), (8, 2, 5), (0.5, 1, 1)]:
        configure(one={"records": NEVER})
        swept = sweep("one", limit=10, max_seconds=max_seconds, share=0.25)
        assert (swept, seconds.now) == ({"one": batches * 10}, ended)
    configure(one={"records": 20})
    sweep("one", limit=15, share=0.25)
    assert seconds.now == 1 + 3 + 1


def test_several_stores_are_swept_a_batch_of_each_in_turn_and_share_the_time(configure):
    configure(one={"records": 30}, two={"records": 15})
    told = []
    swept = sweep(limit=10, progress=lambda *batch: told.append(batch))
    assert swept == {"default": 0, "one": 30, "two": 15}
    assert told[:5] == [("default", 0), ("one", 10), ("two", 10), ("one", 20), ("two", 15)]
    assert told[5:] == [("one", 30), ("one", 30)]
    configure(one={"records": NEVER}, two={"records": 20})
    assert sweep(limit=10, max_seconds=10) == {"default": 0, "one": 60, "two": 20}


def test_a_store_that_is_down_takes_none_of_the_others_time_and_is_told(configure, caplog):
    """It would take all of it, time and again: an attempt to connect can take minutes."""
    caplog.set_level(logging.INFO, logger="django_idempotency")
    configure(one={"error": "one is down"}, two={"records": 20}, three={"error": "so is three"})
    with pytest.raises(StoreError, match="one is down"):
        sweep(limit=10, max_seconds=2.5)
    assert store_for("two").records == 0
    swept = (("default", 0), ("one", 0), ("two", 20), ("three", 0))
    assert caplog.messages == [
        *(f"The sweep of {name} has failed." for name in ("one", "three")),
        *(f"Swept {name}: {count} expired records deleted." for name, count in swept),
    ]
    errors = [str(entry.exc_info[1]) for entry in caplog.records[:2]]
    assert errors == ["one is down", "so is three"]


# The command.


def test_I9_the_command_says_of_each_store_what_it_did(configure):
    """A dry run counts where the store can, and deletes nothing."""
    native = {"native_expiry": True}
    configure(one={"records": 2}, two={"records": 2, "counts": False}, native=native)
    why = "native: nothing to sweep, this store deletes its expired records by itself"
    assert command("--dry-run").splitlines() == [
        *("default: 0 expired records", "one: 2 expired records"),
        *("two: this store cannot count its expired records", why),
    ]
    assert command().splitlines() == [f"default: 0 {UP}", f"one: 2 {UP}", f"two: 2 {UP}", why]
    assert command("--store", "native") == command("--store", "native", "--dry-run") == f"{why}\n"
    for words in ((), ("--dry-run",)):
        assert json.loads(command("--store", "native", "--json", *words)) == {"native": None}


def test_the_command_tells_of_the_others_although_one_is_down(configure):
    for words, what in (((), UP), (("--dry-run",), "expired records")):
        native = {"native_expiry": True}
        configure(native=native, one={"error": "one is down"}, two={"records": 20})
        output = io.StringIO()
        with pytest.raises(CommandError, match="one is down") as caught:
            command(*words, output=output)
        assert caught.value.returncode == 1
        told = output.getvalue().splitlines()
        assert [told[0], told[2]] == [f"default: 0 {what}", f"two: 20 {what}"]
        assert told[1].startswith("native: nothing to sweep")
        configure(one={"error": "one is down"}, two={"records": 20})
        output = io.StringIO()
        with pytest.raises(CommandError, match="one is down"):
            command(*words, "--json", output=output)
        assert json.loads(output.getvalue()) == {"default": 0, "two": 20}


def test_a_terminal_gets_progress(configure):
    configure(one={"records": 3})
    output = io.StringIO()
    output.isatty = lambda: True
    assert command("--limit=2", output=output).split("\r") == [
        "",
        f"default: 0 {UP}",
        f"default: 0, one: 2 {UP}",
        f"default: 0, one: 3 {UP}\ndefault: 0 {UP}\none: 3 {UP}\n",
    ]


def test_mistakes_are_told_and_the_exit_code_tells_them_from_a_store_that_is_down(
    configure, settings, monkeypatch
):
    monkeypatch.setattr("django.core.management.base.connections.close_all", lambda: None)
    configure(down={"error": "down"}, other={})
    told = ("--store default --dry-run", "--store default --limit 1 --max-seconds 1.5")
    failed = ("--store down", "--store down --dry-run")
    wrong = ("--store nonesuch", "--store nonesuch --dry-run", "--store=", "--nonesuch")
    wrong += ("--limit 0", "--limit many", "--max-seconds soon", "--max-seconds nan")
    for code, lines in enumerate((told, failed, wrong)):
        for line in lines:
            process = Command(stdout=io.StringIO(), stderr=io.StringIO())
            with pytest.raises(SystemExit) if code else nullcontext() as raised:
                process.run_from_argv(["manage.py", "idempotency_sweep", *line.split()])
            assert code == (raised.value.code if raised else 0), line
    with pytest.raises(CommandError, match="Did you mean 'other'"):
        command("--store", "othr")
    settings.IDEMPOTENCY = {"default": {"LEESE": 5}}
    with pytest.raises(CommandError, match="LEASE") as raised:
        command()
    assert raised.value.returncode == 2


@pytest.mark.django_db
def test_what_is_wrong_elsewhere_stops_no_sweep(settings, monkeypatch):
    monkeypatch.setattr("django.core.management.base.connections.close_all", lambda: None)
    settings.IDEMPOTENCY = {"default": {"HTTP": {"SCOPE": "nonesuch.scope"}}}
    with pytest.raises(SystemCheckError, match=r"E005"):
        call_command("check")
    add()

    output, errors = io.StringIO(), io.StringIO()
    process = Command(stdout=output, stderr=errors)
    process.run_from_argv(["manage.py", "idempotency_sweep"])

    assert output.getvalue() == "default: 1 expired records deleted\n"
    assert errors.getvalue() == ""
