"""The IDEMPOTENCY setting: aliases, their stores and policies, and what is said of mistakes."""

from __future__ import annotations

import dataclasses
import threading
from datetime import timedelta

import pytest
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from django_idempotency import InvalidStore, run
from django_idempotency.conf import engine_for, http_policy_for, policy_for, store_for, stores
from django_idempotency.options import HTTPPolicyOptions, PolicyOptions, secrets_in
from django_idempotency.policy import UNSET, HTTPPolicy, Policy, UnknownField, merge
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
        assert (type(store_for()), store_for().using) == (DatabaseStore, "default")
        assert (list(stores), len(stores)) == (["default"], 1)
        assert (policy_for("default"), http_policy_for("default")) == (Policy(), HTTPPolicy())
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


@pytest.mark.django_db
def test_two_aliases_on_one_store_share_its_keys():
    with configured(default={}, long={"RETENTION": timedelta(days=30)}):
        run(lambda lease: "done", key="k", scope="s")
        assert run(lambda lease: "again", key="k", scope="s", store="long").result == "done"


def test_no_default_or_a_setting_of_another_type(settings):
    assert issubclass(InvalidStore, ImproperlyConfigured)
    for description in ({}, {"BACKEND": MEMORY}, {"LEESE": 1}):
        with configured(fast=description), pytest.raises(InvalidStore, match="alias 'default'"):
            list(stores)
    for value in ("memory", ["default"], 5, [], (), "", 0, False):
        settings.IDEMPOTENCY = value
        assert "must be a dict of aliases" in message()
    for nothing in (None, {}):
        settings.IDEMPOTENCY = nothing
        assert list(stores) == ["default"]


def test_unknown_name_with_a_suggestion():
    with configured(default={}, payments={}):
        assert "no alias 'payment'. Did you mean 'payments'?" in message("payment")
        assert "no alias 'zzz'. It has 'default', 'payments'." in message("zzz")
    for name, nearest in {"LEESE": "LEASE", "lease": "LEASE", "Http": "HTTP"}.items():
        with configured(default={name: 1}):
            assert f"has no {name!r}. Did you mean '{nearest}'?" in message()
    for name in ("REQUIERD", "required"):
        with configured(default={"HTTP": {name: 1}}):
            said = f"IDEMPOTENCY['default']['HTTP'] has no {name!r}. Did you mean 'REQUIRED'?"
            assert said in message()
    with configured(default={"OPTIONS": {"usng": "default"}}):
        said = "IDEMPOTENCY['default']['OPTIONS'] has no 'usng'. Did you mean 'using'?"
        assert message() == said
    for name in ("using", "USING"):
        with configured(default={name: "default"}):
            said = f"IDEMPOTENCY['default'] has no {name!r}. Write 'OPTIONS': {{'using': ...}}."
            assert message() == said
    with configured(default={"BACKEND": REDIS, "URL": "redis://localhost"}):
        assert message().endswith("has no 'URL'. Write 'OPTIONS': {'url': ...}.")
    with configured(default={"BACKEND": REDIS, "using": "default"}):
        assert "OPTIONS" not in message()
    with configured(default={"BACKEND": REDIS, "OPTIONS": {"ulr": "redis://localhost"}}):
        assert message().endswith(" Did you mean 'url' by 'ulr'?")
    for option in ("username", "socket_timeout", "client_name", "retry_on_timeout"):
        options = {"url": "redis://localhost", "wait_replicas": -1, option: 1}
        with configured(default={"BACKEND": REDIS, "OPTIONS": options}):
            assert "Did you mean" not in message()
    with configured(default={"BACKEND": "redis"}):
        assert REDIS in message()
    with configured(default={"ZZZ": 1}):
        assert message() == "IDEMPOTENCY['default'] has no 'ZZZ'."


REDIS = "django_idempotency.stores.redis.RedisStore"
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
    options = {"url": "redis://127.0.0.1:6379/0", "client_name": "shop"}
    redis = "django_idempotency.stores.redis.RedisStore"
    with configured(default={"BACKEND": redis, "OPTIONS": options}):
        stores["default"]  # a store that takes any options


