"""Section D, R47: what of a request is stored, under which secret, and what keys are derived of."""

from __future__ import annotations

from typing import Any

import pytest
from django.conf import settings as project

from django_idempotency.fingerprint import (
    VERSION,
    Fingerprint,
    canonical_payload,
)
from django_idempotency.models import IdempotencyRecord
from tests import version_1
from tests.unit.http.api import replayed

pytestmark = pytest.mark.django_db


def test_R47_only_hashes_are_stored(api, mode):
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


def test_R47_no_pin_comes_out_of_the_table(api):
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


# Secrets.


def rotate(settings: Any, *, fallbacks: bool) -> None:
    settings.SECRET_KEY_FALLBACKS = [settings.SECRET_KEY] if fallbacks else []
    settings.SECRET_KEY = f"after {settings.SECRET_KEY}"


@pytest.mark.parametrize("fallbacks", [True, False])
def test_R47_rotation_of_the_secret_key(api, mode, runs, settings, fallbacks, caplog):
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


def test_R47_secrets_of_the_policy_take_the_place_of_the_key(api, policy, runs):
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
