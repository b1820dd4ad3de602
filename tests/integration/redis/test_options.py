"""The options of the store, its rights, its check of the server, and whose a prefix is."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from django.core.checks import run_checks

from django_idempotency.claims import Resolution
from django_idempotency.conf import InvalidStore, stores
from django_idempotency.exceptions import StoreError
from django_idempotency.records import State
from django_idempotency.stores.redis import RedisStore
from django_idempotency.stores.redis import store as redis_store
from django_idempotency.stores.redis.rows import claim_arguments
from django_idempotency.stores.redis.scripts import CLAIM
from tests.claims import HOUR, asked, found, lost, won
from tests.integration.redis.conftest import BACKEND
from tests.services.processes import ROOT

URL = "redis://127.0.0.1:1/0"
SENTINELS = [("127.0.0.1", 26379)]


@pytest.fixture
def configure(settings):
    def configured(**options):
        settings.IDEMPOTENCY = {"default": {"BACKEND": BACKEND, "OPTIONS": options}}

    return configured


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "a url is needed"),
        ({"url": "http://127.0.0.1/"}, "redis://, rediss://, unix://"),
        ({"url": URL, "wait_replica": 1}, "wait_replica"),
        ({"url": URL, "cluster": True, "wait_replica": 1}, "wait_replica"),
        ({"url": f"{URL}?decode_responses=1"}, "decode_responses"),
        ({"url": URL, "retry": None}, "'retry' is not an option"),
        ({"sentinels": SENTINELS}, "belong together"),
        (
            {"url": URL, "cluster": True, "sentinels": SENTINELS, "service_name": "main"},
            "a cluster has no sentinels",
        ),
        ({"url": f"{URL.replace('redis', 'rediss')}?ssl_cert_reqs=no"}, "Invalid SSL Certificate"),
        ({"url": URL, "protocol": 9}, "protocol must be either 2 or 3"),
        ({"url": URL, "timeout": 0}, "timeout must be more than 0"),
        ({"url": URL, "timeout": math.inf}, "and finite"),
        ({"url": URL, "timeout": "2"}, "timeout is a number of seconds or a timedelta, not '2'"),
        ({"url": URL, "wait_timeout": -1}, "wait_timeout must be 0 seconds or more"),
        ({"url": URL, "wait_replicas": -1}, "0 or more"),
        ({"url": URL, "wait_replicas": 1, "wait_timeout": 3}, "less than timeout"),
    ],
    ids=str,
)
def test_setting_that_makes_no_sense_is_refused(configure, options, text):
    configure(**options)
    with pytest.raises(InvalidStore, match=text):
        stores["default"]


@pytest.mark.parametrize("version", ["valkey9", "redis6"])
def test_documented_rights_are_enough_and_none_is_too_many(url, client):
    """The ACL rules that docs/howto/redis.md gives the client's user."""
    page = (ROOT / "docs/howto/redis.md").read_text()
    given = page.partition("ACL SETUSER idempotency on >password ")[2].partition("```")[0]
    rights = given.split()
    assert "~idempotency:*" in rights
    user = f"user-{uuid4().hex}"
    parts = urlsplit(url)
    own = parts._replace(netloc=f"{user}:secret@{parts.hostname}:{parts.port}").geturl()
    try:
        client.execute_command("ACL", "SETUSER", user, "on", ">secret", *rights)
        every_operation(RedisStore(own, timeout=30))
        for right in set(rights) - {"+ping"}:  # redis-py's health check, off unless asked for
            client.script_flush()
            others = [other for other in rights if other != right]
            client.execute_command("ACL", "SETUSER", user, "reset", "on", ">secret", *others)
            with pytest.raises((StoreError, AssertionError)):
                every_operation(RedisStore(own))
    finally:
        client.execute_command("ACL", "DELUSER", user)


def every_operation(store):
    """Use every command that the store ever uses; fail if one is refused."""
    lease = won(store.claim(asked(f"{uuid4()}")))
    store.fail(lease, "boom")
    lease = won(store.claim(replace(lease.request, token=uuid4(), on_stale="refuse")))
    assert store.renew([lease], HOUR) == {lease}
    store.note(lease, b"entry", duration=HOUR, held=True)
    key, arguments = store._key(lease.record_id), claim_arguments(lease.request)
    _, reached = store._clients.replicated(CLAIM, key, arguments, 0, 0.1)
    assert reached == 0
    store.release(lease)
    seen = store.get(lease.record_id)
    store.browse(limit=1)
    assert store.check() == []
    assert store.resolve(seen.record_id, Resolution("expire", epoch=seen.epoch, state=seen.state))


# Checks.


def test_without_the_client_the_check_names_the_extra(configure, monkeypatch):
    for name in [name for name in sys.modules if name.startswith(BACKEND.rpartition(".")[0])]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "redis", None)
    configure(url=URL)
    [message] = run_checks(tags=["idempotency"])
    assert message.id == "django_idempotency.E002"
    assert "pip install '.[redis]'" in message.msg


