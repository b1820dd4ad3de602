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
    leaves_out = dict.fromkeys(
        (
            "test_R51_at_the_end_of_its_patience_a_duplicate_is_refused",
            "test_R69_work_longer_than_its_lease_is_not_taken_over",
            "test_R73_R74_after_retention_it_runs_anything_and_not_before",
        ),
        "takes seconds: see tests/integration/contract_http",
    )

    @pytest.fixture(autouse=True)
    def _transport(self, tmp_path: Path) -> Iterator[None]:
        self.directory = tmp_path
        with in_process(tmp_path, "wsgi", IN_MEMORY) as self.transport:
            yield
