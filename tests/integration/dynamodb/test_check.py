"""System checks: the live table against what the store needs, with ``check --deploy``."""

from __future__ import annotations

from unittest import mock

import pytest
from django.core.files.base import ContentFile

from django_idempotency.exceptions import StoreError
from django_idempotency.stores.dynamodb import DynamoDBStore
from django_idempotency.stores.dynamodb.client import Client


def ids(store):
    """The ids of the messages, each of which must have a hint."""
    messages = store.check()
    assert all(message.hint for message in messages)
    return [message.id.removeprefix("django_idempotency.") for message in messages]


def turn_on_ttl(store, attribute="expiry"):
    specification = {"Enabled": True, "AttributeName": attribute}
    parameters = {"TableName": store.table.name, "TimeToLiveSpecification": specification}
    store.table.client.send("update_time_to_live", parameters)


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        ("ResourceNotFoundException", "idempotency_table --create"),
        ("AccessDeniedException", "dynamodb:DescribeTable"),
        ("NoCredentialsError", "credentials"),
        ("ConnectTimeoutError", "OPTIONS['endpoint_url']"),
        ("NoRegionError", "region_name"),
    ],
)
def test_E020_table_cannot_be_described_and_the_hint_fits_the_cause(monkeypatch, code, hint):
    refused = mock.Mock(side_effect=StoreError(f"No answer: {code}.", code=code))
    monkeypatch.setattr(Client, "send", refused)
    [message] = DynamoDBStore(table_name="t").check()
    assert (message.id, code in message.msg) == ("django_idempotency.E020", True)
    assert hint in message.hint


@pytest.mark.parametrize("sort_key", [None, "idempotencyKey"], ids=["another name", "a sort key"])
def test_E021_primary_key_is_another(options, sort_key):
    store = DynamoDBStore(**options(), ttl=False, partition_key="pk", sort_key=sort_key)
    assert ids(store) == ["E021"]


def test_E022_ttl_goes_by_another_attribute(store):
    turn_on_ttl(store, "ttl")
    assert ids(store) == ["E022"]


def test_W020_ttl_is_off_for_a_store_that_does_not_sweep(make_store):
    assert ids(make_store()) == ["W020"]
    assert ids(make_store(ttl=False)) == []


@pytest.mark.parametrize("consistency", ["EVENTUAL", "STRONG"])
def test_W021_last_writer_wins_between_replicas(store, monkeypatch, consistency):
    """moto knows no replicas: the description of the table is changed on its way."""
    turn_on_ttl(store)
    send = store.table.client.send
    replicas = [{"RegionName": "us-east-1"}, {"RegionName": "eu-west-1"}]

    def replicated(operation, parameters):
        answer = send(operation, parameters)
        if operation == "describe_table":
            answer["Table"] |= {"Replicas": replicas, "MultiRegionConsistency": consistency}
        return answer

    monkeypatch.setattr(store.table.client, "send", replicated)

    assert ids(store) == ([] if consistency == "STRONG" else ["W021"])
    assert consistency == "STRONG" or "us-east-1, eu-west-1" in store.check()[0].msg


def test_E023_storage_is_not_defined(make_store):
    assert ids(make_store(ttl=False, overflow_storage="nonesuch")) == ["E023"]


@pytest.mark.parametrize(
    ("method", "does"),
    [("_save", {"side_effect": OSError}), ("_open", {"return_value": ContentFile(b"another")})],
)
def test_E024_storage_that_an_object_does_not_come_back_from(make_store, storage, method, does):
    store = make_store(ttl=False, overflow_storage="overflow")
    with mock.patch.object(type(storage), method, **does):
        assert ids(store) == ["E024"]


def test_W022_storage_that_deletes_nothing(make_store, storage):
    store = make_store(ttl=False, overflow_storage="overflow")
    with mock.patch.object(type(storage), "delete", side_effect=PermissionError):
        assert ids(store) == ["W022"]
    storage.delete(f"idempotency/check/{storage.listdir('idempotency/check')[1][0]}")
    assert ids(store) == []
    assert storage.listdir("idempotency/check")[1] == []
