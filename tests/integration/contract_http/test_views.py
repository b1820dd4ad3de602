"""Every rule that can be seen from outside, on the tests' own views, in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.app.contract import declared
from tests.app.contract.in_process import in_process

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.leg("postgres18")]


class TestViews(declared.Views):
    @pytest.fixture(autouse=True)
    def _transport(self, tmp_path: Path) -> Iterator[None]:
        self.directory = tmp_path
        with in_process(tmp_path, "wsgi") as self.transport:
            yield


class TestCoroutines(declared.Coroutines):
    leaves_out = {
        **declared.Coroutines.leaves_out,
        **dict.fromkeys(
            ("R3", "R4", "R5", "R6", "R7", "R8", "R9", "R10", "R11", "R39", "R41", "R79", "R80"),
            "the same for every kind of view",
        ),
    }

    @pytest.fixture(autouse=True)
    def _transport(self, tmp_path: Path) -> Iterator[None]:
        self.directory = tmp_path
        with in_process(tmp_path, "asgi") as self.transport:
            yield
