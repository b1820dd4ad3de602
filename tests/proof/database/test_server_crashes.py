"""The server goes down like in a power cut, in each mode."""

from __future__ import annotations

import pytest

from tests.integration.database import test_server_crashes as crashes
from tests.integration.database.test_server_crashes import engine, server, started  # noqa: F401

pytestmark = crashes.pytestmark

CASES = [
    (crashes.test_I8_crash_after_the_claim, "separate"),
    (crashes.test_I13_crash_after_the_commit, "single"),
    (crashes.test_I13_crash_after_the_commit, "separate"),
    (crashes.test_I13_crash_between_commit_and_hook, "joined"),
    (crashes.test_R61_server_that_is_down_at_the_claim, "single"),
    (crashes.test_R61_server_that_is_down_at_the_claim, "joined"),
]


@pytest.mark.parametrize(("crash", "mode"), CASES)
def test_I8_I13_R61_crash_in_another_mode(server, engine, crash, mode):  # noqa: F811
    crash(server, engine, mode)
