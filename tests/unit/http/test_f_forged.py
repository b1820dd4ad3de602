"""R95: what a store gives back is input; a forged record is a 503 with its cause, and no more."""

from __future__ import annotations

from dataclasses import replace

import pytest

import django_idempotency as idempotency
from django_idempotency import StoreError
from django_idempotency.conf import store_for
from django_idempotency.models import IdempotencyRecord
from django_idempotency.stores.memory import MemoryStore
from tests.unit.http.api import Api, problem
from tests.unit.http.conftest import SetPolicy
from tests.unit.http.forged import FORGED, each_is_a_503

pytestmark = pytest.mark.django_db(transaction=True)


def test_R95_forged_record_of_the_database(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    each_is_a_503(api, lambda result: IdempotencyRecord.objects.update(result=result), caplog)


def test_R95_empty_fingerprint_of_the_database(api: Api) -> None:
    api()
    IdempotencyRecord.objects.update(fingerprint=b"")

    assert problem(api()) == (503, "store_unavailable")


def test_R95_forged_record_in_memory(
    api: Api, policy: SetPolicy, caplog: pytest.LogCaptureFixture
) -> None:
    policy(BACKEND="django_idempotency.stores.memory.MemoryStore")
    store = store_for("default")
    assert isinstance(store, MemoryStore)

    def write(result: bytes) -> None:
        [(record_id, record)] = store._records.items()
        store._records[record_id] = replace(record, result=result)

    each_is_a_503(api, write, caplog)


@pytest.mark.parametrize("name", ["cut short", "newer", "foreign codec", "NUL"])
def test_R95_forged_result_of_a_call_is_a_StoreError(name: str) -> None:
    def call() -> object:
        return idempotency.run(lambda lease: {"a": 1}, key="k", scope="s").result

    assert call() == {"a": 1}
    IdempotencyRecord.objects.update(result=FORGED[name])

    with pytest.raises(StoreError, match="The stored result"):
        call()
