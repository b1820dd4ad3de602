"""The commands of operators, over each store: what they find, decide, refuse and erase."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from functools import cache
from typing import Any
from unittest.mock import Mock
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command

import django_idempotency as idempotency
from django_idempotency import keys
from django_idempotency.conf import store_for
from django_idempotency.exceptions import LeaseLost
from django_idempotency.leases import Lease
from django_idempotency.operators.search import waiting
from django_idempotency.records import Page
from django_idempotency.stores.base import BaseStore
from django_idempotency.stores.database import DatabaseStore
from django_idempotency.stores.dynamodb import DynamoDBStore, schema
from tests.claims import HOUR, asked, won
from tests.services import or_skip
from tests.services.dynamodb import ENVIRONMENT, moto_url
from tests.services.processes import wait_until
from tests.services.redis import redis_url
from tests.unit.http.api import Api, replayed

pytestmark = pytest.mark.django_db(transaction=True)

DATABASE: dict[str, Any] = {}
MEMORY = {"BACKEND": "django_idempotency.stores.memory.MemoryStore"}
#: A lease that lapses soon.
MOMENT = timedelta(milliseconds=20)


@pytest.fixture(scope="module")
def urls() -> Iterator[Callable[[str], str]]:
    servers: dict[str, Any] = {"redis": redis_url, "dynamodb": moto_url}
    with ExitStack() as stack:
        yield cache(lambda name: str(or_skip(lambda: stack.enter_context(servers[name]()))))


@pytest.fixture(params=["database", "memory", "redis", "dynamodb"])
def store(
    request: pytest.FixtureRequest,
    settings: Any,
    urls: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[BaseStore]:
    alias = {"database": DATABASE, "memory": MEMORY}.get(request.param)
    if request.param == "redis":
        options = {"url": urls("redis"), "prefix": f"test-{uuid4()}:", "timeout": 30}
        alias = {"BACKEND": "django_idempotency.stores.redis.RedisStore", "OPTIONS": options}
    elif request.param == "dynamodb":
        for name, value in ENVIRONMENT.items():
            monkeypatch.setenv(name, value)
        options = {"table_name": f"test-{uuid4()}", "endpoint_url": urls("dynamodb")}
        backend = "django_idempotency.stores.dynamodb.DynamoDBStore"
        alias = {"BACKEND": backend, "OPTIONS": {**options, "clock_skew": 0, "timeout": 30}}
    settings.IDEMPOTENCY = {"default": alias}
    store = store_for()
    if isinstance(store, DynamoDBStore):
        schema.create(store, lambda step: None)
    yield store
    if request.param == "redis":
        store._clients._client.close()  # type: ignore[attr-defined]


def manage(command: str, *words: str) -> tuple[int, str]:
    """Run a command; return its exit code, and what it has written."""
    written = io.StringIO()
    try:
        call_command(f"idempotency_{command}", *words, stdout=written, stderr=written)
    except CommandError as error:
        return error.returncode, f"{written.getvalue()}{error}"
    return 0, written.getvalue()


def claim(store: BaseStore, key: str, scope: str = "billing", **fields: Any) -> Lease:
    of = keys.record_id(fields.pop("kind", "call"), scope, key)
    request = asked(key, scope=scope, fingerprints=(), **fields)
    return won(store.claim(replace(request, record_id=of)))


def lapsed(store: BaseStore, key: str, **fields: Any) -> Lease:
    lease = claim(store, key, lease=MOMENT, on_stale="refuse", **fields)

    def is_stale() -> bool:
        record = store.get(lease.record_id)
        return record is not None and record.stale

    wait_until(is_stale, seconds=60, what="the lease to lapse")
    return lease


def is_refused(store: BaseStore, lease: Lease) -> None:
    """Fail unless the owner of this lease has lost it."""
    with pytest.raises(LeaseLost):
        store.complete(lease, b"late", retention=HOUR)


def test_a_record_is_shown_by_whatever_an_operator_has_of_it(store: BaseStore) -> None:
    outcome = idempotency.run(lambda lease: {"paid": 7}, key="order 17", scope="billing")
    claim(store, "order 17", "other")
    whole, short = str(outcome.record_id), keys.short(outcome.record_id)
    for words in ([whole], [short], ["billing order 17"], ["order 17", "--scope", "billing"]):
        code, text = manage("show", *words, "--result")
        assert code == 0
        assert text.startswith(f"Record {whole} (store default)\n  state        COMPLETED\n")
        assert "\n  made by      a call\n" in text
        assert "A duplicate sent now: It would get the stored result." in text
        assert text.endswith('\n\n{"paid":7}\n')
    code, text = manage("show", short, "--json", "--result")
    [shown] = json.loads(text)["records"]
    assert (shown["state"], shown["scope"], shown["key"]) == ("COMPLETED", "billing", "order 17")
    assert (shown["epoch"], shown["kind"]) == (outcome.fencing_token, "call")
    assert shown["answer"]["body"] == '{"paid":7}'
    code, text = manage("show", "order 17")
    assert (code, len(text.splitlines())) == (0, 2)
    assert "scope other" in text
    for words, code in (
        (["order 18"], 1),
        (["order 17", "--scope", "nobody"], 1),
        (["order 17", "--store", "elsewhere"], 2),
    ):
        assert manage("show", *words)[0] == code, words


@pytest.mark.parametrize("action", ["release", "complete", "expire", "resume"])
def test_R71_a_decision_is_carried_out_and_the_former_owner_is_refused(
    store: BaseStore, action: str
) -> None:
    lease = lapsed(store, "order 17")
    whole = str(lease.record_id)
    given = ["--value", '{"paid": 8}'] if action == "complete" else []
    refused = manage(action, whole, *given, "--yes", "--epoch", str(lease.fencing_token - 1))
    assert refused[0] == 1
    assert "has changed since you saw it" in refused[1]
    assert manage(action, whole, *given) == (2, "There is no terminal to ask on: add --yes.")
    record = store.get(lease.record_id)
    assert record is not None
    assert record.stale

    code, text = manage(action, whole, *given, "--yes", "--reason", "by hand", "--json")

    assert code == 0
    assert json.loads(text)["action"] == action
    is_refused(store, lease)
    outcome = idempotency.run(lambda lease: {"paid": 9}, key="order 17", scope="billing")
    paid = {"paid": 8} if action == "complete" else {"paid": 9}
    assert (outcome.result, outcome.replayed) == (paid, action == "complete")


def test_S13_S18_an_uncertain_call_is_listed_and_goes_on_as_the_operator_has_said(
    store: BaseStore,
) -> None:
    def checkout(charge: Callable[[str], Any]) -> Any:
        def work(lease: Any) -> Any:
            order = lease.step("order", lambda: 17)
            return [order, lease.external("charge", charge, uncertain="refuse")]

        return idempotency.run(work, key="order 17", scope="shop", transaction="steps")

    with pytest.raises(TimeoutError):
        checkout(Mock(side_effect=TimeoutError))
    with pytest.raises(idempotency.Uncertain):
        checkout(Mock())
    claim(store, "running", on_stale="refuse")
    held, stale = waiting(store, 60)
    assert ([record.key for record in held], stale) == (["order 17"], 0)
    code, text = manage("show", "--held", "--json")
    [held] = json.loads(text)["records"]
    assert (code, held["key"], held["steps"]["uncertain"]) == (0, "order 17", ["charge"])
    seen = ["shop order 17", "--yes", "--epoch", str(held["epoch"])]
    seen += ["--noted", str(held["steps"]["bytes"])]

    code, text = manage("resume", *seen, "--done", '{"id": "ch_1"}')

    assert code == 0, text
    assert "go on after 2 steps" in text
    assert manage("show", "--held") == (0, "No record is held.\n")
    code, text = manage("resume", *seen, "--not-done")
    assert (code, "has changed since you saw it" in text) == (1, True)
    assert checkout(Mock(side_effect=ZeroDivisionError)).result == [17, {"id": "ch_1"}]


def test_I3_a_completed_record_is_not_completed_again_and_an_ambiguous_key_is_refused(
    store: BaseStore,
) -> None:
    store.complete(claim(store, "order 17"), b"result", retention=HOUR)
    code, text = manage("complete", "billing order 17", "--value", "8", "--yes", "--force")
    assert code == 1
    assert "can only be expired" in text
    cut_short = claim(store, "order 17", "the beginning~", kind="of a longer scope")
    code, text = manage("complete", str(cut_short.record_id), "--value", "8", "--yes", "--force")
    assert (code, "nothing tells what made it" in text) == (1, True)
    claim(store, "order 17", "other")
    code, text = manage("expire", "order 17", "--yes", "--force")
    assert code == 1
    assert "3 records are meant" in text


def test_the_answer_of_a_view_is_given_and_replayed(store: BaseStore) -> None:
    api = Api()
    api.client.raise_request_exception = False
    alice = User.objects.create_user("alice")
    assert api.then("raised").status_code == 500
    scope = f"user:auth.user:{alice.pk}"
    words = ["key-1", "--scope", "alice"]
    code, text = manage("show", *words, "--json")
    [shown] = json.loads(text)["records"]
    assert (shown["state"], shown["kind"], shown["scope"]) == ("FAILED", "http", scope)
    assert manage("complete", *words, "--value", "1", "--yes")[0] == 2

    code, text = manage("complete", *words, "--yes", "--status", "201", "--body", '{"id": 5}')

    assert code == 0
    again = api.then("raised")
    assert (again.status_code, replayed(again), again.json()) == (201, True, {"id": 5})


def test_all_of_a_person_is_erased_and_no_more(store: BaseStore) -> None:
    alice = User.objects.create_user("alice")
    scope = f"user:auth.user:{alice.pk}"
    theirs = [scope, f"tenant:4:acme:{scope}", f"9:POST pays:{scope}"]
    theirs.append(f"9:POST pays:tenant:4:acme:{scope}")
    others = [f"{scope}7", "user:auth.user:0", f"4:{scope}"]
    for whose in (*theirs, *others):
        store.complete(claim(store, "order 17", whose), b"result", retention=HOUR)
    running = claim(store, "order 18", scope)

    def left() -> list[str]:
        return sorted(record.scope for record in store.browse(limit=100).records)

    words = ["release", "--erase", "--scope", "alice"]
    assert manage(*words, "order 17")[0] == 2
    assert manage("release", "--erase")[0] == 2
    assert manage(*words) == (2, "There is no terminal to ask on: add --yes.")
    code, text = manage(*words, "--yes")
    assert code == 1
    assert "8 records looked at, 4 erased, 1 in progress and left\n" in text
    assert left() == sorted([*others, scope])

    code, text = manage(*words, "--yes", "--force", "--json")

    assert code == 0
    erased = {"looked_at": 4, "erased": {scope: 1}, "left": {}, "damaged": []}
    assert json.loads(text)["default"] == erased
    assert left() == sorted(others)
    is_refused(store, running)
    assert manage(*words, "--yes")[0] == 0


def test_damaged_records_are_named_by_an_erasure_whose_exit_code_is_1(
    store: BaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing tells whose they are; a database has their scope, and erases them."""
    store.complete(claim(store, "order 17", "alice"), b"result", retention=HOUR)
    browse, names = store.browse, ("0123abcd-012", "4567abcd-012")

    def damaged(**arguments: Any) -> Page:
        return replace(browse(**arguments), damaged=names)

    monkeypatch.setattr(store, "browse", damaged)
    code, text = manage("release", "--erase", "--scope", "alice", "--yes", "--json")

    told = "" if isinstance(store, DatabaseStore) else f"{', '.join(names)}."
    assert (code, told in text) == (1 if told else 0, True)
    assert ("default: 2 damaged records were left" in text) == bool(told)
    assert store.browse().records == ()
