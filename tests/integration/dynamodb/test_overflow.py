"""Results that are too large for an item: in a storage, or completed without (R62)."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
from django.core.files.base import ContentFile
from django.core.files.storage import InMemoryStorage

import django_idempotency as idempotency
from django_idempotency.claims import Resolution
from django_idempotency.engine import Engine
from django_idempotency.exceptions import LeaseLost, ResultTooLarge, ResultUnavailable, StoreError
from django_idempotency.records import State
from django_idempotency.stores.dynamodb import DynamoDBStore
from django_idempotency.stores.dynamodb.overflow import INLINE_BYTES
from django_idempotency.testing import FakeClock
from tests.app.models import Effect
from tests.integration.dynamodb.claims import (
    DAY,
    HOUR,
    OTHERS,
    asked,
    found,
    lost,
    operation,
    record_id,
    won,
)
from tests.integration.dynamodb.conftest import BACKEND, MakeStore, Options
from tests.unit.http.api import Api, bare_body, problem, replayed

TWO_MIB = 2 * 1024 * 1024
LARGE = os.urandom(TWO_MIB)
#: A result that MAX_RESULT_BYTES allows, and that no item can hold.
TEXT = LARGE[: TWO_MIB // 2].hex()

#: ``with down("_save"):`` the storage fails there.
Down = Callable[[str], AbstractContextManager[object]]


class Overwriting(InMemoryStorage):
    """Puts an object in the place of the one with its name, as S3 does."""

    def get_available_name(self, name: str, max_length: int | None = None) -> str:
        return name

    def _save(self, name: str, content: Any) -> str:
        if self.exists(name):
            self.delete(name)
        return str(super()._save(name, content))  # type: ignore[misc]


@pytest.fixture
def store(make_store: MakeStore, storage: Any) -> DynamoDBStore:
    return make_store(overflow_storage="overflow")


@pytest.fixture
def down(storage: Any) -> Down:
    error = OSError("the storage does not answer")
    return lambda method: mock.patch.object(type(storage), method, side_effect=error)


def objects(storage: Any) -> list[str]:
    """The names of all objects of records."""
    if not storage.exists("idempotency"):
        return []
    folders, _ = storage.listdir("idempotency")
    return [
        f"idempotency/{folder}/{name}"
        for folder in folders
        for name in storage.listdir(f"idempotency/{folder}")[1]
    ]


def completed(store: DynamoDBStore, result: bytes = LARGE) -> Any:
    lease = won(store.claim(asked()))
    store.complete(lease, result, retention=HOUR)
    return lease


@pytest.mark.parametrize("kind", ["moto", "dynalite"])
def test_I4_result_comes_back_byte_for_byte(store: DynamoDBStore, storage: Any) -> None:
    lease = completed(store)

    assert lost(store.claim(asked())).result == found(store).result == LARGE
    digest = hashlib.sha256(LARGE).hexdigest()
    assert objects(storage) == [f"idempotency/{record_id()}/{lease.token}-{digest}"]


@pytest.mark.parametrize("kind", ["moto", "dynalite"])
def test_first_byte_too_many_overflows(store: DynamoDBStore, storage: Any) -> None:
    """Up to it the item holds all, with the longest of everything."""
    longest = "\N{KEY}" * 255
    lease = won(store.claim(asked(scope=longest, operation=longest)))
    store.complete(lease, LARGE[:INLINE_BYTES], retention=HOUR)
    assert (found(store).result, objects(storage)) == (LARGE[:INLINE_BYTES], [])

    store.complete(won(store.claim(asked("more"))), LARGE[: INLINE_BYTES + 1], retention=HOUR)
    assert found(store, "more").result == LARGE[: INLINE_BYTES + 1]
    assert len(objects(storage)) == 1


def test_R66_object_of_a_stalled_owner_changes_nothing(store: DynamoDBStore, storage: Any) -> None:
    stalled = won(store.claim(asked(lease=-HOUR)))
    completed(store)

    with pytest.raises(LeaseLost):
        store.complete(stalled, os.urandom(TWO_MIB), retention=HOUR)

    assert len(objects(storage)) == 2
    assert found(store).result == LARGE


@pytest.mark.parametrize("overwrites", [False, True])
def test_I3_R68_completion_that_is_sent_again_leaves_the_first_result(
    store: DynamoDBStore, settings: Any, overwrites: bool
) -> None:
    if overwrites:
        backend = {"BACKEND": f"{__name__}.Overwriting"}
        settings.STORAGES = {**settings.STORAGES, "overflow": backend}
    lease = completed(store)
    expires_at = found(store).expires_at

    assert store.complete(lease, os.urandom(TWO_MIB), retention=DAY) == expires_at

    assert lost(store.claim(asked())).result == LARGE


@pytest.mark.parametrize("content", [LARGE[:-1], LARGE[:-1] + b"!", None], ids=[0, 1, 2])
def test_R62_result_whose_object_is_damaged_is_unavailable_and_never_a_run(
    store: DynamoDBStore, storage: Any, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    completed(store)
    [name] = objects(storage)
    storage.delete(name)
    if content is not None:
        assert storage.save(name, ContentFile(content)) == name

    with pytest.raises(ResultUnavailable):
        store.claim(asked())

    assert (found(store).state, found(store).result) == (State.COMPLETED, None)
    assert {entry.levelname for entry in caplog.records} == {"ERROR"}
    assert "in the storage 'overflow' is" in caplog.text


@pytest.mark.parametrize("look", ["get", "claim"])
def test_R60_storage_that_does_not_answer_may_answer_later(
    store: DynamoDBStore, down: Down, look: str
) -> None:
    completed(store)

    with down("_open"), pytest.raises(StoreError, match="storage 'overflow'"):
        store.get(record_id()) if look == "get" else store.claim(asked())

    assert lost(store.claim(asked())).result == LARGE


def test_object_is_not_read_for_a_mismatch_nor_for_a_page(store: DynamoDBStore, down: Down) -> None:
    completed(store)

    with down("_open"):
        [record] = store.browse().records
        assert (record.state, record.result) == (State.COMPLETED, None)
        assert lost(store.claim(OTHERS)).state is State.COMPLETED


def test_R47_object_is_read_where_the_secret_of_the_record_is_gone(store: DynamoDBStore) -> None:
    """The mismatch that the store sees has no result: the claim is sent once more."""
    for secret in (b"old", b"new"):
        asked_for = operation(fingerprint=b"\2" + secret + b"f" * 28)
        outcome = Engine(store).run(
            replace(asked_for, policy=replace(asked_for.policy, max_result_bytes=2 * TWO_MIB)),
            lambda lease: TEXT,
        )

    assert (outcome.replayed, outcome.result) == (True, TEXT)


def test_R74_object_of_an_expired_record_is_not_read(make_store: MakeStore, down: Down) -> None:
    clock = FakeClock()
    store = make_store(overflow_storage="overflow", clock=clock)
    completed(store)
    clock.advance(DAY)

    with down("_open"):
        assert found(store).expired
        won(store.claim(asked()))


@pytest.mark.parametrize("lacks", ["an answer", "the option"])
def test_R62_result_that_cannot_be_kept_is_too_large_and_changes_nothing(
    make_store: MakeStore, down: Down, lacks: str
) -> None:
    option = {} if lacks == "the option" else {"overflow_storage": "overflow"}
    store = make_store(**option)
    lease = won(store.claim(asked()))

    with down("_save"), pytest.raises(ResultTooLarge, match="storage") as raised:
        store.complete(lease, LARGE[: INLINE_BYTES + 1], retention=HOUR)

    assert isinstance(raised.value.__cause__, OSError if option else type(None))
    assert found(store).live


def test_store_without_the_option_says_what_it_lacks(options: Options, storage: Any) -> None:
    shared = options()
    completed(DynamoDBStore(**shared, overflow_storage="overflow"))

    with pytest.raises(StoreError, match="overflow_storage"):
        DynamoDBStore(**shared).claim(asked())


def test_operator_may_give_a_large_result(store: DynamoDBStore) -> None:
    lease = won(store.claim(asked()))
    store.fail(lease, "boom")
    epoch, state = lease.fencing_token, State.FAILED

    assert store.resolve(
        record_id(), Resolution("complete", epoch=epoch, state=state, result=LARGE)
    )

    assert found(store).result == LARGE


@pytest.mark.django_db(transaction=True)
class TestCalls:
    @pytest.fixture
    def api(self, request: pytest.FixtureRequest, settings: Any, options: Options) -> Api:
        """Requests to a store with the storage, unless the parameter says "without"."""
        without = getattr(request, "param", "") == "without"
        given = options() if without else options(overflow_storage="overflow")
        alias = {"BACKEND": BACKEND, "OPTIONS": given, "MAX_RESULT_BYTES": 2 * TWO_MIB}
        settings.IDEMPOTENCY = {"default": alias}
        return Api()

    def test_R62_two_megabytes_replay_through_the_storage(self, storage: Any, api: Api) -> None:
        first, again = api.then("large"), api.then("large")

        assert len(bare_body(first)) == TWO_MIB
        assert "Idempotency-Stored" not in first.headers
        assert replayed(again)
        assert bare_body(again) == bare_body(first)

    @pytest.mark.parametrize("api", ["with", "without"], indirect=True)
    def test_R62_view_whose_result_is_not_kept_is_answered_and_never_run_again(
        self, api: Api, down: Down
    ) -> None:
        with down("_save"):
            first = api.then("large")
        again = api.then("large")

        assert (first.status_code, len(bare_body(first))) == (200, TWO_MIB)
        assert first.headers["Idempotency-Stored"] == "false"
        assert problem(again) == (409, "result_unavailable")
        assert Effect.objects.count() == 1

    @pytest.mark.parametrize("api", ["with", "without"], indirect=True)
    @pytest.mark.parametrize("caller", ["run", "arun"])
    def test_R62_call_whose_result_is_not_kept_never_means_a_second_run(
        self, api: Api, down: Down, caller: str
    ) -> None:
        async def awork(lease: Any) -> str:
            return TEXT

        with down("_save"):
            if caller == "run":
                outcome = idempotency.run(lambda lease: TEXT, key="k", scope="s")
            else:
                outcome = asyncio.run(idempotency.arun(awork, key="k", scope="s"))

        assert (outcome.result, outcome.stored) == (TEXT, False)
        with pytest.raises(ResultUnavailable):
            idempotency.run(lambda lease: pytest.fail("ran"), key="k", scope="s")
