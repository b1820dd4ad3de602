"""The IDEMPOTENCY setting: aliases, their stores and policies, and what is said of mistakes."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from django_idempotency import InvalidStore
from django_idempotency.conf import (
    engine_for,
    http_policy_for,
    policy_for,
    store_for,
    stores,
)
from django_idempotency.policy import HTTPPolicy, Policy
from django_idempotency.stores.base import BaseStore
from django_idempotency.stores.database import DatabaseStore
from django_idempotency.stores.memory import MemoryStore

MEMORY = "django_idempotency.stores.memory.MemoryStore"


def configured(**aliases):
    return override_settings(IDEMPOTENCY=aliases)


class TestZeroConfiguration:
    @pytest.fixture(autouse=True, params=["absent", "None", "empty"])
    def setting(self, request, settings):
        if request.param == "absent":
            del settings.IDEMPOTENCY
        else:
            settings.IDEMPOTENCY = None if request.param == "None" else {}

    def test_the_default_is_the_default_database(self):
        assert type(store_for()) is DatabaseStore
        assert store_for().using == "default"
        assert list(stores) == ["default"]
        assert len(stores) == 1

    def test_the_policy_is_the_default_of_each_field(self):
        assert policy_for("default") == Policy()
        assert http_policy_for("default") == HTTPPolicy()


class TestAliases:
    def test_each_has_its_store_and_policy(self):
        with configured(
            default={"LEASE": 7, "HTTP": {"REQUIRED": True}},
            other={"OPTIONS": {"using": "other"}, "RETENTION": timedelta(days=2)},
            memory={"BACKEND": MEMORY},
        ):
            assert set(stores) == {"default", "other", "memory"}
            assert type(stores["memory"]) is MemoryStore
            assert stores["other"].using == "other"
            assert policy_for("default").lease == timedelta(seconds=7)
            assert policy_for("other") == Policy(retention=timedelta(days=2))
            assert http_policy_for("default") == HTTPPolicy(required=True)
            assert http_policy_for("other") == HTTPPolicy()

    def test_options_are_the_constructors_arguments(self):
        def clock():
            raise AssertionError

        with (
            configured(default={"BACKEND": MEMORY, "OPTIONS": {"clock": clock}}),
            pytest.raises(AssertionError),
        ):
            store_for().sweep()

    def test_the_engine_is_on_the_store(self):
        assert engine_for().store is store_for()

    def test_every_field_of_the_policy_has_its_name_in_capitals(self):
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


class TestMistakes:
    def message(self, alias="default"):
        with pytest.raises(InvalidStore) as caught:
            stores[alias]
        return str(caught.value)

    def test_no_default(self):
        for description in ({}, {"BACKEND": MEMORY}, {"LEESE": 1}):
            with configured(fast=description), pytest.raises(InvalidStore, match="alias 'default'"):
                list(stores)

    def test_unknown_alias_with_a_suggestion(self):
        with configured(default={}, payments={}):
            assert "no alias 'payment'. Did you mean 'payments'?" in self.message("payment")

    def test_unknown_name_with_a_suggestion(self):
        names = {"LEESE": "LEASE", "lease": "LEASE", "BACKENDS": "BACKEND", "OPTION": "OPTIONS"}
        for name, nearest in {**names, "Http": "HTTP", "RETENTION_": "RETENTION"}.items():
            with configured(default={name: 1}):
                assert f"has no {name!r}. Did you mean '{nearest}'?" in self.message()
        for name, nearest in {"REQUIERD": "REQUIRED", "required": "REQUIRED"}.items():
            with configured(default={"HTTP": {name: 1}}):
                assert f"Did you mean '{nearest}'?" in self.message()
                assert "IDEMPOTENCY['default']['HTTP']" in self.message()

    def test_unknown_option_with_a_suggestion(self):
        with configured(default={"OPTIONS": {"usng": "default"}}):
            assert self.message() == (
                "IDEMPOTENCY['default']['OPTIONS'] has no 'usng'. Did you mean 'using'?"
            )

    def test_options_of_a_store_that_takes_any_go_to_it(self):
        options = {"url": "redis://127.0.0.1:6379/0", "client_name": "shop"}
        redis = "django_idempotency.stores.redis.RedisStore"
        with configured(default={"BACKEND": redis, "OPTIONS": options}):
            stores["default"]

    def test_unknown_name_far_from_all(self):
        with configured(default={"ZZZ": 1}):
            assert self.message() == "IDEMPOTENCY['default'] has no 'ZZZ'."

    def test_says_where_it_is(self):
        stores = ("nonesuch.Store", "Store", f"{MEMORY}s", "builtins.dict", "os.path", MemoryStore)
        descriptions = [
            *({"BACKEND": backend} for backend in (*stores, None)),
            *({"OPTIONS": options} for options in ({"usign": "default"}, "default", None, [1])),
            {"BACKEND": MEMORY, "OPTIONS": {"using": "default"}},
            *({"BACKEND": MEMORY, "TRANSACTION": mode} for mode in ("joined", "single")),
            *({"HTTP": http} for http in (None, "REQUIRED", {"KEEP": "all"}, {"METHODS": ["GET"]})),
            {"HTTP": {"REPLAY_HEADERS": None}},
            *({"LEASE": lease} for lease in (0, float("inf"), "60")),
            {"TRANSACTION": "join"},
            {"ON_STALE": "refuse", "TRANSACTION": "single"},
            {"FINGERPRINT_SECRETS": None},
            *({5: 1}, "memory", None),
        ]
        for description in descriptions:
            with configured(default=description):
                assert "IDEMPOTENCY['default']" in self.message()

    def test_setting_of_another_type(self, settings):
        for value in ("memory", ["default"], 5):
            settings.IDEMPOTENCY = value
            assert "must be a dict of aliases" in self.message()

    def test_is_an_ImproperlyConfigured(self):
        assert issubclass(InvalidStore, ImproperlyConfigured)

    def test_one_bad_alias_leaves_the_others_alone(self):
        with configured(default={}, bad={"LEESE": 1}):
            assert policy_for("default") == Policy()


class TestReset:
    def test_override_settings_counts_at_once_and_is_undone(self):
        before = store_for()
        with configured(default={"BACKEND": MEMORY, "LEASE": 7}):
            assert type(store_for()) is MemoryStore
            assert policy_for("default").lease == timedelta(seconds=7)
        assert type(store_for()) is type(before)
        assert policy_for("default").lease == timedelta(seconds=60)

    def test_each_override_has_a_store_of_its_own(self):
        found = []
        for _ in range(2):
            with configured(default={"BACKEND": MEMORY}):
                found.append(store_for())
        assert found[0] is not found[1]

    def test_another_setting_changes_nothing(self):
        before = store_for()
        with override_settings(DEBUG=True):
            assert store_for() is before


SLOW_BUILDS = []


class SlowStore(BaseStore):
    """A store whose construction takes long enough for others to ask meanwhile."""

    def __init__(self):
        SLOW_BUILDS.append(self)
        threading.Event().wait(0.05)


class TestProcessGlobal:
    def test_one_object_for_all_threads(self, run_in_threads):
        with configured(default={"BACKEND": MEMORY}):
            found = run_in_threads(8, lambda index: store_for())
        assert len({id(store) for store in found}) == 1

    def test_built_once_though_many_threads_ask_at_once(self, run_in_threads):
        SLOW_BUILDS.clear()
        with configured(default={"BACKEND": f"{__name__}.SlowStore"}):
            found = run_in_threads(8, lambda index: store_for())
        assert len(SLOW_BUILDS) == 1
        assert {id(store) for store in found} == {id(SLOW_BUILDS[0])}

    def test_one_object_for_all_tasks(self, in_loop):
        async def main():
            return store_for()

        with configured(default={"BACKEND": MEMORY}):
            assert in_loop(main) is store_for()

    def test_is_a_mapping(self):
        with configured(default={}, memory={"BACKEND": MEMORY}):
            assert dict(stores) == {name: store_for(name) for name in ("default", "memory")}
