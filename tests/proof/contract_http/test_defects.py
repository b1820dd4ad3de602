"""A guard with a defect fails each of the rules that are to find it, and no sound one does."""

from __future__ import annotations

import pytest

from tests.app.contract.defects import FOUND_BY
from tests.unit.contract.test_http_defects import Spoilt, spoilt  # noqa: F401

PAIRS = [(defect, test) for defect in FOUND_BY for test in FOUND_BY[defect]]


@pytest.mark.parametrize(("defect", "test"), [*PAIRS, *(("", test) for _, test in PAIRS)])
def test_a_rule_finds_its_defects_alone(
    spoilt: Spoilt,  # noqa: F811
    defect: str,
    test: str,
) -> None:
    spoilt.defect = defect
    rule = getattr(spoilt, test)

    if not defect:
        rule()
    else:
        with pytest.raises(AssertionError):
            rule()