DYNAMODB = "django_idempotency.stores.dynamodb.DynamoDBStore"
SERVER = {"url": "redis://127.0.0.1:1/0"}
SENTINELS = {"sentinels": [("127.0.0.1", 1)], "service_name": "main"}
TABLE = {"table_name": "records"}
OF_ANOTHER_TYPE = [
    *((f"{__name__}.DatabaseStore", {"using": using}, "using") for using in (["default"], None)),
    *((MEMORY, {"clock": clock}, "clock") for clock in (5, None)),
    *((REDIS, {"url": url}, "url") for url in (5, "")),
    *((REDIS, {**SERVER, "prefix": prefix}, "prefix") for prefix in (5, None)),
    *((REDIS, {**SERVER, "wait_replicas": it}, "wait_replicas") for it in (1.5, "1", True, None)),
    *((REDIS, {**SERVER, "cluster": cluster}, "cluster") for cluster in ("no", 0)),
    *((REDIS, {**SENTINELS, "sentinels": given}, "sentinels") for given in ([], ())),
    *((REDIS, {**SENTINELS, "service_name": name}, "service_name") for name in (5, "")),
    (REDIS, {**SERVER, "sentinel_options": {"username": "shop"}}, "sentinels"),
    *((DYNAMODB, {**TABLE, "table_name": name}, "table_name") for name in ("", 5, None)),
    *(
        (DYNAMODB, {**TABLE, name: wrong}, name)
        for name in ("region_name", "endpoint_url", "partition_key", "sort_key", "overflow_storage")
        for wrong in ("", 5)
    ),
    (DYNAMODB, {**TABLE, "sort_key": "id", "static_partition_key": ""}, "static_partition_key"),
    *((DYNAMODB, {**TABLE, "attributes": {"expiry": name}}, "expiry") for name in ("", 5)),
    *((DYNAMODB, {**TABLE, "ttl": ttl}, "ttl") for ttl in ("no", None, 0)),
    (DYNAMODB, {**TABLE, "clock": 5}, "clock"),
]


@pytest.mark.parametrize(("backend", "options", "name"), OF_ANOTHER_TYPE)
def test_E002_option_of_another_type_is_told_before_the_first_claim(backend, options, name):
    with configured(default={"BACKEND": backend, "OPTIONS": options}):
        said = message()
        assert f"do not fit {backend}: {name} " in said
        found = [it for it in checks.run_checks() if it.id == "django_idempotency.E002"]
        assert [it.msg for it in found] == [said]


def test_call_of_an_alias_or_an_operation_that_is_no_text_says_so():
    with configured(default={}, **{"5": {}}):
        for alias in (None, 6, DatabaseStore):
            with pytest.raises(InvalidStore, match="IDEMPOTENCY has no alias"):
                run(lambda lease: 1, key="k", scope="s", store=alias)
        for name in (None, 5):
            with pytest.raises(TypeError, match=f"operation must be a string .*, not {name!r}"):
                run(lambda lease: 1, key="k", scope="s", operation=name)


def test_name_of_a_derived_key_is_text():
    with configured(default={"BACKEND": MEMORY}):
        for name in (None, 5, b"charge"):
            with pytest.raises(TypeError, match="takes the name of a call"):
                run(lambda lease, name=name: lease.derive_key(name), key="k", scope="s")


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


# Policies.


def test_every_field_has_its_name_in_capitals_and_takes_its_value_in_several_forms():
    ninety = timedelta(seconds=90)
    for name, value, kept in (
        *(("LEASE", 90, ninety), ("RETENTION", 90.0, ninety), ("MAX_DURATION", ninety, ninety)),
        *(("RENEW", False, False), ("TRANSACTION", "single", "single")),
        *(("ON_STALE", "refuse", "refuse"), ("MAX_RESULT_BYTES", 5, 5)),
        *(("FINGERPRINT_SECRETS", it, secrets_in("one")) for it in ("one", ["one"], ("one",))),
        ("FINGERPRINT_SECRETS", b"one", secrets_in(b"one")),
    ):
        with configured(default={name: value}):
            assert getattr(policy_for("default"), name.lower()) == kept
    assert Policy().problems() == HTTPPolicy().problems() == []
    assert HTTPPolicy(methods=["post", "Put"]).methods == frozenset({"POST", "PUT"})
    with pytest.raises(dataclasses.FrozenInstanceError):
        Policy().lease = timedelta(1)


