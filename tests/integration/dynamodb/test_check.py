"""System checks: the live table against what the store needs, with ``check --deploy``."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
from django.core import checks
from django.core.files.base import ContentFile

from django_idempotency.stores.dynamodb import DynamoDBStore
from django_idempotency.stores.dynamodb.client import CallFailed, Client
from tests.integration.dynamodb.conftest import BACKEND, MakeStore, Options


def found(store: DynamoDBStore) -> list[str]:
    """The ids of the messages, each of which must have a hint."""
    messages = store.check()
    assert all(message.hint for message in messages)
    return [message.id.removeprefix("django_idempotency.") for message in messages]


def turn_on_ttl(store: DynamoDBStore, attribute: str = "expiry") -> None:
    specification = {"Enabled": True, "AttributeName": attribute}
    store.table.client.send(
        "update_time_to_live",
        {"TableName": store.table.name, "TimeToLiveSpecification": specification},
    )


def test_E020_table_is_missing(url: str) -> None:
    store = DynamoDBStore(table_name="nonesuch", endpoint_url=url)

    assert found(store) == ["E020"]
    [message] = store.check()
    assert "ResourceNotFoundException" in message.msg
    assert "idempotency_table --create" in str(message.hint)


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        ("AccessDeniedException", "dynamodb:DescribeTable"),
        ("NoCredentialsError", "credentials"),
        ("ExpiredTokenException", "credentials"),
        ("ConnectTimeoutError", "OPTIONS['endpoint_url']"),
    ],
)
def test_E020_hint_fits_the_cause(monkeypatch: pytest.MonkeyPatch, code: str, hint: str) -> None:
    def refuse(client: Any, operation: str, parameters: Any) -> None:
        raise CallFailed(operation, code)

    monkeypatch.setattr(Client, "send", refuse)

    [message] = DynamoDBStore(table_name="t").check()

    assert (message.id, hint in str(message.hint)) == ("django_idempotency.E020", True)


def test_E020_no_region_is_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION")

    [message] = DynamoDBStore(table_name="t").check()

    assert "NoRegionError" in message.msg
    assert "region_name" in str(message.hint)


@pytest.mark.parametrize("sort_key", [None, "idempotencyKey"], ids=["another name", "a sort key"])
def test_E021_primary_key_is_another(options: Options, sort_key: str | None) -> None:
    store = DynamoDBStore(**options(), ttl=False, partition_key="pk", sort_key=sort_key)

    assert found(store) == ["E021"]


def test_E022_ttl_goes_by_another_attribute(store: DynamoDBStore) -> None:
    turn_on_ttl(store, "ttl")

    assert found(store) == ["E022"]


def test_attributes_that_were_renamed_are_compared(make_store: MakeStore) -> None:
    store = make_store(attributes={"expiry": "ttl"}, partition_key="PK", sort_key="SK")
    turn_on_ttl(store, "ttl")

    assert found(store) == []


def test_W020_ttl_is_off_for_a_store_that_does_not_sweep(make_store: MakeStore) -> None:
    assert found(make_store()) == ["W020"]
    assert found(make_store(ttl=False)) == []


@pytest.mark.parametrize("consistency", ["EVENTUAL", "STRONG"])
def test_W021_last_writer_wins_between_replicas(
    store: DynamoDBStore, monkeypatch: pytest.MonkeyPatch, consistency: str
) -> None:
    """moto knows no replicas: the description of the table is changed on its way."""
    turn_on_ttl(store)
    send = store.table.client.send
    replicas = [{"RegionName": "us-east-1"}, {"RegionName": "eu-west-1"}]

    def replicated(operation: str, parameters: Any) -> Any:
        answer = send(operation, parameters)
        if operation == "describe_table":
            answer["Table"] |= {"Replicas": replicas, "MultiRegionConsistency": consistency}
        return answer

    monkeypatch.setattr(store.table.client, "send", replicated)

    assert found(store) == ([] if consistency == "STRONG" else ["W021"])
    assert consistency == "STRONG" or "us-east-1, eu-west-1" in store.check()[0].msg


def test_E023_storage_is_not_defined(make_store: MakeStore) -> None:
    assert found(make_store(ttl=False, overflow_storage="nonesuch")) == ["E023"]


@pytest.mark.parametrize("method", ["_save", "_open"])
def test_E024_storage_that_an_object_does_not_come_back_from(
    make_store: MakeStore, storage: Any, method: str
) -> None:
    store = make_store(ttl=False, overflow_storage="overflow")
    with mock.patch.object(type(storage), method, side_effect=OSError):
        assert found(store) == ["E024"]
    with mock.patch.object(type(storage), "_open", return_value=ContentFile(b"another")):
        assert found(store) == ["E024"]


def test_W022_storage_that_deletes_nothing(make_store: MakeStore, storage: Any) -> None:
    store = make_store(ttl=False, overflow_storage="overflow")
    with mock.patch.object(type(storage), "delete", side_effect=PermissionError):
        assert found(store) == ["W022"]
    storage.delete(f"idempotency/check/{storage.listdir('idempotency/check')[1][0]}")

    assert found(store) == []
    assert storage.listdir("idempotency/check")[1] == []


def test_they_are_asked_for_at_deployment_only(settings: Any, options: Options) -> None:
    settings.IDEMPOTENCY = {"default": {"BACKEND": BACKEND, "OPTIONS": options()}}

    usual = checks.run_checks(tags=["idempotency"])
    deployment = checks.run_checks(tags=["idempotency"], include_deployment_checks=True)

    assert usual == []
    assert [message.id for message in deployment] == ["django_idempotency.W020"]
