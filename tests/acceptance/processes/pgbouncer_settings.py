"""The tests' settings behind PgBouncer in transaction mode, as Django's documentation has it."""

from __future__ import annotations

from tests.settings import *  # noqa: F403
from tests.settings import DATABASES

for _database in DATABASES.values():
    _database["DISABLE_SERVER_SIDE_CURSORS"] = True
    _database["OPTIONS"]["server_side_binding"] = True
