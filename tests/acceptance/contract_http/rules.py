"""
Which rules are shown from outside, and where: in process, or by which server.

``python -m tests.rules`` prints them.

A rule that nobody can see from outside is named with the test that proves it from inside.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import django

from django_idempotency.testing import HTTPContract
from tests.acceptance.contract_http.served import SERVERS, Served, runs_under

__all__ = ["NOT_FROM_OUTSIDE", "PLACES", "contracts", "shown"]

#: Where rules are shown; `make test` runs all but the last.
PLACES = ("in process", *SERVERS, "in proof")

#: The test that proves a rule which cannot be seen from outside.
NOT_FROM_OUTSIDE: Mapping[str, str] = {
    "R47": "tests/unit/http/test_fingerprint.py::test_R47_only_hashes_are_stored",  # what is stored
    "R54": "tests/integration/database/test_isolation.py::test_R54_duplicates_that_race_run_once",
    "R68": "tests/acceptance/processes/test_leases.py::"
    "test_R68_each_claim_has_a_new_token_and_a_greater_epoch",
    "R72": "tests/acceptance/processes/test_leases.py::"
    "test_R72_a_node_whose_clock_is_off_takes_over_in_time_and_holds_an_ordinary_lease",
    "R75": "tests/integration/database/test_reclaims.py::"
    "test_I9_R75_sweep_against_a_reclaim_that_commits_meanwhile",
    "R76": "tests/integration/database/test_reclaims.py::test_R76_swept_between_conflict_and_look",
    "R82": "tests/unit/views/test_checks.py::test_R82_browsers_may_send_the_key_and_read_the_mark",
    "R84": "tests/integration/database/test_testcase.py::test_R84_first_request_and_replay",
    "R85": "tests/integration/database/test_views.py::"
    "test_R85_lost_claim_does_not_poison_the_transaction_of_the_caller",
    "R87": "tests/integration/database/test_modes.py::"
    "test_R87_claim_and_replay_are_on_the_database_that_is_written",
    "R88": "tests/integration/database/test_pools.py::test_R88_keys_in_threads",
    "R91": "tests/unit/http/test_work.py::test_R91_success_that_can_only_be_rolled_back_is_a_500",
    "R92": "tests/unit/http/test_sessions.py::"
    "test_R92_rolled_back_work_leaves_session_and_messages",
    "R93": "tests/unit/http/test_bodies.py::test_R93_a_body_of_who_may_not_come_in_costs_nothing",
    "R94": "tests/unit/core/test_transactions.py::"
    "test_R84_R94_the_captured_completion_comes_before_the_hooks_of_the_block_alone",
    "R95": "tests/unit/http/test_kept.py::test_R95_forged_record_of_the_database",
    "R96": "tests/unit/http/test_keyless.py::"
    "test_R96_guarded_coroutine_is_refused_as_django_refuses_it",
    "R97": "tests/unit/forms/test_visitors.py::test_R97_a_form_of_a_stranger_leaves_nothing_behind",
}


def contracts() -> list[type[HTTPContract]]:
    """Return what is run: in process, under servers, and under servers by `make proof`."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    django.setup()
    from tests.acceptance.contract_http import test_servers as selected
    from tests.integration.contract_http import test_views as in_process
    from tests.proof.contract_http import test_servers as whole
    from tests.unit.contract import test_http_contract as in_memory

    return [
        contract
        for module in (in_memory, in_process, selected, whole)
        for contract in vars(module).values()
        if isinstance(contract, type)
        and issubclass(contract, HTTPContract)
        and contract.__module__ == module.__name__
    ]


def places(contract: type[HTTPContract], test: str) -> list[str]:
    """Return where a test of a contract is run."""
    if not issubclass(contract, Served):
        return ["in process"]
    return runs_under(contract, test) if contract.selection is not None else ["in proof"]


def shown() -> dict[str, dict[str, list[str]]]:
    """Return the tests of each rule by place: ``{"R1": {"gunicorn": ["TestShop::…", …], …}}``."""
    found: dict[str, dict[str, list[str]]] = {}
    for contract in contracts():
        for rule, names in contract.rules().items():
            by_place = found.setdefault(rule, {place: [] for place in PLACES})
            for name in names:
                for place in places(contract, name):
                    by_place[place].append(f"{contract.__name__}::{name}")
    return found
