"""Records that another version of the fingerprints wrote, or another secret (R47, R70, I6)."""

from __future__ import annotations

import logging
from datetime import timedelta
from decimal import Decimal
from functools import partial
from typing import Any

import pytest

import django_idempotency as idempotency
from django_idempotency import FingerprintMismatch, InProgress, codecs
from django_idempotency.claims import ClaimRequest, Resolution
from django_idempotency.codecs import JSONCodec
from django_idempotency.conf import store_for
from django_idempotency.keys import record_id
from django_idempotency.records import Record, State
from tests import version_1
from tests.unit.core.conftest import Call, configure, fail, kept, never

pytestmark = pytest.mark.django_db(transaction=True)

PAYLOAD = {"amount": 5}
STORED = codecs.pack(JSONCodec(), "stored", max_bytes=1000)


def run(job: Any, **changes: Any) -> Any:
    asked = {"key": "k", "scope": "s", "payload": PAYLOAD, "renew": False, **changes}
    return idempotency.run(job, **asked)


@pytest.fixture(params=[("run", "single"), ("arun", "memory")], ids="-".join)
def send(request: Any, settings: Any, clock: Any) -> Any:
    """A mode in which the database claims late, and a store that claims first."""
    caller, mode = request.param
    configure(settings, clock, mode)
    return partial(Call(caller, mode), payload=PAYLOAD, renew=False)


def bring_to(state: str, fingerprint: bytes, operation: str = "") -> None:
    """Leave a record in `state`, as a worker whose fingerprint is another leaves it."""
    lease = timedelta(seconds=-1) if state == "lapsed" else timedelta(minutes=1)
    held = version_1.claimed("call", "s", "k", fingerprint, operation, lease=lease)
    if state == "completed":
        store_for().complete(held, STORED, retention=timedelta(days=1))
    elif state == "failed":
        store_for().fail(held, "boom")


def written_under(secret: str) -> Any:
    """The fingerprint of the call in this module, under a secret."""
    requests: list[ClaimRequest] = []
    note = lambda lease: requests.append(lease.request)  # noqa: E731
    run(note, key="another", fingerprint_secrets=[secret])
    return requests[0].fingerprints[0]


def test_R47_the_copy_of_version_1_is_exact() -> None:
    """The hexadecimal values come from the last release that stored version 1."""
    forms = [
        *version_1.of_call({"amount": Decimal("10.00")}, "pay"),
        *version_1.of_call({"order_id": 1}, "", ["one", "two"]),
        *version_1.of_task({"order_id": 1, "amount": 5}),
    ]
    assert [form.hex() for form in forms] == [
        "0151993b3b0252c02465e1293e718b5b361270e197993d29029ac921bed798a3",
        "0130237dee3ee2e7e1b5c44e9af16b53a33cda37175b86d5076a62db47cb7822",
        "01a80b43337e7d750f5c8a320aac1acb5eb0e428ca294a6c28e51e1e150dcd6f",
        "01edd2b060ff3814f9f5011486001343ca9c4fd0423603f3850ceea77da60325",
        "0104247a981d23f81976c149e4dff9902725f5c885ddd7e5faf6fda828061ea4",
    ]


@pytest.mark.parametrize("secrets", [[], ["one", "two"]], ids=["plain", "secret"])
def test_R47_a_record_of_version_1_is_replayed(send: Any, secrets: list[str]) -> None:
    bring_to("completed", version_1.of_call(PAYLOAD, "pay", secrets[1:])[0], "pay")
    pay = partial(send, never, operation="pay", fingerprint_secrets=secrets)
    assert pay().result == "stored"
    for changes in ({"payload": {"amount": 6}}, {"operation": "refund"}):
        with pytest.raises(FingerprintMismatch):
            pay(**changes)


