"""
Each column of the record stands wherever one must: what a new one lacks fails here, by its place.

The stores' own tests say whether it is kept; these need no server, for no vendor.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from uuid import UUID

from django.db import connection

from django_idempotency.models import IdempotencyRecord
from django_idempotency.records import KEPT, NAMED, Record, State
from django_idempotency.stores.database.rows import COLUMNS
from django_idempotency.stores.database.statements import DIALECTS
from django_idempotency.stores.dynamodb import expressions
from django_idempotency.stores.dynamodb.items import ATTRIBUTES, Names
from django_idempotency.stores.redis import rows, scripts
from tests.services.processes import ROOT

STATEMENTS = {
    f"{vendor} {name}": value
    for vendor, dialect in DIALECTS.items()
    for name, value in vars(type(dialect)).items()
    if name.isupper() and isinstance(value, str)
}


def statements(*names):
    """The statements of these names, of each vendor that has them."""
    return {key: text for key, text in STATEMENTS.items() if key.split()[1] in names}


def test_model_and_record_are_alike():
    assert {field.column for field in IdempotencyRecord._meta.concrete_fields} == set(COLUMNS)


def test_each_claim_of_sql_writes_every_column():
    found = {}
    for name, statement in statements("CLAIM", "CLAIM_OR_LOOK", "SINGLE_INSERT").items():
        inserted = statement.split("idempotency_record (", 1)[1].split(")", 1)[0]
        found[name] = set(COLUMNS) - set(re.findall(r"\w+", inserted))
    for name, statement in statements("RECLAIM", "SINGLE_UPDATE").items():
        changes = statement.split("   SET ", 1)[1].split("\n WHERE")[0]
        found[name] = {it for it in KEPT if not re.search(rf"\b{it}`? = ", changes)}
    assert {name: missing for name, missing in found.items() if missing} == {}


def test_claims_of_redis_and_dynamodb_write_every_column():
    written = scripts.CLAIM.text.split("local fields", 1)[1]
    assert [name for name in KEPT if f"'{name}'" not in written] == ["result"]
    for update, _ in (expressions.CLAIM, expressions.CLAIM_HELD, expressions.CLAIM_WITHOUT_EXPIRY):
        left = [name for name in ATTRIBUTES if not re.search(rf"#{name}\b", update)]
        assert left == ["steps"]  # a claim goes on behind them


def test_admin_shows_every_column():
    package = ROOT / "django_idempotency"
    page = package / "templates/django_idempotency/admin/record.html"
    places = (package / "admin/records.py", package / "admin/shown.py", page)
    text = "".join(place.read_text() for place in places)
    shown = re.findall(r"\brecord\.(\w+)", text)
    assert [name for name in KEPT if name not in {*NAMED, *shown}] == ["token"]


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


def test_hash_of_the_first_release_can_be_read():
    micros = b"%d" % (SECONDS * 1_000_000)
    kept = {
        **{"scope": b"scope", "key": b"key", "operation": b"pay", "fingerprint": b"31" * 32},
        **{"state": b"COMPLETED", "epoch": b"7", "token": TOKEN.hex.encode()},
        **dict.fromkeys(("created_at", "updated_at", "expires_at"), micros),
        **{"attempts": b"1", "result": b"done", "error": b""},
    }
    answer = [[kept.get(name) for name in KEPT], micros]
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
