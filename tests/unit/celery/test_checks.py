"""System checks of guarded tasks: serializers, times, and the sweep in beat's schedule."""

from __future__ import annotations

import sys

import pytest
from celery import _state
from celery.beat import ScheduleEntry
from django.core import checks
from django.test import override_settings

from django_idempotency.codecs import JSONCodec
from django_idempotency.contrib.celery import idempotent_task

SWEEP = "django_idempotency.tasks.sweep_expired"
REDIS = "django_idempotency.stores.redis.RedisStore"
OTHER = {"task": "shop.tasks.report", "schedule": 60}


@pytest.fixture
def ids(local, settings):
    """The ids of what the checks say."""
    settings.IDEMPOTENCY = {
        "default": {},
        "single": {"TRANSACTION": "single"},
        "redis": {"BACKEND": REDIS, "OPTIONS": {"url": "redis://127.0.0.1:1/0"}},
    }

    def ids():
        found = checks.run_checks(tags=["idempotency"])
        for message in found:
            assert message.hint
            assert isinstance(message, checks.Error if message.id[-4] == "E" else checks.Warning)
        return [str(message.id).removeprefix("django_idempotency.") for message in found]

    return ids


def guard(app, *, guard=None, **options):
    @app.task(name="work", **{"acks_late": True, "reject_on_worker_lost": True, **options})
    @idempotent_task(**(guard or {}))
    def work(): ...


def test_without_an_app_there_is_nothing_to_check(ids, monkeypatch):
    monkeypatch.setattr(_state._tls, "current_app", None)
    monkeypatch.setattr(_state, "default_app", None)

    assert ids() == []
    assert _state.default_app is None


SENTINEL = {"broker_url": "sentinel://", "broker_transport_options": {"visibility_timeout": 60}}
OF_THE_APP = {"task_acks_late": True, "task_reject_on_worker_lost": True}
NOT_OF_THE_TASK = {"acks_late": None, "reject_on_worker_lost": None}


@pytest.mark.parametrize(
    ("number", "conf", "options", "policy"),
    [
        ("", {}, {}, {}),
        ("E030", {}, {"serializer": "pickle"}, {}),
        ("E031", {}, {}, {"store": "nowhere"}),
        ("E031", {}, {}, {"on_stale": "refuse", "store": "single"}),
        ("E031", {}, {}, {"transaction": "joined", "store": "redis"}),
        ("W030", {}, {"time_limit": 7200}, {"transaction": "separate"}),
        ("W030", {"task_time_limit": 7200}, {}, {}),
        ("W031", {}, {"soft_time_limit": 120}, {"renew": False}),
        ("W032", {"broker_url": "redis://"}, {}, {"retention": 3600}),
        ("W032", {"broker_url": ["sqs://", "sqs://b"]}, {}, {"retention": 1800}),
        ("W033", SENTINEL, {}, {}),
        ("W033", {"broker_url": "redis://"}, {"time_limit": 3540}, {"transaction": "separate"}),
        ("", {"broker_url": "redis://"}, {"time_limit": 3539}, {"transaction": "separate"}),
        ("W033", {"broker_url": "sqs://", "task_soft_time_limit": 1740}, {}, {}),
        ("W035", {}, {"soft_time_limit": 601}, {}),
        ("W036", {}, {"acks_late": False}, {}),
        ("", OF_THE_APP, NOT_OF_THE_TASK, {}),
        ("", {}, {"serializer": "pickle"}, {"codec": "json"}),
        pytest.param("", {}, {"serializer": "pickle"}, {"codec": JSONCodec()}, id="json codec"),
        ("", {}, {"time_limit": 7200}, {"transaction": "separate", "max_duration": 7200}),
        ("", {"task_time_limit": 1800}, {}, {}),
        ("", {}, {"time_limit": 120}, {"renew": False, "transaction": "single"}),
        ("", {"broker_url": "amqp://"}, {}, {"retention": 60, "lease": 60}),
        ("", {"broker_url": "redis://"}, {}, {"lease": 3600, "transaction": "single"}),
    ],
    ids=lambda value: str(value) if value else "",
)
def test_message(app, ids, number, conf, options, policy):
    app.conf.update(conf)
    guard(app, guard=policy, **options)

    assert ids() == number.split()


def test_tasks_of_modules_that_the_app_names_are_checked(app, ids, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    for setting in ("include", "imports"):
        (tmp_path / f"named_by_{setting}.py").write_text(
            "from celery import current_app\n"
            "from django_idempotency.contrib.celery.task import idempotent_task\n"
            "@current_app.task(serializer='pickle', acks_late=True, reject_on_worker_lost=True)\n"
            "@idempotent_task\n"
            "def work(): ...\n"
        )
        app.conf[setting] = [f"named_by_{setting}"]

    assert ids() == ["E030"] * 2


@pytest.mark.parametrize(
    ("setting", "number"),
    [({"default": {"LEESE": 5}}, "E002"), ({"fast": {}}, "E001")],
    ids=["an alias", "all of it"],
)
def test_a_setting_that_is_wrong_is_told_once(app, ids, setting, number):
    app.conf.beat_schedule = {"other": OTHER}
    guard(app)

    with override_settings(IDEMPOTENCY=setting):
        assert ids() == [number]


def sweep(*args, **kwargs):
    return {"task": SWEEP, "schedule": 60, "args": args, "kwargs": kwargs}


#: Entries of the schedule, the scheduler, whether the store sweeps itself, and what is said.
SCHEDULES = {
    "none: perhaps cron": ([], {}, ""),
    "another task alone": ([OTHER], {}, "W034"),
    "all aliases": ([sweep()], {}, ""),
    "one of two, by name": ([sweep(store="default")], {}, "W034"),
    "both, by position": ([sweep("default"), sweep("other")], {}, ""),
    "an object": ([ScheduleEntry("x", SWEEP, schedule=60)], {}, ""),
    "elsewhere": ([OTHER], {"scheduler": "django_celery_beat.schedulers:DatabaseScheduler"}, ""),
    "a store that sweeps itself": ([OTHER], {"store": REDIS}, ""),
}


def test_W034(app, ids):
    for name, (entries, options, expected) in SCHEDULES.items():
        app.conf.beat_schedule = {str(number): entry for number, entry in enumerate(entries)}
        app.conf.beat_scheduler = options.get("scheduler", "celery.beat:PersistentScheduler")
        redis = {"BACKEND": REDIS, "OPTIONS": {"url": "redis://127.0.0.1:1/0"}}
        aliases = {"default": redis} if "store" in options else {"default": {}, "other": {}}

        with override_settings(IDEMPOTENCY=aliases):
            assert ids() == expected.split(), name


def test_tasks_are_checked_from_when_celery_is_imported(app, ids, monkeypatch):
    """A script, or pytest-django, sets Django up before it imports the project's app."""
    guard(app, serializer="pickle")

    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, "celery")
        assert ids() == []
    assert ids() == ["E030"]
