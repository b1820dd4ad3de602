"""Results encrypted at rest: the envelope, its keys, and what a mistake with them says."""

from __future__ import annotations

import base64
import subprocess
import sys
from dataclasses import replace
from datetime import datetime, timezone
from uuid import UUID

import pytest
from django.core.checks import run_checks
from django.test import override_settings
from django.views.debug import ExceptionReporter

from django_idempotency import StoreError
from django_idempotency.claims import ClaimRequest, placeholder
from django_idempotency.codecs import JSONCodec, is_encrypted, pack, unavailable, unpack
from django_idempotency.codecs.encryption import opened, sealed
from django_idempotency.conf import stores
from django_idempotency.engine import Attempt
from django_idempotency.leases import ItemLease
from django_idempotency.operators.facts import Reading
from django_idempotency.policy import Policy
from django_idempotency.records import State
from django_idempotency.stores.memory import MemoryStore
from tests.claims import operation
from tests.services.processes import ROOT
from tests.unit.core.conftest import MEMORY, callers, kept, never

JSON = JSONCodec()
KEY, OLD = bytes(range(32)), b"\xfb" * 32
ID, OTHER = UUID(int=1), UUID(int=2)
PLAIN = pack(JSON, "the secret " * 200, max_bytes=10_000)
SEALED = sealed(PLAIN, ID, (KEY, OLD))


def is_refused(envelope, record_id=ID, keys=(KEY,)):
    try:
        unpack(JSON, opened(envelope, record_id, keys))
    except StoreError as error:
        return "secret" not in str(error)
    return False


def test_result_is_read_under_each_key_that_is_still_there_and_a_plain_one_as_it_is():
    assert [opened(SEALED, ID, keys) for keys in ((KEY,), (OLD, KEY))] == [PLAIN] * 2
    for envelope in (PLAIN, unavailable(JSON), b"\x01", None):
        assert opened(envelope, ID, (KEY,)) is envelope
    assert sealed(PLAIN, ID, ()) is PLAIN
    assert sealed(PLAIN, ID, (KEY,)) != SEALED


def test_an_older_release_and_one_without_keys_refuse_it_and_nothing_of_it_is_readable():
    """Releases before encryption know the flags 0x01 and 0x02."""
    assert SEALED[1] & ~0x03
    assert SEALED[:1] + SEALED[2:7] == b"\x01\x04json"
    assert PLAIN[7:] not in SEALED
    with pytest.raises(StoreError, match="encryption_keys is empty"):
        unpack(JSON, SEALED)


def test_what_was_not_encrypted_for_this_record_is_refused():
    assert is_refused(SEALED, OTHER)
    assert is_refused(SEALED, keys=(OLD,))
    assert is_refused(SEALED, keys=())
    bits = [(byte, 1 << bit) for byte in range(len(SEALED)) for bit in range(8)]
    flipped = [SEALED[:at] + bytes((SEALED[at] ^ bit,)) + SEALED[at + 1 :] for at, bit in bits]
    assert [at for at, it in zip(bits, flipped, strict=True) if not is_refused(it)] == []
    assert [end for end in range(7, len(SEALED)) if not is_refused(SEALED[:end])] == []


TEXT = base64.b64encode(OLD).decode()


@pytest.mark.parametrize("key", [OLD, TEXT, TEXT.rstrip("="), TEXT.replace("+", "-")])
def test_a_key_is_32_bytes_or_their_base64_text(key):
    assert Policy(encryption_keys=key).problems() == []
    assert opened(sealed(PLAIN, ID, (OLD,)), ID, (key,)) == PLAIN


@pytest.mark.parametrize("key", ["", "hunter2hunter2", b"x" * 31, TEXT.encode(), TEXT + "A", 7])
def test_another_key_is_refused_by_its_place_and_stands_in_no_message(key):
    with override_settings(IDEMPOTENCY={"default": {"ENCRYPTION_KEYS": [KEY, key]}}):
        [error] = [it for it in run_checks() if it.id == "django_idempotency.E002"]
    assert "key 2 of 2" in error.msg
    assert "secrets.token_urlsafe(32)" in error.msg
    assert not key or str(key) not in error.msg
    for call in (sealed, opened):
        with pytest.raises(ValueError, match="key 2 of 2") as raised:
            call(PLAIN if call is sealed else SEALED, ID, (KEY, key))
        assert not key or str(key) not in str(raised.value)


def test_a_report_of_a_failed_decryption_shows_no_key():
    try:
        opened(SEALED, OTHER, (KEY,))
    except StoreError:
        report = ExceptionReporter(None, *sys.exc_info()).get_traceback_text()
    assert "encryption.py" in report
    assert repr(KEY)[2:20] not in report


def test_without_cryptography_keys_are_an_error_that_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    alias = {"BACKEND": MEMORY, "ENCRYPTION_KEYS": [KEY]}
    with override_settings(IDEMPOTENCY={"default": alias}):
        [error] = [it for it in run_checks() if it.id == "django_idempotency.E002"]
        with pytest.raises(Exception, match=r"pip install '\.\[encryption\]'"):
            stores["default"]
    assert "pip install '.[encryption]'" in error.msg


OFF = """
import sys
sys.modules["cryptography"] = None
import django
from django.conf import settings
settings.configure(IDEMPOTENCY={"default": {"BACKEND": "%s"}}, SECRET_KEY="s")
django.setup()
from django_idempotency import run
for replayed in (False, True):
    assert run(lambda lease: 7, key="k", scope="s").replayed is replayed
"""


@pytest.mark.processes
def test_without_keys_nothing_of_cryptography_is_imported():
    subprocess.run([sys.executable, "-c", OFF % MEMORY], cwd=ROOT, check=True, timeout=60)


def test_the_admin_shows_what_its_alias_has_the_key_of():
    asked = ClaimRequest(ID, "scope", "key")
    record = placeholder(asked, datetime.now(timezone.utc))
    record = replace(record, state=State.COMPLETED, result=SEALED)
    for keys, said in (([OLD, KEY], "the secret"), ([OLD], "put the key back"), ([], "holds none")):
        with override_settings(IDEMPOTENCY={"default": {"ENCRYPTION_KEYS": keys}}):
            answer = Reading(stores["default"], record).answer
            assert said in (answer.note or answer.text)
            answered = "store unavailable (503)" if answer.note else "get the stored result"
            assert answered in Reading(stores["default"], record).told


@callers([("run", "joined"), ("arun", "memory"), ("aattempt", "single"), ("decorated", "single")])
def test_each_caller_stores_ciphertext_and_gets_its_result_back(call):
    for work in (lambda lease: ["the secret"], never):
        assert call(work, encryption_keys=[KEY]).result == ["the secret"]
    with pytest.raises(StoreError, match="put the key back"):
        call(never, encryption_keys=[OLD])
    with pytest.raises(StoreError, match="encryption_keys is empty"):
        call(never)
    assert is_encrypted(kept().result)
    assert call(never, encryption_keys=[OLD, KEY]).replayed


def test_I4_the_item_of_a_lease_and_its_completion_are_the_same_bytes():
    """By them a store recognises what transact_item has written."""
    attempt = Attempt(operation(encryption_keys=(KEY,)), MemoryStore())
    lease = ItemLease(attempt.request, 1)
    lease.item_of = lambda envelope, retention: envelope
    attempt.take(lease)
    assert lease.transact_item("paid") == attempt.pack("paid")
    assert lease.transact_item("paid") != attempt.pack("paid twice")
