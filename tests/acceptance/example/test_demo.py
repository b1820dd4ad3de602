"""The demo: it tells the whole story, fails when a step is wrong, and leaves nothing running."""

from __future__ import annotations

import base64
import itertools
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from example_project.demo.server import Server
from tests.services.processes import marked, wait_until

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[3]
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
    "12 A worker takes the money of an order, and sends a receipt",
    "payments in the books: 1",
    "receipts sent: 1",
    "13 The broker delivers the same message again",
    "the task gives the same payment",
    "14 10 messages at once ask for the payment of one order",
    "payments that they tell of: 1",
    "15 The mail server is down, so the receipt is tried again",
    "receipts sent: 1",
    "16 A process of the worker is killed in the middle of a payment",
    "payments in the books: 1",
    "17 The whole worker is killed in the middle of a payment",
    "payments in the books: 0",
    "payments in the books: 1",
    "The books",
    "accounts with a wrong balance: 0",
    "Every step came out right.",
]


@pytest.fixture(autouse=True)
def own_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A demo that is killed cannot tidy up."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))


#: What a person may have set, and a test sets for itself. Credentials would lead to a bill.
OURS = ("AWS_", "EXAMPLE_", "IDEMPOTENCY_STORE", "DJANGO_SETTINGS_MODULE", "SERVE")


def start(**environ: str) -> subprocess.Popen[str]:
    outside = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    return subprocess.Popen(
        [sys.executable, "-m", "example_project.demo"],
        cwd=ROOT,
        env={**outside, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


#: How the story calls each store that is not the database.
STORES = {
    "dynamodb": r"four processes, sqlite, records in dynalite\.",
    "redis": r"four processes, sqlite, records in (Valkey|Redis) [0-9.]+\.",
}


def play(**environ: str) -> tuple[int, str]:
    """Return the demo's exit code and output."""
    with start(**environ) as process:
        try:
            output, _ = process.communicate(timeout=180)
        finally:
            process.terminate()
    return process.returncode, output


def nothing_left(pid: int) -> bool:
    return not marked(f"EXAMPLE_DEMO_PID={pid}")


def assert_told(output: str) -> None:
    """Fail unless `output` is the whole story, in its order."""
    position = 0
    for line in STORY:
        position = output.find(line, position)
        assert position >= 0, f"{line!r} is missing, or not in its place:\n{output}"
    assert re.search(r"alice / everyday \(EUR\) +500.00 +430.00 +430.00 +ok", output), output
    assert "WRONG" not in output


def test_it_says_which_stores_there_are() -> None:
    code, output = play(IDEMPOTENCY_STORE="paper")
    assert code == 1
    assert output == f"IDEMPOTENCY_STORE=paper: one of {', '.join(['database', *STORES])}\n"


def test_it_fails_without_the_guard() -> None:
    code, output = play(EXAMPLE_UNGUARDED="1")
    assert code == 1, output
    assert "expected (201, True), got (201, False)" in output
    assert "Every step came out right." not in output


PAGE = re.compile(r"http://127\.0\.0\.1:(\d+)(/\S*)\n")


def test_the_port_is_the_one_that_is_asked_for_unless_it_is_taken(tmp_path: Path) -> None:
    with Server(tmp_path, {}) as first:
        taken = first.port
        with Server(tmp_path, {}, port=taken) as second:
            assert second.port != taken
    with Server(tmp_path, {}, port=taken) as third:
        assert third.port == taken


def test_it_tells_the_whole_story_and_serve_leaves_it_running_until_ctrl_c() -> None:
    """On the same port each time, if that is free, and with each page that it names."""
    with start(SERVE="1") as process:
        assert process.stdout is not None
        try:
            lines = itertools.takewhile(lambda line: "Ctrl-C ends" not in line, process.stdout)
            told = "".join(lines)
            assert process.poll() is None, told
            assert "17 steps" in told.partition("four processes")[0], "it says what will happen"
            assert_told(told)
            ports = {port for port, _ in PAGE.findall(told)}
            assert ports == {"8000"} or "Port 8000 is taken" in told
            for login in ("admin, password admin-demo", "alice, password alice-demo"):
                assert login in told
            for port, page in PAGE.findall(told):
                alice = {"Authorization": f"Basic {base64.b64encode(b'alice:alice-demo').decode()}"}
                asked = urllib.request.Request(f"http://127.0.0.1:{port}{page}", headers=alice)
                with urllib.request.urlopen(asked) as answer:
                    assert answer.status == 200, page
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=20) == 0
        finally:
            process.kill()
    wait_until(lambda: nothing_left(process.pid), seconds=5, what="the server to end")


@pytest.mark.parametrize(
    ("store", "number"),
    [("database", signal.SIGTERM), ("redis", signal.SIGKILL), ("dynamodb", signal.SIGKILL)],
)
@pytest.mark.skipif(sys.platform != "linux", reason="needs PR_SET_PDEATHSIG and /proc")
def test_its_servers_die_with_it(store: str, number: signal.Signals) -> None:
    with start(IDEMPOTENCY_STORE=store) as process:
        assert process.stdout is not None
        try:
            assert any("four processes" in line for line in process.stdout)
            assert not nothing_left(process.pid)
            process.send_signal(number)
            assert process.wait(timeout=20) != 0
        finally:
            process.kill()
    wait_until(lambda: nothing_left(process.pid), seconds=5, what="the server to end")
