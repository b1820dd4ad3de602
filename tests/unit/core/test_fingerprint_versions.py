"""Records that another version of the fingerprints wrote, or another secret (R47, R70, I6)."""

from __future__ import annotations

import logging
from contextlib import suppress
from datetime import timedelta
from decimal import Decimal
from functools import partial
from typing import Any

import pytest

import django_idempotency as idempotency
from django_idempotency import FingerprintMismatch, InProgress, codecs
from django_idempotency.claims import ClaimRequest
from django_idempotency.codecs import JSONCodec
from django_idempotency.conf import store_for
from django_idempotency.keys import record_id
from django_idempotency.records import Record, State
from tests import version_1
from tests.unit.core.conftest import Call, configure

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(params=["single", "memory"])
def mode(request: Any, settings: Any, clock: Any) -> str:
    """A mode in which the database claims late, and a store that claims first."""
    return configure(settings, clock, request.param)


PAYLOAD = {"amount": 5}
STATES = ["completed", "failed", "lapsed", "in progress"]
STORED = codecs.pack(JSONCodec(), "stored", max_bytes=1000)


def run(job: Any, **changes: Any) -> Any:
    asked = {"key": "k", "scope": "s", "payload": PAYLOAD, "renew": False, **changes}
    return idempotency.run(job, **asked)


CELLS = [("run", "single"), ("run", "memory"), ("arun", "joined"), ("arun", "separate")]


@pytest.fixture(params=CELLS, ids="-".join)
def send(request: Any, settings: Any, clock: Any) -> Any:
    """`run` and `arun`, each in two of the modes."""
    caller, mode = request.param
    configure(settings, clock, mode)
    return partial(Call(caller, mode), payload=PAYLOAD, renew=False)


def bring_to(state: str, fingerprint: bytes, operation: str = "") -> Any:
    """Leave a record in `state`, as a worker whose fingerprint is another leaves it."""
    lease = timedelta(seconds=-1) if state == "lapsed" else timedelta(minutes=1)
    held = version_1.claimed("call", "s", "k", fingerprint, operation, lease=lease)
    if state == "completed":
        store_for().complete(held, STORED, retention=timedelta(days=1))
    elif state == "failed":
        store_for().fail(held, "boom")
    return held.record_id


def kept(identifier: Any) -> Any:
    return store_for().get(identifier)


def written_under(secret: str) -> bytes:
    """The fingerprint of the call in this module, under a secret."""
    seen: list[ClaimRequest] = []

    def note(lease: Any) -> None:
        seen.append(lease.request)

    run(note, key="another", fingerprint_secrets=[secret])
    return seen[0].fingerprints[0]


class TestVersion1:
    """The hexadecimal values come from the last release that stored version 1."""

    def test_R47_the_copy_of_the_old_algorithm_is_exact(self) -> None:
        payload = {"amount": Decimal("10.00")}
        assert [form.hex() for form in version_1.of_call(payload, "pay")] == [
            "0151993b3b0252c02465e1293e718b5b361270e197993d29029ac921bed798a3"
        ]
        assert [form.hex() for form in version_1.of_call({"order_id": 1}, "", ["one", "two"])] == [
            "0130237dee3ee2e7e1b5c44e9af16b53a33cda37175b86d5076a62db47cb7822",
            "01a80b43337e7d750f5c8a320aac1acb5eb0e428ca294a6c28e51e1e150dcd6f",
            "01edd2b060ff3814f9f5011486001343ca9c4fd0423603f3850ceea77da60325",
        ]
        assert [form.hex() for form in version_1.of_task({"order_id": 1, "amount": 5})] == [
            "0104247a981d23f81976c149e4dff9902725f5c885ddd7e5faf6fda828061ea4"
        ]

    @pytest.mark.parametrize("form", ["plain", "secret"])
    def test_R47_a_record_of_version_1_is_replayed(self, work: Any, send: Any, form: str) -> None:
        secrets = ["one", "two"] if form == "secret" else []
        bring_to("completed", version_1.of_call(PAYLOAD, "pay", secrets[1:])[0], "pay")
        job = work("new")

        assert send(job, operation="pay", fingerprint_secrets=secrets).result == "stored"
        with pytest.raises(FingerprintMismatch):
            send(job, operation="pay", fingerprint_secrets=secrets, payload={"amount": 6})
        with pytest.raises(FingerprintMismatch):
            send(job, operation="refund", fingerprint_secrets=secrets)
        assert job.runs == 0

    @pytest.mark.parametrize("state", ["failed", "lapsed"])
    def test_R47_R70_I6_a_record_of_version_1_is_claimed_and_keeps_its_fingerprint(
        self, work: Any, send: Any, state: str
    ) -> None:
        [old] = version_1.of_call(PAYLOAD)
        identifier = bring_to(state, old)
        job = work("new")
        with pytest.raises(FingerprintMismatch):
            send(job, payload={"amount": 6})

        assert send(job).result == "new"

        assert (kept(identifier).state, kept(identifier).fingerprint) == (State.COMPLETED, old)
        assert job.runs == 1

    def test_C15_derived_keys_go_on_over_the_upgrade(self, mode: str, work: Any) -> None:
        """The old worker may have charged before it died: the gateway is to know the new one."""
        identifier = bring_to("failed", version_1.of_call(PAYLOAD)[0])

        outcome = run(lambda lease: lease.derive_key("charge"))

        assert outcome.result == version_1.derived(identifier, "charge")

    @pytest.mark.parametrize("result", ["done", ConnectionError()], ids=["completed", "failed"])
    def test_R47_I11_a_record_of_version_2_is_a_mismatch_to_version_1(
        self, mode: str, work: Any, result: Any
    ) -> None:
        with suppress(ConnectionError):
            run(work(result))
        old = version_1.of_call(PAYLOAD)

        claimed = store_for().claim(
            ClaimRequest(record_id("call", "s", "k"), "s", "k", fingerprints=tuple(old))
        )

        assert isinstance(claimed, Record)
        assert version_1.is_mismatch(claimed, old)

    def test_R47_a_later_version_is_a_mismatch(self, mode: str, work: Any) -> None:
        bring_to("failed", b"\3" + b"x" * 31)

        with pytest.raises(FingerprintMismatch):
            run(work(1))


