"""R57, R58, R60, R91 where a server decides what commits: the tables of tests/unit/http."""

from __future__ import annotations

import pytest

from tests.unit.http.test_kept import (  # noqa: F401
    test_R60_work_that_cannot_be_completed_is_rolled_back,
)
from tests.unit.http.test_work import (  # noqa: F401
    doomed,
    test_R57_kept_and_committed_together,
    test_R60_success_of_work_that_went_with_its_connection_is_503,
    test_R90_R91_no_database_commits_what_another_rolls_back,
    test_R91_success_that_can_only_be_rolled_back_is_a_500,
)

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.leg("postgres18", "postgres16", "mariadb"),
]
