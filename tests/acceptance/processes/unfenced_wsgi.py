"""
The tests' Django with a defect on demand: IDEMPOTENCY_TEST_UNFENCED=1 completes without a fence.

What everyone's first version does: the owner's last write asks for the record's id and no more.
"""

from __future__ import annotations

import os

from django_idempotency.stores.database import postgresql, sqlite
from tests.services.wsgi import application

__all__ = ["application"]

UNFENCED_POSTGRESQL = """
UPDATE idempotency_record
   SET state = 'COMPLETED', result = %(result)s::bytea, lease_until = NULL, error = '',
       updated_at = clock_timestamp(),
       expires_at = clock_timestamp() + %(retention)s::interval
 WHERE id = %(id)s::uuid
RETURNING expires_at AT TIME ZONE 'UTC'
"""

UNFENCED_SQLITE = """
UPDATE idempotency_record
   SET state = 'COMPLETED', result = %(result)s, lease_until = NULL, error = '',
       updated_at = strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now'),
       expires_at = strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now', %(retention)s)
 WHERE id = %(id)s
RETURNING expires_at
"""

if os.environ.get("IDEMPOTENCY_TEST_UNFENCED") == "1":
    postgresql.COMPLETE = UNFENCED_POSTGRESQL
    sqlite.COMPLETE = UNFENCED_SQLITE
