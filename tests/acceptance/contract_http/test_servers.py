"""Rules that a socket or a process decides, and some of each group, under real servers."""

from __future__ import annotations

import pytest

from tests.acceptance.contract_http.served import Served, all_but
from tests.app.contract import declared, shop

pytestmark = [
    pytest.mark.processes,
    pytest.mark.leg("postgres18"),
    pytest.mark.xdist_group("contract_http"),  # which shares databases and servers
]

G, U = ("gunicorn",), ("uvicorn",)
BOTH = (*G, *U)


class TestViews(Served, declared.Views):
    project = "work"
    selection = {
        # What servers read, and refuse by themselves.
        "test_R5_what_no_string_is_made_of_is_400": BOTH,
        "test_R7_two_field_lines_are_400": BOTH,
        "test_R8_empty_is_invalid_and_not_missing": BOTH,
        "test_R12_safe_methods_pass_with_any_key": BOTH,
        "test_R43_raw_uploads_are_compared_byte_by_byte": BOTH,
        "test_R81_8_KB_of_path_are_no_500": BOTH,
        "test_R81_8_KB_of_query_are_no_500": BOTH,
        # What they write.
        "test_R28_every_success_replays_as_it_is": BOTH,
        "test_R29_bodies_are_byte_equal": BOTH,
        "test_R30_header_fields_of_the_answer_are_replayed": BOTH,
        "test_R62_files_are_kept": BOTH,
        "test_R62_what_cannot_be_kept_is_delivered_and_does_not_run_again": BOTH,
        "test_R79_logs_name_neither_key_nor_payload": BOTH,
        "test_R79_logs_of_failures_name_neither_key_nor_payload": BOTH,
        # Many connections, clients that hang up, processes that are killed, a database down.
        "test_R50_equal_requests_at_once_run_once": BOTH,
        "test_R59_killed_right_after_the_answer_a_retry_replays": BOTH,
        "test_R61_fail_open_runs_without_a_guard": G,
        "test_R61_store_down_at_the_claim_is_503": BOTH,
        "test_R63_a_client_that_hangs_up_leaves_no_half_done_work": BOTH,
        "test_R65_killed_in_the_work_a_retry_waits_for_the_lease_and_runs_once": BOTH,
        # What every server has to do.
        "test_R18_every_kind_of_view_behaves_alike": BOTH,
        "test_R25_replay_is_byte_equal": BOTH,
        "test_R49_second_while_the_first_runs_is_refused": BOTH,
    }
    leaves_out = all_but(selection)


class TestCoroutines(Served, declared.Coroutines):
    project = "work"
    selection = {
        "test_R46_chunked_equals_sized": U,
        "test_R49_second_while_the_first_runs_is_refused": U,
        "test_R50_equal_requests_at_once_run_once": BOTH,
        "test_R63_a_client_that_hangs_up_leaves_no_half_done_work": U,
    }
    leaves_out = all_but(selection)


class TestShop(Served, shop.Shop):
    project = "shop"
    selection = {
        "test_R15_a_body_that_cannot_be_read_leaves_the_key_free": G,
        "test_R20_a_refreshed_token_is_the_same_scope": G,
        "test_R25_replay_is_byte_equal": BOTH,
        "test_R27_replay_is_a_snapshot": G,
        "test_R35_an_answer_in_another_media_type_replays": G,
        "test_R83_claim_is_visible_while_the_view_runs_in_a_transaction": BOTH,
        "test_R89_a_double_click_runs_once_and_both_see_the_page": G,
        "test_R89_the_second_click_waits_for_the_first": BOTH,
        "test_R89_every_page_has_a_key_of_its_own": U,
        "test_R89_the_csrf_token_does_not_count": G,
        "test_R89_a_changed_form_gets_a_page_that_says_so": U,
        "test_R89_a_visitors_key_is_worth_nothing_to_another": G,
    }
    leaves_out = all_but(selection)
