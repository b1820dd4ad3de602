"""The tutorial does what it says, typed into an empty folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tutorial import follow


@pytest.mark.processes
def test_the_tutorial_comes_out_right(tmp_path: Path) -> None:
    folder = tmp_path / "bank"
    folder.mkdir()

    assert "python manage.py idempotency_show order-2" in follow(folder)
