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
from django_idempotency.conf import store_for
from django_idempotency.engine import Engine
from django_idempotency.exceptions import LeaseLost, ResultTooLarge, ResultUnavailable, StoreError
from django_idempotency.keys import record_id as id_of
from django_idempotency.records import State
from django_idempotency.stores.dynamodb import DynamoDBStore
from django_idempotency.stores.dynamodb_overflow import INLINE_BYTES
from django_idempotency.testing import FakeClock
from tests.app.models import Effect
from tests.claims import operation
from tests.integration.dynamodb.claims import DAY, HOUR, asked, found, lost, record_id, won
from tests.integration.dynamodb.conftest import MakeStore, Options
from tests.unit.http.api import Api, bare_body, problem, replayed

BACKEND = "django_idempotency.stores.dynamodb.DynamoDBStore"
TWO_MIB = 2 * 1024 * 1024

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


@pytest.fixture(params=["moto", "dynalite"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


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


class TestStorage:
    def test_I4_result_comes_back_byte_for_byte(self, store: DynamoDBStore, storage: Any) -> None:
        result = os.urandom(TWO_MIB)
        lease = won(store.claim(asked()))

        store.complete(lease, result, retention=HOUR)

        assert lost(store.claim(asked())).result == result
        assert found(store).result == result
        digest = hashlib.sha256(result).hexdigest()
        assert objects(storage) == [f"idempotency/{record_id()}/{lease.token}-{digest}"]

    def test_result_that_fits_is_in_the_item(self, store: DynamoDBStore, storage: Any) -> None:
        result = os.urandom(INLINE_BYTES)

        store.complete(won(store.claim(asked())), result, retention=HOUR)

        assert found(store).result == result
        assert objects(storage) == []

    def test_first_byte_too_many_overflows(self, store: DynamoDBStore, storage: Any) -> None:
        result = os.urandom(INLINE_BYTES + 1)

        store.complete(won(store.claim(asked())), result, retention=HOUR)

        assert found(store).result == result
        assert len(objects(storage)) == 1

    def test_largest_item_fits_with_the_longest_of_everything(self, store: DynamoDBStore) -> None:
        longest = "\N{KEY}" * 255
        request = asked(scope=longest, operation=longest)

        store.complete(won(store.claim(request)), os.urandom(INLINE_BYTES), retention=HOUR)

        assert found(store).operation == longest

    def test_R66_object_of_a_stalled_owner_changes_nothing(
        self, store: DynamoDBStore, storage: Any
    ) -> None:
        stalled = won(store.claim(asked(lease=-HOUR)))
        owner = won(store.claim(asked()))
        result = os.urandom(TWO_MIB)
        store.complete(owner, result, retention=HOUR)

        with pytest.raises(LeaseLost):
            store.complete(stalled, os.urandom(TWO_MIB), retention=HOUR)

        assert len(objects(storage)) == 2
        assert found(store).result == result

    def test_R68_completion_that_is_sent_again_leaves_the_first_result(
        self, store: DynamoDBStore
    ) -> None:
        lease = won(store.claim(asked()))
        result = os.urandom(TWO_MIB)
        expires_at = store.complete(lease, result, retention=HOUR)

        assert store.complete(lease, os.urandom(TWO_MIB), retention=DAY) == expires_at

        assert found(store).result == result

    @pytest.mark.parametrize("damage", ["changed", "cut short", "gone"])
    def test_R62_result_whose_object_is_damaged_is_unavailable_and_never_a_run(
        self, store: DynamoDBStore, storage: Any, damage: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        result = os.urandom(TWO_MIB)
        store.complete(won(store.claim(asked())), result, retention=HOUR)
        [name] = objects(storage)
        storage.delete(name)
        if damage != "gone":
            content = result[:-1] if damage == "cut short" else result[:-1] + b"!"
            assert storage.save(name, ContentFile(content)) == name

        with pytest.raises(ResultUnavailable):
            store.claim(asked())

        assert (found(store).state, found(store).result) == (State.COMPLETED, None)
        assert {entry.levelname for entry in caplog.records} == {"ERROR"}
        assert "in the storage 'overflow' is" in caplog.text

    @pytest.mark.parametrize("look", ["get", "claim"])
    def test_R60_storage_that_does_not_answer_may_answer_later(
        self, store: DynamoDBStore, storage: Any, down: Down, look: str
    ) -> None:
        result = os.urandom(TWO_MIB)
        store.complete(won(store.claim(asked())), result, retention=HOUR)

        with down("_open"), pytest.raises(StoreError, match="storage 'overflow'"):
            store.get(record_id()) if look == "get" else store.claim(asked())

        assert lost(store.claim(asked())).result == result

    def test_I3_storage_that_overwrites_keeps_each_result(
        self, store: DynamoDBStore, settings: Any
    ) -> None:
        backend = {"BACKEND": "tests.integration.dynamodb.test_overflow.Overwriting"}
        settings.STORAGES = {**settings.STORAGES, "overflow": backend}
        lease = won(store.claim(asked()))
        result = os.urandom(TWO_MIB)
        store.complete(lease, result, retention=HOUR)

        store.complete(lease, os.urandom(TWO_MIB), retention=HOUR)

        assert lost(store.claim(asked())).result == result

    def test_object_is_not_read_for_a_mismatch(self, store: DynamoDBStore, storage: Any) -> None:
        store.complete(won(store.claim(asked())), os.urandom(TWO_MIB), retention=HOUR)
        storage.delete(objects(storage)[0])

        record = lost(store.claim(asked(fingerprints=(b"3" * 32,))))

        assert record.state is State.COMPLETED

    def test_R47_object_is_read_where_the_secret_of_the_record_is_gone(
        self, store: DynamoDBStore
    ) -> None:
        """The mismatch that the store sees has no result: the claim is sent once more."""
        result = os.urandom(TWO_MIB // 2).hex()
        for secret in (b"old", b"new"):
            asked_for = operation(fingerprint=b"\2" + secret + b"f" * 28)
            outcome = Engine(store).run(
                replace(asked_for, policy=replace(asked_for.policy, max_result_bytes=2 * TWO_MIB)),
                lambda lease: result,
            )

        assert (outcome.replayed, outcome.result) == (True, result)

    def test_R74_expired_object_may_be_gone(self, options: Options, storage: Any) -> None:
        clock = FakeClock()
        store = DynamoDBStore(**options(overflow_storage="overflow"), clock=clock)
        store.complete(won(store.claim(asked())), os.urandom(TWO_MIB), retention=HOUR)
        storage.delete(objects(storage)[0])
        clock.advance(DAY)

        assert found(store).expired
        won(store.claim(asked()))

    def test_R62_storage_that_fails_is_told_as_a_result_that_is_too_large(
        self, store: DynamoDBStore, down: Down, caplog: pytest.LogCaptureFixture
    ) -> None:
        lease = won(store.claim(asked()))

        with down("_save"), pytest.raises(ResultTooLarge) as raised:
            store.complete(lease, os.urandom(TWO_MIB), retention=HOUR)

        assert isinstance(raised.value.__cause__, OSError)
        assert found(store).live
        assert "A large result is not kept" in caplog.text

    def test_store_without_the_option_says_what_it_lacks(
        self, options: Options, storage: Any
    ) -> None:
        shared = options()
        writer = DynamoDBStore(**shared, overflow_storage="overflow")
        writer.complete(won(writer.claim(asked())), os.urandom(TWO_MIB), retention=HOUR)

        with pytest.raises(StoreError, match="overflow_storage"):
            DynamoDBStore(**shared).claim(asked())

    def test_operator_may_give_a_large_result(self, store: DynamoDBStore) -> None:
        lease = won(store.claim(asked()))
        store.fail(lease, "boom")
        result = os.urandom(TWO_MIB)
        epoch, state = lease.fencing_token, State.FAILED

        assert store.resolve(record_id(), "complete", epoch=epoch, state=state, result=result)

        assert found(store).result == result

    def test_page_has_the_record_without_its_result(self, store: DynamoDBStore) -> None:
        store.complete(won(store.claim(asked())), os.urandom(TWO_MIB), retention=HOUR)

        [record] = store.browse().records

        assert (record.state, record.result) == (State.COMPLETED, None)


@pytest.mark.django_db(transaction=True)
class TestViews:
    def configure(self, settings: Any, options: Options, **more: Any) -> Api:
        alias = {
            "BACKEND": BACKEND,
            "OPTIONS": options(**more),
            "MAX_RESULT_BYTES": 2 * TWO_MIB,
        }
        settings.IDEMPOTENCY = {"default": alias}
        return Api()

    def test_R62_two_megabytes_replay_through_the_storage(
        self, settings: Any, options: Options, storage: Any
    ) -> None:
        api = self.configure(settings, options, overflow_storage="overflow")

        first, again = api.then("large"), api.then("large")

        assert len(bare_body(first)) == TWO_MIB
        assert "Idempotency-Stored" not in first.headers
        assert replayed(again)
        assert bare_body(again) == bare_body(first)

    def test_R62_without_it_they_are_delivered_and_not_replayed(
        self, settings: Any, options: Options
    ) -> None:
        api = self.configure(settings, options)

        first, again = api.then("large"), api.then("large")

        assert (first.status_code, len(bare_body(first))) == (200, TWO_MIB)
        assert first.headers["Idempotency-Stored"] == "false"
        assert problem(again) == (409, "result_unavailable")
        assert Effect.objects.count() == 1

    @pytest.mark.parametrize("caller", ["run", "arun"])
    def test_R62_storage_that_is_down_at_the_completion_never_means_a_second_run(
        self, settings: Any, options: Options, down: Down, caller: str
    ) -> None:
        self.configure(settings, options, overflow_storage="overflow")
        result = os.urandom(TWO_MIB).hex()

        async def awork(lease: Any) -> str:
            return result

        with down("_save"):
            if caller == "run":
                outcome = idempotency.run(lambda lease: result, key="k", scope="s")
            else:
                outcome = asyncio.run(idempotency.arun(awork, key="k", scope="s"))

        assert (outcome.result, outcome.stored) == (result, False)
        with pytest.raises(ResultUnavailable):
            idempotency.run(lambda lease: pytest.fail("ran"), key="k", scope="s")

    def test_R62_view_whose_storage_is_down_is_answered_and_never_run_again(
        self, settings: Any, options: Options, down: Down
    ) -> None:
        api = self.configure(settings, options, overflow_storage="overflow")

        with down("_save"):
            first = api.then("large")
        again = api.then("large")

        assert (first.status_code, len(bare_body(first))) == (200, TWO_MIB)
        assert first.headers["Idempotency-Stored"] == "false"
        assert problem(again) == (409, "result_unavailable")
        assert Effect.objects.count() == 1

    def test_R62_run_completes_without_its_result(self, settings: Any, options: Options) -> None:
        self.configure(settings, options)
        result = os.urandom(TWO_MIB).hex()

        outcome = idempotency.run(lambda lease: result, key="k", scope="s")

        assert (outcome.result, outcome.stored) == (result, False)
        with pytest.raises(ResultUnavailable):
            idempotency.run(lambda lease: pytest.fail("ran"), key="k", scope="s")
        record = store_for("default").get(id_of("call", "s", "k"))
        assert record is not None
        assert record.state is State.COMPLETED


def test_result_that_no_item_can_hold_changes_nothing(make_store: MakeStore) -> None:
    store = make_store()
    lease = won(store.claim(asked()))

    with pytest.raises(ResultTooLarge, match="overflow_storage"):
        store.complete(lease, os.urandom(INLINE_BYTES + 1), retention=HOUR)

    assert found(store).live
