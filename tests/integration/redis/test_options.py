"""The options of the store: what is taken, and what is refused before anything is connected."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
import redis

from django_idempotency.claims import Resolution
from django_idempotency.conf import InvalidStore, stores
from django_idempotency.exceptions import StoreError
from django_idempotency.stores.redis import RedisStore
from django_idempotency.stores.redis.rows import claim_arguments
from django_idempotency.stores.redis.scripts import CLAIM
from tests.integration.redis.claims import HOUR, asked, record_id, won
from tests.integration.redis.conftest import BACKEND, MakeStore
from tests.services.processes import ROOT

URL = "redis://127.0.0.1:1/0"
SENTINELS = [("127.0.0.1", 26379)]

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "neither url nor sentinels": ({}, "a url is needed"),
    "another scheme": ({"url": "http://127.0.0.1/"}, "redis://, rediss://, unix://"),
    "misspelt": ({"url": URL, "wait_replica": 1}, "wait_replica"),
    "misspelt, of a cluster": ({"url": URL, "cluster": True, "wait_replica": 1}, "wait_replica"),
    "in the url": ({"url": f"{URL}?nonesuch=1"}, "nonesuch"),
    "strings for bytes": ({"url": f"{URL}?decode_responses=1"}, "decode_responses"),
    "a retry": ({"url": URL, "retry": None}, "'retry' is not an option"),
    "a retry after time-outs": (
        {"url": URL, "retry_on_timeout": True},
        "'retry_on_timeout' is not",
    ),
    "no service name": ({"sentinels": SENTINELS}, "belong together"),
    "no sentinels": ({"url": URL, "service_name": "main"}, "belong together"),
    "sentinels of a cluster": (
        {"url": URL, "cluster": True, "sentinels": SENTINELS, "service_name": "main"},
        "a cluster has no sentinels",
    ),
    "no time": ({"url": URL, "timeout": 0}, "timeout must be more than 0"),
    "a negative number of replicas": ({"url": URL, "wait_replicas": -1}, "0 or more"),
    "replicas waited for without end": (
        {"url": URL, "wait_replicas": 1, "wait_timeout": 0},
        "wait_timeout must be more than 0",
    ),
    "replicas waited for longer than for the server": (
        {"url": URL, "wait_replicas": 1, "wait_timeout": 3},
        "less than timeout",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_setting_that_makes_no_sense_is_refused(settings: Any, name: str) -> None:
    options, text = REFUSED[name]
    settings.IDEMPOTENCY = {"default": {"BACKEND": BACKEND, "OPTIONS": options}}
    with pytest.raises(InvalidStore, match=text):
        stores["default"]


TAKEN: dict[str, dict[str, Any]] = {
    "a server": {"url": "redis://user:secret@127.0.0.1:1/3"},
    "TLS": {"url": "rediss://127.0.0.1:1/0?ssl_cert_reqs=none"},
    "a socket": {"url": "unix:///tmp/nonesuch.sock?db=1"},
    "a cluster": {"url": URL, "cluster": True, "password": "secret"},
    "sentinels": {
        "sentinels": [["127.0.0.1", "1"]],
        "service_name": "main",
        "sentinel_options": {"password": "secret"},
    },
    "durations": {"url": URL, "timeout": timedelta(seconds=5), "wait_timeout": 3},
    "options of the client": {"url": URL, "max_connections": 7, "health_check_interval": 30},
}


@pytest.mark.parametrize("name", TAKEN)
def test_setting_that_makes_sense_connects_to_nothing_yet(settings: Any, name: str) -> None:
    settings.IDEMPOTENCY = {"default": {"BACKEND": BACKEND, "OPTIONS": TAKEN[name]}}
    store = stores["default"]
    assert isinstance(store, RedisStore)
    assert (store.timeout, store.wait_timeout) == ((5, 3) if name == "durations" else (2, 1))


def test_stores_with_other_prefixes_do_not_meet(url: str, make_store: MakeStore) -> None:
    won(make_store(url).claim(asked()))
    other = make_store(url, prefix="other:")
    assert other.get(record_id()) is None


def documented_rights() -> str:
    """The ACL rules that docs/howto/redis.md gives the client's user."""
    page = (ROOT / "docs/howto/redis.md").read_text()
    return page.partition("ACL SETUSER idempotency on >password ")[2].partition("```")[0]


@pytest.mark.parametrize("version", ["valkey9", "redis6"])
def test_documented_rights_are_enough_and_none_is_too_many(url: str, client: redis.Redis) -> None:
    rights = documented_rights().split()
    assert "~idempotency:*" in rights
    user = f"user-{uuid4().hex}"
    parts = urlsplit(url)
    own = parts._replace(netloc=f"{user}:secret@{parts.hostname}:{parts.port}").geturl()
    try:
        client.execute_command("ACL", "SETUSER", user, "on", ">secret", *rights)
        every_operation(RedisStore(own))
        for right in rights:
            if right == "+ping":  # redis-py's health check, which is off unless it is asked for
                continue
            client.script_flush()
            others = [other for other in rights if other != right]
            client.execute_command("ACL", "SETUSER", user, "reset", "on", ">secret", *others)
            with pytest.raises((StoreError, AssertionError)):
                every_operation(RedisStore(own))
    finally:
        client.execute_command("ACL", "DELUSER", user)


def every_operation(store: RedisStore) -> None:
    """Use every command that the store ever uses; fail if one is refused."""
    lease = won(store.claim(asked(f"{uuid4()}")))
    store.fail(lease, "boom")
    lease = won(store.claim(replace(lease.request, token=uuid4(), on_stale="refuse")))
    assert store.renew([lease], HOUR) == {lease}
    key, arguments = store._key(lease.record_id), claim_arguments(lease.request)
    _, reached = store._clients.replicated(CLAIM, key, arguments, 0, 0.1)
    assert reached == 0
    store.release(lease)
    seen = store.get(lease.record_id)
    assert seen is not None
    store.browse(limit=1)
    assert store.check() == []
    assert store.resolve(seen.record_id, Resolution("expire", epoch=seen.epoch, state=seen.state))


WITHOUT_CLIENT = """
import sys
sys.modules["redis"] = None
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["django_idempotency"],
    IDEMPOTENCY={"default": {
        "BACKEND": "django_idempotency.stores.redis.RedisStore",
        "OPTIONS": {"url": "redis://127.0.0.1:1"},
    }},
)
import django
django.setup()
from django.core.checks import run_checks
print(*[f"{message.id} {message.msg}" for message in run_checks()], sep="\\n")
"""


@pytest.mark.processes
def test_without_the_client_the_check_names_the_extra() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_CLIENT], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "django_idempotency.E002" in done.stdout
    assert 'pip install "django-idempotency[redis]"' in done.stdout
