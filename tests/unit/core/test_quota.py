"""The quota of a scope: new keys in an hour, counted in a cache."""

from __future__ import annotations

from contextlib import suppress

import pytest
from django.core.cache import cache

from django_idempotency import InProgress, QuotaExceeded, StoreError, run
from django_idempotency.engine import quota
from django_idempotency.signals import conflicted
from tests.unit.core.conftest import begin, callers, fail, kept, never

NOW = 1_000_000 * 3600 + 1800.5


class Hour:
    """The time of the quota."""

    def __init__(self, now):
        self.now = now

    def time(self):
        return self.now


@pytest.fixture(autouse=True)
def hour(settings, monkeypatch):
    """The middle of an hour, and an empty cache."""
    settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
    cache.clear()
    hour = Hour(NOW)
    monkeypatch.setattr(quota, "time", hour)
    yield hour
    cache.clear()


def down(record_id):
    raise StoreError


@callers([("run", "single"), ("run", "joined"), ("arun", "memory"), ("aattempt", "joined")])
def test_new_keys_above_it_are_refused_until_the_hour_ends_and_old_ones_are_answered(
    call, hour, work
):
    runs = work()

    def ask(key, func=runs, scope="s", limit=2):
        return call(func, key=key, scope=scope, scope_quota=limit)

    with pytest.raises(ValueError, match="boom"):
        ask("fails", fail)
    ask("first")
    for _ in range(2):
        with pytest.raises(QuotaExceeded) as refused:
            ask("new")
        assert refused.value.retry_after == 1800
    assert kept("new") is None
    assert ask("first", never).replayed
    assert not ask("fails").replayed  # its record is there: the retry is let through
    assert ask("new", scope="another").result == "done"
    assert ask("new in a view with more", limit=4).result == "done"
    hour.now += 1800
    assert ask("new").result == "done"


def test_a_duplicate_in_progress_and_an_expired_record_are_what_they_are(memory, clock):
    with begin(scope_quota=1) as attempt:
        with pytest.raises(InProgress):
            run(never, key="k", scope="s", scope_quota=1)
        attempt.complete()
    clock.advance(25 * 3600)
    with pytest.raises(QuotaExceeded):
        run(never, key="k", scope="s", scope_quota=1)


def test_one_signal_tells_of_a_refusal(memory):
    told = []

    def note(signal, outcome, **facts):
        told.append(outcome)

    conflicted.connect(note)
    try:
        for key in "ab":
            with suppress(QuotaExceeded):
                run(lambda lease: 1, key=key, scope="s", scope_quota=1)
    finally:
        conflicted.disconnect(note)
    assert told == ["quota exceeded"]


@pytest.mark.parametrize("scope", ["\ud800", "\x00", "s" * 5000])
def test_a_scope_of_any_characters_has_a_count(memory, scope):
    run(lambda lease: 1, key="a", scope=scope, scope_quota=1)
    with pytest.raises(QuotaExceeded):
        run(never, key="b", scope=scope, scope_quota=1)


def test_replays_are_not_counted_and_the_cache_does_not_hold_the_scope(memory):
    for key in ("a", "a", "a", "b"):
        run(lambda lease: 1, key=key, scope="user:auth.user:17", scope_quota=2)
    [(name, count)] = [(key, cache.get(key.removeprefix(":1:"))) for key in cache._cache]
    assert count == 2
    assert "user" not in name


@pytest.mark.django_db
def test_a_cache_that_is_down_holds_up_no_work_and_is_told_of(settings, caplog):
    url = "redis://:hunter2@127.0.0.1:1"
    down = {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": url}
    settings.CACHES = {**settings.CACHES, "down": down}
    settings.IDEMPOTENCY = {"default": {"SCOPE_QUOTA": 1, "SCOPE_QUOTA_CACHE": "down"}}
    for key in "ab":
        assert run(lambda lease: 1, key=key, scope="s").result == 1
    assert "the cache 'down' of scope_quota does not answer (ConnectionError)" in caplog.text
    assert "hunter2" not in caplog.text


def test_R61_a_store_that_is_down_above_the_quota_is_a_failed_claim(memory, monkeypatch):
    """So that fail_open opens."""
    run(lambda lease: 1, key="a", scope="s", scope_quota=1)
    monkeypatch.setattr(memory, "get", down)
    with pytest.raises(StoreError) as raised:
        run(never, key="b", scope="s", scope_quota=1)
    assert raised.value.at_claim
