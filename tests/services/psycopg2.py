"""
``pytest -p tests.services.psycopg2``: Django talks to PostgreSQL through psycopg2.

The tests' own servers go on using psycopg 3, so both are there: Django does not see the newer one.
"""

from __future__ import annotations

import builtins
from typing import Any

import pytest

#: Tests of what psycopg 3 alone does: it prepares, has a pool, and knows of a ROLLBACK that it did
#: not send itself.
OF_PSYCOPG_3 = (
    *("test_last_statement.py", "test_pools.py", "test_prepared.py", "test_statement_counts.py"),
    *("a_prepared_statement_follows", "a_few_schemas_only"),
    *("keepalive_settings", "parents_pool", "sent_a_rollback", "failed_with_all_connections"),
    *("pool_whose_connections_are_in_use", "a_pool_gives_back"),
)
_import = builtins.__import__


def _import_for_django(
    name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
) -> Any:
    importer = (globals or {}).get("__name__", "")
    if level == 0 and name.partition(".")[0] == "psycopg" and importer.startswith("django."):
        raise ImportError(name)
    return _import(name, globals, locals, fromlist, level)


builtins.__import__ = _import_for_django


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    from django.db import connections

    connection: Any = connections["default"]
    assert connection.Database.__name__ == "psycopg2"
    others = [item for item in items if any(name in item.nodeid for name in OF_PSYCOPG_3)]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if item not in others]
