"""The projects and their servers."""

from __future__ import annotations

from tests.acceptance.contract_http.conftest import (  # noqa: F401
    contract_directory,
    other_session,
    projects,
    pytest_generate_tests,
    serve,
    shop_database,
)
