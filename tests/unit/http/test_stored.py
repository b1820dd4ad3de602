"""Section D, R47: what of a request is stored, under which secret, and what keys are derived of."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings as project
from django.urls import resolve
from django.utils.timezone import now
from rest_framework.request import Request
from rest_framework.response import Response

from django_idempotency.fingerprint import (
    VERSION,
    Fingerprint,
    canonical_json,
    canonical_payload,
)
from django_idempotency.models import IdempotencyRecord
from tests import version_1
from tests.unit.http.api import Api, problem, replayed
from tests.unit.http.conftest import InProgress, Mount, SetPolicy
from tests.unit.http.views import GuardedView

pytestmark = pytest.mark.django_db


def test_R47_only_hashes_are_stored(api: Api, mode: str) -> None:
    api(
        {"name": "first", "card": "4242424242424242", "then": "empty"},
        path="/effects/?hint=confidential",
        headers={"X-Hint": "confidential"},
    )

    record = IdempotencyRecord.objects.values().get()
    text = repr({name: bytes(v) if isinstance(v, memoryview) else v for name, v in record.items()})
    assert record["state"] == "COMPLETED"
    assert len(bytes(record["fingerprint"])) == 32
    assert bytes(record["fingerprint"])[0] == VERSION
    assert "4242" not in text
    assert "confidential" not in text


def test_R47_no_pin_comes_out_of_the_table(api: Api) -> None:
    """All 1 000 bodies are tried, with all that the table and the code tell."""
    api({"name": "123"})
    record = IdempotencyRecord.objects.get()
    stored = bytes(record.fingerprint or b"")
    before = [record.operation.encode(), b"effects/", canonical_payload({"args": [], "kwargs": {}})]
    line = [b"POST", record.operation.encode(), b"/effects/"]

    tails: set[bytes] = set()
    for pin in range(1_000):
        asked = [b"", b'json:{"name":"%03d"}' % pin]
        guessed = Fingerprint.of([*line, *asked], ["", "a guess"])
        guesses = [*guessed.forms, guessed.digest, *version_1.forms([*before, *asked])]
        tails.update(guess[-28:] for guess in guesses)

    assert len(tails) == 4_000
    assert stored[-28:] not in tails
    known = Fingerprint.of([*line, b"", b'json:{"name":"123"}'], [project.SECRET_KEY])
    assert stored == known.forms[0]  # with the secret, these parts are the ones


@pytest.mark.parametrize("state", ["completed", "failed"])
def test_R47_a_record_of_version_1_answers_its_request(
    api: Api, runs: list[str], state: str
) -> None:
    body = {"name": "first"} | ({"then": "returned", "status": 500} if state == "failed" else {})
    first = api(body)
    old = version_1_of(body)
    IdempotencyRecord.objects.update(fingerprint=old)

    assert problem(api({"name": "other"})) == (422, "idempotency_key_reused")
    again = api(body)

    assert (again.status_code, replayed(again)) == (first.status_code, state == "completed")
    assert len(runs) == (1 if state == "completed" else 2)
    assert bytes(IdempotencyRecord.objects.get().fingerprint) == old


def version_1_of(body: Any) -> bytes:
    """What version 1 made of the request whose record there is."""
    operation = IdempotencyRecord.objects.get().operation.encode()
    arguments = canonical_payload({"args": [], "kwargs": {}})
    asked = b"json:" + (canonical_json(json.dumps(body).encode()) or b"")
    route = resolve("/effects/").route.encode()
    return version_1.forms([operation, route, arguments, b"", asked])[0]


# Secrets.


def rotate(settings: Any, *, fallbacks: bool) -> None:
    settings.SECRET_KEY_FALLBACKS = [settings.SECRET_KEY] if fallbacks else []
    settings.SECRET_KEY = f"after {settings.SECRET_KEY}"


@pytest.mark.parametrize("fallbacks", [True, False])
def test_R47_rotation_of_the_secret_key(
    api: Api, mode: str, runs: list[str], settings: Any, fallbacks: bool, caplog: Any
) -> None:
    first = api()
    failed = {"name": "boom", "then": "returned", "status": 500}
    api(failed, key="failed")
    rotate(settings, fallbacks=fallbacks)

    again = api()
    retried = api(failed, key="failed")

    assert (replayed(again), again.content) == (True, first.content)
    assert (retried.status_code, replayed(retried)) == (500, False)
    assert ("secret that is gone" in caplog.text) is not fallbacks
    assert api({"name": "other"}).status_code == (422 if fallbacks else 201)
    assert api({"name": "other"}, path="/effects/?a=1").status_code == (422 if fallbacks else 201)
    assert runs == ["first", "boom", "boom"]


@pytest.mark.parametrize(("fallbacks", "code"), [(True, 422), (False, 409)])
def test_R47_R38_rotation_while_the_first_is_in_progress(
    api: Api, in_progress: InProgress, settings: Any, fallbacks: bool, code: int
) -> None:
    api()
    in_progress()
    rotate(settings, fallbacks=fallbacks)

    assert problem(api()) == (409, "in_progress")
    assert api({"name": "other"}).status_code == code


def test_R47_secrets_of_the_policy_take_the_place_of_the_key(
    api: Api, policy: SetPolicy, runs: list[str]
) -> None:
    policy(FINGERPRINT_SECRETS=["old"])
    api(key="before")
    policy(FINGERPRINT_SECRETS=["new", "old"])
    api(key="between")

    assert replayed(api(key="before"))
    assert api({"name": "other"}, key="before").status_code == 422
    policy(FINGERPRINT_SECRETS=["new"])
    assert replayed(api(key="between"))
    assert replayed(api(key="before"))  # its secret is gone: it cannot be compared
    policy(FINGERPRINT_SECRETS=[])
    assert api({"name": "other"}, key="between").status_code == 201
    assert len(runs) == 2


# What a key is derived of.


class Gateway(GuardedView):
    """Charges a card, under a derived key."""

    derived: list[str] = []

    def post(self, request: Request) -> Response:
        self.derived.append(request.idempotency.derive_key("charge"))
        return Response(status=400 if request.data["card"] == "mistyped" else 201)


@pytest.fixture
def derived() -> list[str]:
    Gateway.derived.clear()
    return Gateway.derived


def test_a_corrected_request_derives_another_key(
    api: Api, mount: Mount, derived: list[str]
) -> None:
    """A gateway that has refused the first one would repeat its refusal under the same key."""
    url = mount(Gateway)

    for card in ("mistyped", "mistyped", "right"):
        api({"card": card}, path=url)

    assert derived[0] == derived[1] != derived[2]


def test_another_amount_after_the_retention_derives_another_key(
    api: Api, mount: Mount, derived: list[str]
) -> None:
    url = mount(Gateway)

    for amount in (5, 6):
        assert api({"card": "right", "amount": amount}, path=url).status_code == 201
        IdempotencyRecord.objects.update(expires_at=now() - timedelta(seconds=1))

    assert derived[0] != derived[1]
