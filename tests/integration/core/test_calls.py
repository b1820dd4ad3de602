"""The calls into our code, and the statements, of a request and a task: no more than there were."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.services.processes import ROOT

#: Calls and statements (SQLite) of each path, as `python -m benchmarks.calls` counts them. A change
#: that costs more says so here, and why in its commit; one that costs less lowers the line.
KNOWN = {
    "plain joined": ((148, 5), (91, 1)),
    "plain single": ((156, 5), (88, 1)),
    "plain separate": ((129, 3), (91, 1)),
    "drf joined": ((157, 5), (101, 1)),
    "drf single": ((165, 5), (98, 1)),
    "drf separate": ((138, 3), (101, 1)),
    "task joined": ((153, 5), (90, 1)),
    "task single": ((161, 5), (87, 1)),
    "task separate": ((134, 3), (90, 1)),
}


@pytest.mark.processes
def test_a_first_request_and_a_replay_cost_what_they_did() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.calls", "--json"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
        timeout=600,
    )
    found = json.loads(done.stdout)

    changed = {}
    for kind, paths in KNOWN.items():
        for path, (calls, statements) in zip(("first", "replay"), paths, strict=True):
            now = found.pop(f"{kind} {path}")
            if not 0.9 <= now[0] / calls <= 1.05 or now[1] != statements:
                changed[f"{kind} {path}"] = {"known": [calls, statements], "now": now}
    assert (changed, found) == ({}, {})
