"""The settings of databases that the documentation gives: servers and SQLite take them."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.db import connections
from django.db.utils import ConnectionHandler

from tests.pages import BLOCKS, Block, code_in, table_of


def documented_database(engine: str) -> Block:
    blocks = [b for b in BLOCKS if (b.marker, b.page.name) == ("settings", "databases.md")]
    [block] = [b for b in blocks if f'"django.db.backends.{engine}"' in b.text]
    return block


def connect(block: Block) -> Any:
    """Return a connection with the documented settings to the database of the tests."""
    names: dict[str, Any] = {}
    exec(block.compiled(), names)
    documented, ours = names["DATABASES"]["default"], connections["default"].settings_dict
    where = {key: ours[key] for key in ("NAME", "HOST", "PORT", "USER", "PASSWORD")}
    return ConnectionHandler({"default": {**documented, **where}})["default"]


@pytest.mark.leg("postgres18")
def test_R65_server_takes_the_keepalive_settings(transactional_db: None) -> None:
    block = documented_database("postgresql")
    asked = dict(re.findall(r"-c (\w+)=(\w+)", block.text))
    described = [code_in(row[0]) for row in table_of(block.page, "### Dead hosts")]
    connection = connect(block)
    try:
        with connection.cursor() as cursor:
            found = {}
            for name in described:
                cursor.execute(f"SHOW {name}")
                [found[name]] = cursor.fetchone()
    finally:
        connection.close()
        connection.close_pool()
    assert len(asked) == 4
    assert found == {**found, **asked}


@pytest.mark.leg("sqlite")
def test_SQLite_takes_the_settings(transactional_db: None) -> None:
    connection = connect(documented_database("sqlite3"))
    try:
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA journal_mode")
            [mode] = cursor.fetchone()
            cursor.execute("PRAGMA busy_timeout")
            [timeout] = cursor.fetchone()
            cursor.execute("PRAGMA journal_mode=DELETE")
    finally:
        connection.close()
    assert (mode, timeout) == ("wal", 20_000)
