"""The IDEMPOTENCY setting: aliases, their stores and policies, and what is said of mistakes."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from django_idempotency import InvalidStore
from django_idempotency.conf import engine_for, http_policy_for, policy_for, store_for, stores
from django_idempotency.http.plans import Declared
from django_idempotency.policy import HTTPPolicy, Policy
from django_idempotency.stores.base import BaseStore
from django_idempotency.stores.database import DatabaseStore
from django_idempotency.stores.memory import MemoryStore
from tests.unit.core.conftest import MEMORY


def configured(**aliases):
    return override_settings(IDEMPOTENCY=aliases)


def message(alias="default"):
    with pytest.raises(InvalidStore) as caught:
        stores[alias]
    return str(caught.value)


def test_without_configuration_there_is_the_default_database_and_policy(settings):
    for setting in ("absent", None, {}):
        settings.IDEMPOTENCY = setting
        if setting == "absent":
            del settings.IDEMPOTENCY
        assert type(store_for()) is DatabaseStore
        assert store_for().using == "default"
        assert (list(stores), len(stores)) == (["default"], 1)
        assert policy_for("default") == Policy()
        assert http_policy_for("default") == HTTPPolicy()
        assert engine_for().store is store_for()


def test_each_alias_has_its_store_and_policy_until_the_setting_changes():
    def clock():
        raise AssertionError

    before = store_for()
    with configured(
        default={"LEASE": 7, "HTTP": {"REQUIRED": True}},
        other={"OPTIONS": {"using": "other"}, "RETENTION": timedelta(days=2)},
        memory={"BACKEND": MEMORY, "OPTIONS": {"clock": clock}},
    ):
        assert dict(stores) == {name: store_for(name) for name in ("default", "other", "memory")}
        assert type(stores["memory"]) is MemoryStore
        with pytest.raises(AssertionError):  # options are the constructor's arguments
            stores["memory"].sweep()
        assert stores["other"].using == "other"
        assert policy_for("default").lease == timedelta(seconds=7)
        assert policy_for("other") == Policy(retention=timedelta(days=2))
        assert http_policy_for("default") == HTTPPolicy(required=True)
        assert http_policy_for("other") == HTTPPolicy()
        during = store_for()
        with override_settings(DEBUG=True):
            assert store_for() is during
    assert store_for() not in (before, during)
    assert policy_for("default").lease == timedelta(seconds=60)


def test_a_declaration_makes_its_plan_once_for_a_setting():
    declared = Declared(overrides={"lease": 5, "keep": "stripe"})

    plan = declared.plan()

    assert declared.plan() is plan
    assert (plan.policy, plan.http_policy) == (Policy(lease=5), HTTPPolicy(keep="stripe"))
    with override_settings(IDEMPOTENCY={"default": {"RETENTION": 60, "HTTP": {"KEEP": "success"}}}):
        assert declared.plan().policy == Policy(lease=5, retention=60)
        assert declared.plan().http_policy.keep == "stripe"
    assert declared.plan().policy == Policy(lease=5)


def test_every_field_of_the_policy_has_its_name_in_capitals():
    for name, value, kept in (
        ("LEASE", 90, timedelta(seconds=90)),
        ("RETENTION", timedelta(1), timedelta(1)),
        ("RENEW", False, False),
        ("MAX_DURATION", 1.5, timedelta(seconds=1.5)),
        ("TRANSACTION", "single", "single"),
        ("ON_STALE", "refuse", "refuse"),
        ("MAX_RESULT_BYTES", 5, 5),
        ("FINGERPRINT_SECRETS", ["a", "b"], ("a", "b")),
    ):
        with configured(default={name: value}):
            assert getattr(policy_for("default"), name.lower()) == kept


def test_no_default_or_a_setting_of_another_type(settings):
    assert issubclass(InvalidStore, ImproperlyConfigured)
    for description in ({}, {"BACKEND": MEMORY}, {"LEESE": 1}):
        with configured(fast=description), pytest.raises(InvalidStore, match="alias 'default'"):
            list(stores)
    for value in ("memory", ["default"], 5):
        settings.IDEMPOTENCY = value
        assert "must be a dict of aliases" in message()


def test_unknown_name_with_a_suggestion():
    with configured(default={}, payments={}):
        assert "no alias 'payment'. Did you mean 'payments'?" in message("payment")
    names = {"LEESE": "LEASE", "lease": "LEASE", "BACKENDS": "BACKEND", "OPTION": "OPTIONS"}
    for name, nearest in {**names, "Http": "HTTP", "RETENTION_": "RETENTION"}.items():
        with configured(default={name: 1}):
            assert f"has no {name!r}. Did you mean '{nearest}'?" in message()
    for name in ("REQUIERD", "required"):
        with configured(default={"HTTP": {name: 1}}):
            said = f"IDEMPOTENCY['default']['HTTP'] has no {name!r}. Did you mean 'REQUIRED'?"
            assert said in message()
    with configured(default={"OPTIONS": {"usng": "default"}}):
        said = "IDEMPOTENCY['default']['OPTIONS'] has no 'usng'. Did you mean 'using'?"
        assert message() == said
    with configured(default={"ZZZ": 1}):
        assert message() == "IDEMPOTENCY['default'] has no 'ZZZ'."


def test_options_of_a_store_that_takes_any_go_to_it():
    options = {"url": "redis://127.0.0.1:6379/0", "client_name": "shop"}
    redis = "django_idempotency.stores.redis.RedisStore"
    with configured(default={"BACKEND": redis, "OPTIONS": options}):
        stores["default"]


BACKENDS = ("nonesuch.Store", "Store", f"{MEMORY}s", "builtins.dict", "os.path", MemoryStore, None)
MISTAKES = [
    *({"BACKEND": backend} for backend in BACKENDS),
    *({"OPTIONS": options} for options in ({"usign": "default"}, "default", None, [1])),
    {"BACKEND": MEMORY, "OPTIONS": {"using": "default"}},
    *({"BACKEND": MEMORY, "TRANSACTION": mode} for mode in ("joined", "single")),
    *({"HTTP": http} for http in (None, "REQUIRED", {"KEEP": "all"}, {"METHODS": ["GET"]})),
    {"HTTP": {"REPLAY_HEADERS": None}},
    *({"LEASE": lease} for lease in (0, float("inf"), "60")),
    *({"TRANSACTION": "join"}, {"ON_STALE": "refuse", "TRANSACTION": "single"}),
    *({"FINGERPRINT_SECRETS": None}, {5: 1}, "memory", None),
]


def test_mistake_says_where_it_is_and_leaves_other_aliases_alone():
    for description in MISTAKES:
        with configured(default=description, good={}):
            assert "IDEMPOTENCY['default']" in message()
            assert policy_for("good") == Policy()


class SlowStore(BaseStore):
    """A store whose construction takes long enough for others to ask meanwhile."""

    built = []

    def __init__(self):
        self.built.append(self)
        threading.Event().wait(0.02)


def test_a_store_is_built_once_for_all_threads_and_tasks(run_in_threads, in_loop):
    async def main():
        return store_for()

    with configured(default={"BACKEND": f"{__name__}.SlowStore"}):
        found = [*run_in_threads(8, lambda index: store_for()), in_loop(main)]
    [built] = SlowStore.built
    assert {id(store) for store in found} == {id(built)}
    SlowStore.built.clear()