def ids(store):
    messages = store.check()
    assert all(message.hint for message in messages)
    return [message.id.removeprefix("django_idempotency.") for message in messages]


def test_W008_W015_server_that_may_evict_claims_and_is_a_replica(start_server, make_store):
    policy = {"maxmemory_policy": "volatile-ttl", "maxmemory": "100mb"}
    store = make_store(start_server(**policy, replicaof="127.0.0.1 1").url)
    assert ids(store) == ["W008", "W015"]
    evicts, replica = store.check()
    assert "volatile-ttl" in evicts.msg
    assert "is a replica" in replica.msg


def test_W009_server_that_does_not_answer_is_told_with_deploy_only(configure):
    configure(url="redis://nobody:secret@127.0.0.1:1/0")
    assert run_checks(tags=["idempotency"]) == []
    [message] = run_checks(tags=["idempotency"], include_deployment_checks=True)
    assert message.id == "django_idempotency.W009"
    assert "at 127.0.0.1:1: ConnectionError" in message.msg
    assert "secret" not in str(message)


def test_E010_server_that_is_too_old(store, monkeypatch):
    monkeypatch.setattr(redis_store, "OLDEST", (99, 0))  # no wheel has a server that is too old
    assert ids(store) == ["E010"]


REFUSED = r"OPTIONS\['prefix'\]"


def test_I10_prefix_of_another_secret_is_refused_and_named(url, make_store, settings):
    production = make_store(url)
    production.complete(won(production.claim(asked())), b"production's", retention=HOUR)

    settings.SECRET_KEY = "staging"
    staging = make_store(url)
    for _ in range(2):
        with pytest.raises(StoreError, match=REFUSED) as refused:
            staging.claim(asked())
        assert refused.value.retry_after == 60

    assert found(production).result == b"production's"
    assert won(make_store(url, prefix=f"{production.prefix}staging:").claim(asked()))


def test_rotation_of_the_secret_stops_no_process_and_without_a_fallback_needs_the_operator(
    url, make_store, settings, client, prefix
):
    processes = {
        "before": ("old", []),
        "new process": ("new", ["old"]),
        "old process, started again meanwhile": ("old", []),
        "after the fallback is gone": ("new", []),
    }
    for key, (settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS) in processes.items():
        won(make_store(url).claim(asked(key)))

    settings.SECRET_KEY = "newest, without a fallback"
    store = make_store(url)
    with pytest.raises(StoreError, match=REFUSED):
        store.claim(asked())
    assert client.delete(f"{prefix}owner") == 1  # which gives the prefix away

    won(store.claim(asked()))
    assert lost(store.claim(asked("before"))).state is State.IN_PROGRESS


def test_E016_check_tells_of_anothers_prefix_and_takes_none(
    url, make_store, settings, client, prefix
):
    assert make_store(url).check() == []
    assert not client.exists(f"{prefix}owner")
    won(make_store(url).claim(asked()))

    settings.SECRET_KEY = "staging"
    [message] = make_store(url).check()

    assert message.id == "django_idempotency.E016"
    assert "OPTIONS['prefix']" in message.msg
    assert f"{prefix}owner" in message.hint


def test_marker_says_when_the_prefix_was_taken_for_the_first_time(url, make_store, client, prefix):
    won(make_store(url).claim(asked()))
    [digest] = client.hkeys(f"{prefix}owner")
    client.hset(f"{prefix}owner", digest, "1")

    won(make_store(url).claim(asked("another")))

    assert client.hgetall(f"{prefix}owner") == {digest: b"1"}


@pytest.fixture
def user(client, prefix):
    """A user who may not read hashes."""
    client.acl_setuser(prefix, enabled=True, nopass=True, keys=["*"], commands=["+@all", "-hmget"])
    yield prefix
    client.acl_deluser(prefix)


def test_a_user_who_may_not_read_the_marker_has_not_met_anothers_prefix(url, make_store, user):
    store = make_store(url, username=user, password="any")
    with pytest.raises(StoreError) as raised:
        store.claim(asked())
    assert "another project's" not in str(raised.value)
    assert [message.id for message in store.check()] == ["django_idempotency.W009"]


def test_R95_a_marker_of_another_type_is_anothers_prefix(store, client, prefix):
    client.set(f"{prefix}owner", "a counter of somebody else's")
    with pytest.raises(StoreError, match=REFUSED):
        store.claim(asked())
    assert [message.id for message in store.check()] == ["django_idempotency.E016"]
    assert client.type(f"{prefix}owner") == b"string"


def test_R61_server_that_refuses_a_password_is_not_out_of_reach(url, make_store):
    """FAIL_OPEN would run each retry again for as long as nobody mends it."""
    parts = urlsplit(url)
    wrong = make_store(parts._replace(netloc=f"nobody:wrong@{parts.netloc}").geturl())
    with pytest.raises(StoreError, match="AuthenticationError") as raised:
        wrong.claim(asked())
    assert not raised.value.unreachable

    away = make_store("redis://127.0.0.1:1/0", timeout=1)
    with pytest.raises(StoreError) as raised:
        away.claim(asked())
    assert raised.value.unreachable
