"""A guard with a defect fails the rule that is meant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.app.contract import declared
from tests.app.contract.defects import AFTER, BEFORE, FOUND_BY
from tests.app.contract.in_process import IN_MEMORY, in_process


class Spoilt(declared.Views):
    """The views of these tests, behind a middleware that has the defect."""

    patience = 1
    defect = ""

    def sign(self, user: str, field: str | None, payload: bytes) -> Mapping[str, str]:
        return {**super().sign(user, field, payload), "X-Defect": self.defect}


@pytest.fixture
def spoilt(transactional_db: None, tmp_path: Path) -> Iterator[Spoilt]:
    contract = Spoilt()
    contract.directory = tmp_path
    with in_process(tmp_path, "wsgi", IN_MEMORY) as contract.transport:
        yield contract


@pytest.mark.parametrize("defect", FOUND_BY)
def test_a_defect_is_found(spoilt: Spoilt, defect: str) -> None:
    spoilt.defect = defect

    with pytest.raises(AssertionError):
        getattr(spoilt, FOUND_BY[defect][0])()


def test_every_defect_is_found() -> None:
    assert FOUND_BY.keys() == {*BEFORE, *AFTER}
