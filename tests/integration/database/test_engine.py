"""The rules of the engine that a database's own transactions decide, on each database."""

from __future__ import annotations

import pytest

from tests.unit.core.conftest import call, clock, in_loop, memory, mode, work
from tests.unit.core.test_engine import TestConcurrency, TestErrors, TestNested
from tests.unit.core.test_transactions import TestInsideTheCallersTransaction
from tests.unit.core.test_work_rolled_back import TestInterleaved

__all__ = [
    "TestConcurrency",
    "TestErrors",
    "TestInsideTheCallersTransaction",
    "TestInterleaved",
    "TestNested",
    "call",
    "clock",
    "in_loop",
    "memory",
    "mode",
    "work",
]

pytestmark = pytest.mark.leg("postgres18", "sqlite", "mariadb")
