"""The demo: it tells the whole story, fails when a step is wrong, and leaves nothing running."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.services.processes import marked, wait_until

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[1]
STORY = [
    "1  Alice pays 12.50 EUR",
    "2  She did not see the answer, and sends the same again",
    "(Idempotency-Replayed: true)",
    "the same bytes as the first time",
    "3  The same key, by mistake, for another amount",
    "422 Unprocessable",
    "idempotency_key_reused",
    "4  A payment without a key",
    "400 Bad Request",
    "5  20 clients at once with one key",
    "clients that made the payment: 1",
    "all others: 409 or a replay: 19",
    "6  A server process is killed in the middle of a payment",
    "409 Conflict in_progress",
    "the retry finishes it",
    "7  Bob happens to use the key of Alice's first payment",
    "he makes one of his own",
    "8  A no is an answer, too",
    "402 Payment Required",
    "9  A transfer and a refund, each sent twice",
    "10 A visitor clicks twice on the button of the checkout",
    "302 Found (Idempotency-Replayed: true)",
    "one has placed the order",
    "both land on its page",
    "orders in the books: 1",
    "11 The whole server is killed, right after an answer",
    "the answer has survived",
    "The books",
    "accounts with a wrong balance: 0",
    "Every step came out right.",
]


@pytest.fixture(autouse=True)
def own_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A demo that is killed cannot tidy up."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def start(**environ: str) -> subprocess.Popen[str]:
    outside = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("EXAMPLE_", "DJANGO_SETTINGS_MODULE", "SERVE"))
    }
    return subprocess.Popen(
        [sys.executable, "-m", "example_project.demo"],
        cwd=ROOT,
        env={**outside, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def play(**environ: str) -> tuple[int, str]:
    """Return the demo's exit code and output."""
    with start(**environ) as process:
        try:
            output, _ = process.communicate(timeout=60)
        finally:
            process.terminate()
    return process.returncode, output


def nothing_left(pid: int) -> bool:
    return not marked(f"EXAMPLE_DEMO_PID={pid}")


def test_it_tells_the_whole_story() -> None:
    started = time.monotonic()
    code, output = play()
    assert code == 0, output
    position = 0
    for line in STORY:
        position = output.find(line, position)
        assert position >= 0, f"{line!r} is missing, or not in its place:\n{output}"
    assert re.search(r"alice / everyday \(EUR\) +500.00 +460.00 +460.00 +ok", output), output
    assert "WRONG" not in output
    assert time.monotonic() - started < 20


@pytest.mark.parametrize("transaction", ["single", "separate"])
def test_it_tells_the_same_in_the_other_modes(transaction: str) -> None:
    code, output = play(EXAMPLE_TRANSACTION=transaction)
    assert code == 0, output


def test_it_fails_without_the_guard() -> None:
    code, output = play(EXAMPLE_UNGUARDED="1")
    assert code == 1, output
    assert "expected (201, True), got (201, False)" in output
    assert "Every step came out right." not in output


def test_serve_leaves_it_running_until_ctrl_c() -> None:
    with start(SERVE="1") as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if "Ctrl-C" in line:
                    break
            assert process.poll() is None
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=20) == 0
        finally:
            process.kill()
    wait_until(lambda: nothing_left(process.pid), seconds=5, what="the server to end")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.skipif(sys.platform != "linux", reason="needs PR_SET_PDEATHSIG and /proc")
def test_the_server_dies_with_it(number: signal.Signals) -> None:
    with start() as process:
        assert process.stdout is not None
        try:
            assert "four processes" in process.stdout.readline()
            assert not nothing_left(process.pid)
            process.send_signal(number)
            assert process.wait(timeout=20) != 0
        finally:
            process.kill()
    wait_until(lambda: nothing_left(process.pid), seconds=5, what="the server to end")