class TestSecretThatIsGone:
    @pytest.mark.parametrize("state", STATES)
    def test_R47_I6_it_counts_as_equal_in_every_state(
        self, work: Any, send: Any, state: str, caplog: Any
    ) -> None:
        old = written_under("gone")
        identifier = bring_to(state, old)
        job = work("new")
        caplog.set_level(logging.WARNING, "django_idempotency")

        if state == "in progress":
            with pytest.raises(InProgress):
                send(job)
            assert job.runs == 0
        else:
            outcome = send(job)
            assert (outcome.replayed, job.runs) == (
                (True, 0) if state == "completed" else (False, 1)
            )
            assert outcome.result == ("stored" if state == "completed" else "new")

        assert kept(identifier).fingerprint == old
        [warning] = [record for record in caplog.records if "secret that is gone" in record.msg]
        assert str(identifier)[:12] in warning.getMessage()

    def test_R47_with_its_secret_among_the_fallbacks_it_is_compared(
        self, mode: str, work: Any, settings: Any, caplog: Any
    ) -> None:
        job = work("first")
        run(job)
        settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "rotated", [settings.SECRET_KEY]

        assert run(job).replayed
        with pytest.raises(FingerprintMismatch):
            run(job, payload={"amount": 6})
        assert "secret that is gone" not in caplog.text

    def test_R47_I11_another_operation_is_still_a_mismatch(self, mode: str, work: Any) -> None:
        run(work(1), operation="charge", fingerprint_secrets=["gone"])
        refund = work(1)

        with pytest.raises(FingerprintMismatch):
            run(refund, operation="refund")
        assert refund.runs == 0

    def test_R47_a_waiting_duplicate_warns_once(self, memory: Any, work: Any, caplog: Any) -> None:
        bring_to("in progress", written_under("gone"))

        with pytest.raises(InProgress):
            run(work(1), wait=0.1)

        assert caplog.text.count("secret that is gone") == 1


class TestDerivedKeys:
    """10.5: `derive_key` knows what was asked, and nothing of secrets."""

    @staticmethod
    def derived(**changes: Any) -> str:
        keys: list[str] = []

        def work(lease: Any) -> None:
            keys.append(lease.derive_key("charge"))
            raise ConnectionError

        with pytest.raises(ConnectionError):
            run(work, **changes)
        return keys[0]

    def test_another_request_under_the_key_derives_another(self, mode: str) -> None:
        first = self.derived()
        operator_releases()

        corrected = self.derived(payload={"amount": 6})

        assert corrected != first

    def test_it_is_equal_over_failures_and_rotations(self, mode: str, settings: Any) -> None:
        first = self.derived()
        settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "rotated", [settings.SECRET_KEY]
        second = self.derived()
        settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "rotated twice", []

        assert first == second == self.derived() == self.derived(fingerprint_secrets=["own"])

    def test_it_is_equal_over_a_take_over(self, mode: str) -> None:
        first = self.derived()
        fingerprint = kept(record_id("call", "s", "k")).fingerprint
        version_1.claimed("call", "s", "k", fingerprint, lease=timedelta(seconds=-1))

        assert self.derived() == first

    def test_it_differs_per_operation_and_key(self, mode: str) -> None:
        derived = {self.derived(), self.derived(key="other"), self.derived(key="k2", operation="o")}
        assert len(derived) == 3


def operator_releases() -> None:
    [record] = store_for().browse(limit=10).records
    assert store_for().resolve(record.record_id, "release", epoch=record.epoch, state=record.state)
