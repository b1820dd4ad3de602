"""The tests' settings behind PgBouncer in transaction mode, as Django's documentation has it."""

from __future__ import annotations

import os

from tests.settings import *  # noqa: F403
from tests.settings import DATABASES

for _database in DATABASES.values():
    _database["DISABLE_SERVER_SIDE_CURSORS"] = True
    if os.environ.get("IDEMPOTENCY_TEST_SERVER_SIDE_BINDING") == "1":
        _database["OPTIONS"]["server_side_binding"] = True
