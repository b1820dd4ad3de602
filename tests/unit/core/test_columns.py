"""
Each column of the record stands wherever one must: what a new one lacks fails here, by its place.

The stores' own tests say whether it is kept; these need no server, for no vendor.
"""

from __future__ import annotations

import re
from dataclasses import fields
from datetime import datetime, timedelta, timezone
from uuid import UUID

import pytest
from django.contrib.admin import site
from django.db import connection

from django_idempotency.models import IdempotencyRecord
from django_idempotency.records import _KINDS, Record, State
from django_idempotency.stores.database.statements import DIALECTS
from django_idempotency.stores.dynamodb import expressions
from django_idempotency.stores.dynamodb.items import ATTRIBUTES, Names
from django_idempotency.stores.redis import rows, scripts
from django_idempotency.stores.text import _READERS, load

#: In the order of the model; `id` is the record id of a Record.
COLUMNS = [field.column for field in IdempotencyRecord._meta.concrete_fields]
OTHERS = COLUMNS[1:]
KEPT = [field.name for field in fields(Record) if field.name != "now"]
STATEMENTS = {
    f"{vendor} {name}": value
    for vendor, dialect in DIALECTS.items()
    for name, value in vars(type(dialect)).items()
    if name.isupper() and isinstance(value, str)
}


def statements(*names):
    """The statements of these names, of each vendor that has them."""
    found = {key: text for key, text in STATEMENTS.items() if key.split()[1] in names}
    return pytest.mark.parametrize("statement", found.values(), ids=found)


def one_line(text):
    return " ".join(text.split())


def test_model_and_record_are_alike():
    assert {"record_id", *OTHERS} == set(KEPT)
    assert {*OTHERS, "now"} == _KINDS.keys(), "records._KINDS"


@statements("LOOK", "LOOK_AGAIN", "BROWSE", "SINGLE_LOCK")
def test_statement_reads_every_column_in_the_models_order(statement):
    named = "|".join(COLUMNS)
    selected = statement.split("SELECT", 1)[1]
    read = re.findall(rf"\b(?<!%\()({named})\b", selected)
    assert read[: len(COLUMNS)] == COLUMNS


@statements("CLAIM", "SINGLE_INSERT")
def test_statement_inserts_every_column(statement):
    inserted = statement.split("idempotency_record (", 1)[1].split(")", 1)[0]
    assert re.findall(r"\w+", inserted) == COLUMNS


@statements("RECLAIM", "SINGLE_UPDATE")
def test_statement_sets_every_column(statement):
    changes = statement.split("   SET ", 1)[1].split("\n WHERE")[0]
    assert [name for name in OTHERS if not re.search(rf"\b{name}`? = ", changes)] == []


def test_scripts_of_redis_name_every_field():
    assert set(scripts.FIELDS) == set(OTHERS)
    listed = ", ".join(f"'{name}'" for name in scripts.FIELDS)
    for script in (scripts.CLAIM, scripts.LOOK):
        assert f"'HMGET', KEYS[1], {listed})" in one_line(script.text), script.name
    written = scripts.CLAIM.text.split("local fields", 1)[1]
    assert [name for name in OTHERS if f"'{name}'" not in written] == ["result"]


@pytest.mark.parametrize("name", ["CLAIM", "CLAIM_WITHOUT_EXPIRY"])
def test_claim_of_dynamodb_changes_every_attribute(name):
    update, _ = getattr(expressions, name)
    assert [name for name in ATTRIBUTES if not re.search(rf"#{name}\b", update)] == []


def test_text_has_every_field():
    assert set(_READERS) == set(KEPT)


def test_admin_shows_every_column():
    shown = {
        **{"short_id": "id", "fingerprint_hex": "fingerprint", "answer": "result"},
        **{"created": "created_at", "updated": "updated_at"},
        **{"leased": "lease_until", "expires": "expires_at"},
    }
    columns = [shown.get(name, name) for name in site._registry[IdempotencyRecord].fields]
    assert [name for name in COLUMNS if name not in columns] == ["token"]


# Records of release 0.1, which a later one reads; in a deploy, workers of both write.

ID, TOKEN = UUID(int=1), UUID(int=2)
NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
SECONDS = int(NOW.timestamp())
FIRST = {
    **{"record_id": ID, "scope": "scope", "key": "key", "operation": "pay"},
    **{"fingerprint": b"1" * 32, "state": State.COMPLETED, "epoch": 7, "token": TOKEN},
    **{"lease_until": None, "created_at": NOW, "updated_at": NOW, "expires_at": NOW},
    **{"attempts": 1, "result": b"done", "error": "", "now": NOW},
}


def test_record_has_a_default_for_what_the_first_release_did_not_keep():
    """A store of somebody else's makes records as it did."""
    assert Record(**FIRST).key == "key"


def test_text_of_the_first_release_can_be_read():
    text = (
        '{"record_id": "00000000-0000-0000-0000-000000000001", "scope": "scope", "key": "key", '
        '"operation": "pay", "fingerprint": "' + "31" * 32 + '", "state": "COMPLETED", '
        '"epoch": 7, "token": "00000000-0000-0000-0000-000000000002", "lease_until": null, '
        '"created_at": "2026-01-01 00:00:00+00:00", "updated_at": "2026-01-01 00:00:00+00:00", '
        '"expires_at": "2026-01-01 00:00:00+00:00", "attempts": 1, "result": "646f6e65", '
        '"error": ""}'
    )
    assert load(text, now=NOW) == Record(**FIRST)


def test_hash_of_the_first_release_can_be_read():
    micros = b"%d" % (SECONDS * 1_000_000)
    kept = {
        **{"scope": b"scope", "key": b"key", "operation": b"pay", "fingerprint": b"31" * 32},
        **{"state": b"COMPLETED", "epoch": b"7", "token": TOKEN.hex.encode()},
        **dict.fromkeys(("created_at", "updated_at", "expires_at"), micros),
        **{"attempts": b"1", "result": b"done", "error": b""},
    }
    answer = [[kept.get(name) for name in scripts.FIELDS], micros]
    assert rows.record_of(ID, answer) == Record(**FIRST)


def test_item_of_the_first_release_can_be_read():
    item = {
        "idempotencyKey": {"S": str(ID)},
        **{"scope": {"S": "scope"}, "key": {"S": "key"}, "operation": {"S": "pay"}},
        **{"status": {"S": "COMPLETED"}, "epoch": {"N": "7"}, "token": {"S": str(TOKEN)}},
        **{name: {"N": str(SECONDS)} for name in ("createdAt", "updatedAt", "expiry")},
        **{"fingerprint": {"B": b"1" * 32}, "attempts": {"N": "1"}},
        "responsePayload": {"B": b"done"},
    }
    assert Names("idempotencyKey", None, "", {}).record(item, NOW, timedelta(0)) == Record(**FIRST)


def test_worker_of_the_first_release_can_claim(db):
    """Its CLAIM knows the columns of migration 0001, and no other."""
    with connection.cursor() as cursor:
        cursor.execute(
            """INSERT INTO idempotency_record (
                      id, scope, key, operation, fingerprint, state, epoch, token,
                      lease_until, created_at, updated_at, expires_at, attempts, result, error)
               VALUES (%s, 'scope', 'key', 'pay', NULL, 'IN_PROGRESS', 7, %s,
                      NULL, '2026-01-01', '2026-01-01', NULL, 1, NULL, '')""",
            [ID.hex, TOKEN.hex],
        )
    assert IdempotencyRecord.objects.get().pk == ID
