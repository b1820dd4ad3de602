"""The command ``idempotency_table``: which store it is for, and what it does to a live table."""

from __future__ import annotations

import io
import sys
from uuid import uuid4

import pytest
from django.core.management import CommandError, call_command

from django_idempotency.conf import store_for
from django_idempotency.stores.dynamodb import schema as dynamodb_schema
from tests.claims import asked, won
from tests.integration.dynamodb.conftest import BACKEND
from tests.integration.dynamodb.wire import Throttle


@pytest.fixture
def name():
    return f"table-{uuid4()}"


@pytest.fixture
def configure(settings, url, name):
    def configured(**options):
        given = {"table_name": name, "endpoint_url": url, "timeout": 30, **options}
        events = {"BACKEND": BACKEND, "OPTIONS": given}
        settings.IDEMPOTENCY = {"default": {}, "events": events}
        return store_for("events")

    return configured


@pytest.fixture(autouse=True)
def poll(monkeypatch):
    monkeypatch.setattr(dynamodb_schema, "_POLL", 0.01)


def said(*arguments):
    out = io.StringIO()
    call_command("idempotency_table", *arguments, stdout=out, stderr=out)
    return out.getvalue()


# --create.


@pytest.mark.parametrize(
    "options", [{}, {"sort_key": "SK", "attributes": {"expiry": "ttl"}}, {"ttl": False}], ids=str
)
def test_creates_what_the_check_accepts_and_tells_of_each_step(configure, options, name):
    store = configure(**options)
    told = said("--create")
    assert store.check() == []
    assert f"==> creating the table {name}\n" in told
    assert ("==> turning on time to live\n" in told) is store.ttl
    assert "==> turning on continuous backups\n" in told
    assert told.endswith(f"the table {name} is ready\n")
    assert said("--check") == f"the table {name} can be used\n"
    won(store.claim(asked()))


@pytest.mark.parametrize("kind", ["dynalite"])
def test_what_a_server_does_not_have_is_told(configure, name):
    configure()
    told = said("--create")
    assert "==> this server has no time to live\n" in told
    assert told.endswith(f"the table {name} is ready\n")


@pytest.mark.parametrize(
    ("before", "now", "message"),
    [
        ({}, {"partition_key": "PK", "sort_key": "SK"}, r"idempotencyKey, not PK \+ SK"),
        ({"attributes": {"expiry": "ttl"}}, {}, "goes by 'ttl'"),
    ],
    ids=["key", "TTL"],
)
def test_another_table_is_refused(configure, before, now, message):
    configure(**before)
    said("--create")
    configure(**now)
    with pytest.raises(CommandError, match=message) as raised:
        said("--create")
    assert raised.value.returncode == 1


# Of the request's body, which may come in a chunk of its own.
@pytest.mark.parametrize("part", [b"KeySchema", b"PointInTimeRecoverySpecification"])
def test_lost_answer_stops_nothing(configure, link, link_url, part):
    store = configure(endpoint_url=link_url)
    link.cut_after(part)
    told = said("--create")
    assert link.fired.is_set()
    assert told.endswith("is ready\n")
    assert store.check() == []


@pytest.mark.parametrize(
    ("operation", "error"),
    [
        ("DescribeTable", "ResourceNotFoundException"),
        ("UpdateTimeToLive", "ResourceInUseException"),
        ("UpdateContinuousBackups", "ContinuousBackupsUnavailableException"),
        ("UpdateContinuousBackups", "TableNotFoundException"),
    ],
)
def test_what_is_not_possible_yet_is_tried_again(configure, operation, error):
    store = configure()
    throttle = Throttle(store, error, operation=operation, times=3)
    assert said("--create").endswith("is ready\n")
    assert throttle.refused == 3
    assert store.check() == []


def test_TTL_that_the_lost_call_has_turned_on_is_on(configure):
    """DynamoDB refuses the call that is sent again; moto does not."""
    store = configure()
    throttle = Throttle(store, "ValidationException", operation="UpdateTimeToLive", applied=True)
    said("--create")
    assert throttle.refused == 1
    assert store.check() == []


def test_other_errors_are_told_at_once(configure):
    throttle = Throttle(configure(), "ValidationException", operation="UpdateTimeToLive")
    with pytest.raises(CommandError, match="ValidationException"):
        said("--create")
    assert throttle.refused == 1


# --check.


def test_error_is_told_and_is_a_failure(configure):
    configure()
    out = io.StringIO()
    with pytest.raises(CommandError, match="not what the store needs") as raised:
        call_command("idempotency_table", "--check", stdout=out, stderr=out)
    assert "django_idempotency.E020" in out.getvalue()
    assert raised.value.returncode == 1


# --store.


def test_the_only_store_is_found_and_another_alias_is_refused(configure, name):
    configure()
    assert name in said()
    for alias in ("default", "nonesuch"):
        with pytest.raises(CommandError) as raised:
            said("--store", alias)
        assert raised.value.returncode == 2


@pytest.mark.parametrize(("aliases", "told"), [(["a", "b"], "a, b"), ([], "none")], ids=str)
def test_two_are_too_many_and_none_too_few(settings, aliases, told):
    alias = {"BACKEND": BACKEND, "OPTIONS": {"table_name": "t"}}
    settings.IDEMPOTENCY = {"default": {}, **dict.fromkeys(aliases, alias)}
    with pytest.raises(CommandError, match=told):
        said()


def test_without_boto3_it_says_what_to_install(settings, monkeypatch):
    monkeypatch.setitem(sys.modules, "boto3", None)
    events = {"BACKEND": BACKEND, "OPTIONS": {"table_name": "t"}}
    settings.IDEMPOTENCY = {"default": {}, "events": events}
    with pytest.raises(CommandError, match=r"pip install '\.\[dynamodb\]'") as e:
        said()
    assert e.value.returncode == 2
