"""A guard with a defect fails the rule that is meant."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.acceptance.contract_http import test_views
from tests.acceptance.contract_http.defects import AFTER, BEFORE
from tests.services.servers import Server

pytestmark = [pytest.mark.processes, pytest.mark.leg("postgres18", "postgres16")]

#: A defect of `tests.acceptance.contract_http.defects`, and the tests of the contract that find it.
FOUND_BY: Mapping[str, list[str]] = {
    "keys in lower case": ["test_R11_keys_are_case_sensitive_and_byte_exact"],
    "keys cut short": ["test_R9_1_to_255_characters", "test_R9_256_characters_are_400"],
    "keys without parameters": ["test_R6_malformed_parameters_are_400"],
    "first of two keys": [
        "test_R7_two_field_lines_are_400",
        "test_R7_a_comma_is_400_unless_it_is_quoted",
    ],
    "one scope": [
        "test_R19_two_users_with_one_key_run_twice",
        "test_R22_a_key_that_somebody_used_looks_like_any_other",
    ],
    "anybody": [
        "test_R14_a_stranger_claims_no_key_and_gets_no_stored_body",
        "test_R21_a_stranger_with_a_key_is_told_that_it_has_no_scope",
    ],
    "no query": ["test_R40_query_counts"],
    "no guard": [
        "test_R1_missing_key_is_a_problem_that_says_where_to_read",
        "test_R25_replay_is_byte_equal",
        "test_R26_every_duplicate_is_a_replay",
        "test_R37_other_body_is_a_mismatch",
        "test_R49_second_while_the_first_runs_is_refused",
        "test_R50_equal_requests_at_once_run_once",
    ],
    "replays not marked": [
        "test_R25_replay_is_byte_equal",
        "test_R50_equal_requests_at_once_run_once",
    ],
    "everything marked": [
        "test_R2_without_a_key_it_runs_each_time",
        "test_R24_first_is_the_views_own",
        "test_R55_after_a_released_error_the_key_is_free",
    ],
    "replays of another status": ["test_R25_replay_is_byte_equal"],
    "replays of other bytes": ["test_R25_replay_is_byte_equal", "test_R29_bodies_are_byte_equal"],
    "replays with cookies": [
        "test_R30_header_fields_of_a_connection_are_not_replayed",
        "test_R30_header_fields_of_the_answer_are_replayed",
    ],
    "replays without Location": [
        "test_R25_replay_is_byte_equal",
        "test_R28_every_success_replays_as_it_is",
        "test_R30_header_fields_of_the_answer_are_replayed",
    ],
    "replays without Expires": [
        "test_R73_within_retention_it_replays_which_extends_nothing",
        "test_R77_the_end_of_retention_is_published",
    ],
    "replays that extend": ["test_R73_within_retention_it_replays_which_extends_nothing"],
    "may be stored in between": [
        "test_R31_replays_and_mismatches_are_never_stored_in_between",
        "test_R31_a_refusal_meanwhile_is_never_stored_in_between",
    ],
    "mismatch is 409": [
        "test_R23_one_key_on_two_endpoints_is_a_mismatch",
        "test_R37_other_body_is_a_mismatch",
        "test_R38_mismatch_beats_in_progress",
    ],
    "no Retry-After": [
        "test_R49_second_while_the_first_runs_is_refused",
        "test_R61_store_down_at_the_claim_is_503",
    ],
    "no Link": ["test_R1_missing_key_is_a_problem_that_says_where_to_read"],
    "problems tell the key": ["test_R79_problems_name_neither_key_nor_payload"],
    "missing is 422": [
        "test_R1_missing_key_is_a_problem_that_says_where_to_read",
        "test_R8_empty_is_invalid_and_not_missing",
    ],
}


class Spoilt(test_views.TestViews):
    """The views of these tests, behind a middleware that has the defect."""

    defect = ""

    def sign(self, user: str, field: str | None, payload: bytes) -> Mapping[str, str]:
        return {**super().sign(user, field, payload), "X-Defect": self.defect}


@pytest.fixture
def spoilt(serve: Callable[[str, str], Server], contract_directory: Path) -> Spoilt:
    contract = Spoilt()
    contract.ask_at(serve("work", "gunicorn"), contract_directory)
    contract.patience = 1
    return contract


@pytest.mark.parametrize(
    ("defect", "test"), [(defect, test) for defect in FOUND_BY for test in FOUND_BY[defect]]
)
def test_a_defect_is_found(spoilt: Spoilt, defect: str, test: str) -> None:
    spoilt.defect = defect

    with pytest.raises(AssertionError):
        getattr(spoilt, test)()


def test_every_defect_is_found() -> None:
    assert FOUND_BY.keys() == {*BEFORE, *AFTER}
