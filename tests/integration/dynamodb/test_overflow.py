"""Results that are too large for an item: in a storage, or completed without (R62)."""

from __future__ import annotations

import asyncio
import hashlib
import os
from dataclasses import replace
from unittest import mock

import pytest
from django.core.files.base import ContentFile
from django.core.files.storage import FileSystemStorage, InMemoryStorage

import django_idempotency as idempotency
from django_idempotency.conf import store_for
from django_idempotency.engine import Engine
from django_idempotency.exceptions import ResultTooLarge, ResultUnavailable, StoreError
from django_idempotency.records import State
from django_idempotency.stores.dynamodb import DynamoDBStore
from django_idempotency.stores.dynamodb.overflow import INLINE_BYTES
from tests.app.models import Effect
from tests.claims import DAY, HOUR, asked, found, lost, operation, record_id, won
from tests.integration.dynamodb.conftest import BACKEND, OTHERS
from tests.unit.http.api import Api, problem

TWO_MIB = 2 * 1024 * 1024
LARGE = os.urandom(TWO_MIB)
#: A result that MAX_RESULT_BYTES allows, and that no item can hold.
TEXT = LARGE[: TWO_MIB // 2].hex()


class Overwriting(InMemoryStorage):
    """Puts an object in the place of the one with its name, as S3 does."""

    def get_available_name(self, name, max_length=None):
        return name

    def _save(self, name, content):
        if self.exists(name):
            self.delete(name)
        return super()._save(name, content)


@pytest.fixture
def store(make_store, storage, clock):
    return make_store(overflow_storage="overflow", clock=clock)


@pytest.fixture
def down(storage):
    """``with down("_save"):`` the storage fails there."""
    error = OSError("the storage does not answer")
    return lambda method: mock.patch.object(type(storage), method, side_effect=error)


def objects(storage):
    """The names of all objects of records."""
    if not storage.exists("idempotency"):
        return []
    return [
        f"idempotency/{folder}/{name}"
        for folder in storage.listdir("idempotency")[0]
        for name in storage.listdir(f"idempotency/{folder}")[1]
    ]


def completed(store):
    lease = won(store.claim(asked()))
    store.complete(lease, LARGE, retention=HOUR)
    return lease


def test_I4_result_comes_back_byte_for_byte(store, storage):
    lease = completed(store)
    assert lost(store.claim(asked())).result == found(store).result == LARGE
    digest = hashlib.sha256(LARGE).hexdigest()
    assert objects(storage) == [f"idempotency/{record_id()}/{lease.token}-{digest}"]


def test_erasure_takes_all_objects_of_a_record(store, storage, down):
    """Those of an owner that lost its lease, too: nothing refers to them."""
    lease = completed(store)
    storage.save(f"idempotency/{record_id()}/of-a-lost-lease", ContentFile(b"large"))
    with down("delete"), pytest.raises(StoreError, match=r"could not be deleted: OSError"):
        store.erase(lease.record_id)
    assert found(store).state is State.COMPLETED
    assert store.erase(lease.record_id)
    assert (objects(storage), store.get(lease.record_id)) == ([], None)
    assert not storage.exists(f"idempotency/{record_id()}")
    running = won(store.claim(asked()))
    storage.save(f"idempotency/{record_id()}/of-the-running", ContentFile(b"large"))
    assert not store.erase(running.record_id)
    assert len(objects(storage)) == 1


def test_erasure_takes_an_object_that_was_written_meanwhile(store, storage, monkeypatch):
    lease, delete = completed(store), store.table.delete

    def written_first(*given):
        storage.save(f"idempotency/{record_id()}/of-an-attempt", ContentFile(b"large"))
        delete(*given)

    monkeypatch.setattr(store.table, "delete", written_first)
    assert store.erase(lease.record_id)
    assert objects(storage) == []


def test_erasure_takes_the_folder_of_a_record_from_a_disk(store, settings, tmp_path, monkeypatch):
    """Also an empty one; one into which an attempt has written meanwhile stays, and is no error."""
    disk = {"BACKEND": "django.core.files.storage.FileSystemStorage"}
    settings.STORAGES = {
        **settings.STORAGES,
        "overflow": {**disk, "OPTIONS": {"location": tmp_path}},
    }
    folder = tmp_path / "idempotency" / str(record_id())
    assert (completed(store), [*folder.iterdir()]) != (None, [])
    for _ in range(2):
        assert store.erase(record_id())
        assert not folder.exists()
        folder.mkdir()
    (folder / "meanwhile").write_bytes(b"large")
    monkeypatch.setattr(FileSystemStorage, "listdir", lambda self, path: ([], []))
    assert store.erase(record_id())
    assert [it.name for it in folder.iterdir()] == ["meanwhile"]


@pytest.mark.parametrize("kind", ["moto", "dynalite"])
def test_first_byte_too_many_overflows(store, storage):
    """Up to it the item holds all, with the longest of everything."""
    longest = "\N{KEY}" * 255
    lease = won(store.claim(asked(scope=longest, operation=longest)))
    store.complete(lease, LARGE[:INLINE_BYTES], retention=HOUR)
    assert (found(store).result, objects(storage)) == (LARGE[:INLINE_BYTES], [])
    store.complete(won(store.claim(asked("more"))), LARGE[: INLINE_BYTES + 1], retention=HOUR)
    assert found(store, "more").result == LARGE[: INLINE_BYTES + 1]
    assert len(objects(storage)) == 1


@pytest.mark.parametrize(
    "backend", ["django.core.files.storage.InMemoryStorage", f"{__name__}.Overwriting"]
)
def test_I3_R68_completion_that_is_sent_again_leaves_the_first_result(store, settings, backend):
    settings.STORAGES = {**settings.STORAGES, "overflow": {"BACKEND": backend}}
    lease = completed(store)
    expires_at = found(store).expires_at
    assert store.complete(lease, os.urandom(TWO_MIB), retention=DAY) == expires_at
    assert lost(store.claim(asked())).result == LARGE


ALTERED = LARGE[:-1] + bytes((LARGE[-1] ^ 1,))


@pytest.mark.parametrize("content", [ALTERED, None], ids=["altered", "gone"])
def test_R62_result_whose_object_is_damaged_is_unavailable_and_never_a_run(
    store, storage, content, caplog
):
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


def test_R74_object_is_not_read_for_a_mismatch_nor_a_page_nor_an_expired_record(store, down, clock):
    completed(store)
    with down("_open"):
        [record] = store.browse().records
        assert (record.state, record.result) == (State.COMPLETED, None)
        assert lost(store.claim(OTHERS)).state is State.COMPLETED
        clock.advance(DAY)
        assert found(store).expired
        won(store.claim(asked()))


def test_R47_object_is_read_where_the_secret_of_the_record_is_gone(store):
    """The mismatch that the store sees has no result: the claim is sent once more."""
    for secret in (b"old", b"new"):
        asked_for = operation(fingerprint=b"\2" + secret + b"f" * 28)
        outcome = Engine(store).run(
            replace(asked_for, policy=replace(asked_for.policy, max_result_bytes=2 * TWO_MIB)),
            lambda lease: TEXT,
        )
    assert (outcome.replayed, outcome.result) == (True, TEXT)


@pytest.mark.parametrize(("option", "cause"), [({}, type(None)), (None, OSError)])
def test_R62_result_that_cannot_be_kept_is_too_large_and_changes_nothing(
    make_store, down, option, cause
):
    store = make_store(**({"overflow_storage": "overflow"} if option is None else option))
    lease = won(store.claim(asked()))
    with down("_save"), pytest.raises(ResultTooLarge, match="storage") as raised:
        store.complete(lease, LARGE[: INLINE_BYTES + 1], retention=HOUR)
    assert isinstance(raised.value.__cause__, cause)
    assert found(store).live


def test_R61_storage_that_does_not_answer_does_not_make_the_store_unreachable(store, down):
    """The record says that the work is done, so FAIL_OPEN must not run it again."""
    completed(store)
    with down("_open"), pytest.raises(StoreError) as raised:
        store.claim(asked())
    assert not raised.value.unreachable


def test_store_without_the_option_says_what_it_lacks(options, storage):
    shared = options()
    completed(DynamoDBStore(**shared, overflow_storage="overflow"))
    with pytest.raises(StoreError, match="overflow_storage"):
        DynamoDBStore(**shared).claim(asked())


# Calls.


@pytest.fixture
def api(settings, options, storage):
    given = options(overflow_storage="overflow")
    alias = {"BACKEND": BACKEND, "OPTIONS": given, "MAX_RESULT_BYTES": 2 * TWO_MIB}
    settings.IDEMPOTENCY = {"default": alias}
    return Api()


@pytest.mark.django_db(transaction=True)
def test_R62_call_whose_result_is_not_kept_never_means_a_second_run(api, down):
    async def awork(lease):
        return TEXT

    with down("_save"):
        outcomes = [
            idempotency.run(lambda lease: TEXT, key="run", scope="s"),
            asyncio.run(idempotency.arun(awork, key="arun", scope="s")),
        ]

    assert [(outcome.result, outcome.stored) for outcome in outcomes] == [(TEXT, False)] * 2
    for key in ("run", "arun"):
        with pytest.raises(ResultUnavailable):
            idempotency.run(lambda lease: pytest.fail("ran"), key=key, scope="s")


@pytest.mark.django_db(transaction=True)
def test_object_of_an_encrypted_answer_is_readable_with_its_key_and_for_its_record_alone(
    api, settings, storage
):
    settings.IDEMPOTENCY["default"]["ENCRYPTION_KEYS"] = [bytes(32)]
    answers = [api.then("large", key=key) for key in ("mine", "theirs")]
    stored = [storage.open(name).read() for name in objects(storage)]
    assert len(stored) == 2
    assert [it for it in stored for body in answers if body.content[:32] in it] == []
    assert api.then("large", key="mine").content == answers[0].content

    store = store_for()
    native, table = store.table.client.ready(), store.table.name
    mine, theirs = native.scan(TableName=table)["Items"]
    native.put_item(TableName=table, Item={**mine, "responsePayload": theirs["responsePayload"]})

    assert problem(api.then("large", key=mine["key"]["S"])) == (503, "store_unavailable")
    assert Effect.objects.count() == 2
