"""Encrypted answers in the table of PostgreSQL, SQLite and MariaDB."""

from __future__ import annotations

import pytest
from django.db import connection

from django_idempotency.models import IdempotencyRecord
from tests.integration.stories import Behind, EncryptionStory


class TestEncryption(EncryptionStory):
    @pytest.fixture(params=["single", "joined", "separate"])
    def alias(self, request):
        return {"TRANSACTION": request.param}

    @pytest.fixture
    def behind(self):
        class InTheTable(Behind):
            def everything(self):
                with connection.cursor() as cursor:
                    cursor.execute("SELECT * FROM idempotency_record")
                    rows = cursor.fetchall()
                return repr(
                    [[bytes(v) if isinstance(v, memoryview) else v for v in row] for row in rows]
                ).encode()

            def put(self, record_id, result):
                IdempotencyRecord.objects.filter(pk=record_id).update(result=result)

            def damage(self, record_id):
                IdempotencyRecord.objects.filter(pk=record_id).update(fingerprint=b"")

        return InTheTable()