def test_merge_changes_what_is_given_and_not_the_policy_below():
    below = Policy(retention=5, transaction="single")
    given = {"lease": 7, "wait": UNSET, "transaction": None}  # None is a value
    assert merge(below, given) == Policy(retention=5, lease=7)
    assert below == Policy(retention=5, transaction="single")
    assert merge(HTTPPolicy(), {"replay_header": None}).replay_header is None
    assert merge(below, {}) is merge(below, {"lease": UNSET}) is below
    assert (bool(UNSET), repr(UNSET)) == (False, "UNSET")


def test_merge_of_what_cannot_be_is_told_with_a_suggestion():
    assert issubclass(UnknownField, TypeError)
    http = (HTTPPolicy(), "requierd", "required")
    for policy, name, nearest in ((Policy(), "LEASE", "lease"), http):
        with pytest.raises(UnknownField, match=f"Did you mean '{nearest}'"):
            merge(policy, {name: 1})
    with pytest.raises(UnknownField, match=r"^'zzz' is not a field of Policy\.$"):
        merge(Policy(), {"zzz": 1})
    with pytest.raises(UnknownField, match="field of requests: give it to a view, or to 'HTTP'"):
        merge(Policy(), {"required": True})
    with pytest.raises(ValueError, match=r"lease.*on_stale"):
        merge(Policy(), {"lease": 0, "on_stale": "panic"})
    for name, value, nearest in (
        ("transaction", "seperate", "separate"),
        ("on_stale", "takeover", "take_over"),
    ):
        [problem] = Policy(**{name: value}).problems()
        assert f"Did you mean '{nearest}'?" in problem


#: What each field cannot be; of several fields together, the first one is named.
DURATIONS = (0, -1, "60", True, None, float("inf"), float("nan"), 10**20)
PROBLEMS = [
    *({"lease": lease} for lease in DURATIONS),
    *({"retention": 0}, {"max_duration": timedelta(0)}, {"on_stale": "takeover"}),
    *({"transaction": mode} for mode in ("join", True)),
    {"on_stale": "refuse", "transaction": "single"},
    *({"renew": renew} for renew in ("yes", None)),
    *({"max_result_bytes": size} for size in (-1, 1e6, True)),
    *({"fingerprint_secrets": secrets} for secrets in (["a", ""], [1])),
    {"encryption_keys": ["too short"]},
]
HTTP_PROBLEMS = [
    *({"methods": methods} for methods in ({"GET"}, ["POSTT"], "POST", (), set())),
    *({"header": header} for header in ("", 5)),
    *({"required": 1}, {"scope_endpoint": "yes"}, {"strict_header": None}, {"echo_key": 0}),
    *({"keep": keep} for keep in ("all", 5, None)),
    *({"key_validator": validator} for validator in ("uuid4", 5)),
    *({"fingerprint": 5}, {"key_min_length": 0}, {"key_max_length": 256}),
    *({"key_max_length": 10.0}, {"key_min_length": 20, "key_max_length": 10}),
    {"key_validator": "uuid", "key_max_length": 35},
    {"key_validator": "uuid7", "key_min_length": 37},
    *({"in_progress_status": 200}, {"mismatch_status": 500}, {"mismatch_status": "422"}),
    *({name: 5} for name in ("scope", "error_renderer", "replay_check", "replay_header")),
    {"documentation_url": None},
]


def test_problem_names_its_field_and_keeps_the_policy_from_being_made():
    for policy, problems in ((Policy, PROBLEMS), (HTTPPolicy, HTTP_PROBLEMS)):
        for values in problems:
            [problem] = policy(**values).problems()
            assert next(iter(values)) in problem
            with pytest.raises(ValueError, match=next(iter(values))):
                merge(policy(), values)


def test_the_types_of_options_have_the_fields_of_the_policies():
    fields = [[field.name for field in dataclasses.fields(kind)] for kind in (Policy, HTTPPolicy)]
    both = set(fields[0] + fields[1])
    assert set(PolicyOptions.__annotations__) == set(fields[0])
    assert set(HTTPPolicyOptions.__annotations__) == both
    assert HTTPPolicyOptions.__total__ is False
