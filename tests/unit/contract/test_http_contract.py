"""The rules of HTTP in this process, on a store in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.app.contract.declared import Views
from tests.app.contract.in_process import IN_MEMORY, in_process


@pytest.mark.django_db(transaction=True)
class TestViewsInMemory(Views):
    #: Work and answer cannot commit together.
    rolls_back = False

    @pytest.fixture(autouse=True)
    def _transport(self, tmp_path: Path) -> Iterator[None]:
        self.directory = tmp_path
        with in_process(tmp_path, "wsgi", IN_MEMORY) as self.transport:
            yield
