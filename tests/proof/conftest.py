"""The seed of the generated cases, which all workers of a run share."""

from __future__ import annotations

import os
from datetime import date

SEED = os.environ.setdefault("PAIRS_SEED", date.today().isoformat())


def pytest_report_header() -> str:
    """Say how to repeat the cases."""
    return f"pairs: make pairs SEED={SEED}"
