"""The fixtures of tests.integration.database."""

from __future__ import annotations

from tests.integration.database.conftest import *  # noqa: F403