@pytest.mark.parametrize("state", ["failed", "lapsed"])
def test_R47_R70_I6_C15_a_record_of_version_1_is_claimed_and_keeps_its_fingerprint(
    send: Any, state: str
) -> None:
    """The old worker may have charged before it died: the gateway is to know the new one."""
    [old] = version_1.of_call(PAYLOAD)
    bring_to(state, old)
    with pytest.raises(FingerprintMismatch):
        send(never, payload={"amount": 6})
    derived = send(lambda lease: lease.derive_key("charge")).result
    assert derived == version_1.derived(record_id("call", "s", "k"), "charge")
    assert (kept().state, kept().fingerprint) == (State.COMPLETED, old)


def test_R47_I11_records_of_other_versions_are_a_mismatch(memory: Any) -> None:
    run(lambda lease: 1)
    old = tuple(version_1.of_call(PAYLOAD))
    claimed = memory.claim(ClaimRequest(record_id("call", "s", "k"), "s", "k", fingerprints=old))
    assert isinstance(claimed, Record)
    assert version_1.is_mismatch(claimed, list(old))
    memory._records.clear()
    bring_to("failed", b"\3" + b"x" * 31)
    with pytest.raises(FingerprintMismatch):
        run(never)


@pytest.mark.parametrize("state", ["completed", "failed", "lapsed", "in progress"])
def test_R47_I6_under_a_secret_that_is_gone_it_counts_as_equal(
    work: Any, send: Any, state: str, caplog: Any
) -> None:
    old, job = written_under("gone"), work("new")
    bring_to(state, old)
    caplog.set_level(logging.WARNING, "django_idempotency")
    if state == "in progress":
        with pytest.raises(InProgress):
            send(job)
    else:
        assert send(job).result == ("stored" if state == "completed" else "new")
    assert job.runs == (state in ("failed", "lapsed"))
    assert kept().fingerprint == old
    [warning] = [record for record in caplog.records if "secret that is gone" in record.msg]
    assert str(record_id("call", "s", "k"))[:12] in warning.getMessage()
    if state == "in progress":  # one that waits warns once
        with pytest.raises(InProgress):
            send(job, wait=0.06)
        assert caplog.text.count("secret that is gone") == 2


def test_R47_I11_another_operation_is_a_mismatch_although_its_secret_is_gone(memory: Any) -> None:
    run(lambda lease: 1, operation="charge", fingerprint_secrets=["gone"])
    with pytest.raises(FingerprintMismatch):
        run(never, operation="refund")


def test_R47_with_its_secret_among_the_fallbacks_it_is_compared(
    memory: Any, settings: Any, caplog: Any
) -> None:
    run(lambda lease: "first")
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "rotated", [settings.SECRET_KEY]
    assert run(never).replayed
    with pytest.raises(FingerprintMismatch):
        run(never, payload={"amount": 6})
    assert "secret that is gone" not in caplog.text


def derived(**changes: Any) -> str:
    keys: list[str] = []
    with pytest.raises(ValueError, match="boom"):
        run(lambda lease: keys.append(lease.derive_key("charge")) or fail(), **changes)
    return keys[0]


def test_C15_derived_key_is_equal_over_failures_rotations_and_take_overs(
    memory: Any, settings: Any
) -> None:
    first = derived()
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "rotated", [settings.SECRET_KEY]
    second = derived()
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "rotated twice", []
    assert first == second == derived() == derived(fingerprint_secrets=["own"])
    version_1.claimed("call", "s", "k", kept().fingerprint, lease=timedelta(seconds=-1))
    assert derived() == first


def test_C15_derived_key_is_another_for_another_request(memory: Any) -> None:
    """Per operation and key, and after an operator's release under the same key."""
    first = derived()
    record = kept()
    released = Resolution("release", record.epoch, record.state)
    assert memory.resolve(record.record_id, released)
    corrected = derived(payload={"amount": 6})
    assert len({first, corrected, derived(key="other"), derived(key="k2", operation="o")}) == 4
