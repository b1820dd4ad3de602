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

import pytest

from example_project.demo.server import Server
from tests.services.processes import ROOT, marked, wait_until
from tests.services.servers import free_port

pytestmark = pytest.mark.processes


@pytest.fixture(autouse=True)
def own_temporary_directory(tmp_path, monkeypatch):
    """A demo that is killed cannot tidy up."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))


#: What a person may have set, and a test sets for itself. Credentials would lead to a bill.
OURS = ("AWS_", "EXAMPLE_", "IDEMPOTENCY_STORE", "DJANGO_SETTINGS_MODULE", "SERVE")
#: How the story calls each store that is not the database.
STORES = {
    "dynamodb": r"four processes, sqlite, records in dynalite\.",
    "redis": r"four processes, sqlite, records in (Valkey|Redis) [0-9.]+\.",
}
#: The books of the account that pays: before the story, expected and actual after it.
EVERYDAY = {
    "joined": "302.50 +232.50 +232.50",
    "single": "302.50 +232.50 +232.50",
    "separate": "282.50 +212.50 +212.50",  # one of the scenes before it is charged twice
}
PAGE = re.compile(r"http://127\.0\.0\.1:(\d+)(/\S*)\n")


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


def play(**environ: str) -> tuple[int, str]:
    with start(**environ) as process:
        try:
            output, _ = process.communicate(timeout=600)
        finally:
            process.terminate()
    return process.returncode, output


def wait_for_the_end_of(process: subprocess.Popen[str]) -> None:
    left = f"EXAMPLE_DEMO_PID={process.pid}"
    wait_until(lambda: not marked(left), seconds=60, what="the server to end")


def assert_told(output: str, mode: str = "joined") -> None:
    """Fail unless `output` is the whole story; the demo itself compares what comes of each step."""
    assert re.findall(r"(?m)^(\d+) +\S", output) == [str(n) for n in range(1, 19)], output
    assert "Every step came out right." in output, output
    looked = output.partition("A look at step 6")[2]
    assert re.search(r"attempts +[12]\n.*\n.*\n.*claimed .*\n.*completed ", looked), output
    assert re.search(r"It would get the stored result\..*\n +\n +201\n", looked), output
    assert re.search(rf"alice / everyday \(EUR\) +{EVERYDAY[mode]} +ok", output), output
    assert "WRONG" not in output
    table = output.partition("How often one payment was charged")[2]
    rows = re.findall(r"(?m)^    (?:the|two|it|records) .*?((?: +\d)+)$", table)
    killed = "2" if mode == "separate" else "1"
    naive = [["2", "2", "1"], ["2", "2", "1"], ["2", "2", killed]]
    assert [row.split() for row in rows] == [*naive, ["2"], ["2"], ["2"], ["1"]], output


def test_it_says_which_stores_there_are():
    said = f"IDEMPOTENCY_STORE=paper: one of {', '.join(['database', *STORES])}\n"
    assert play(IDEMPOTENCY_STORE="paper") == (1, said)


def test_it_fails_without_the_guard():
    code, output = play(EXAMPLE_GUARD="none")
    assert code == 1, output
    assert "charged: expected 1, got 2" in output.partition("With the library")[2]
    assert "Every step came out right." not in output


def test_the_port_is_the_one_that_is_asked_for_unless_it_is_taken(tmp_path):
    with Server(tmp_path, {}, port=free_port()) as first:
        taken = first.port
        with Server(tmp_path, {}, port=taken) as second:
            assert second.port != taken
    with Server(tmp_path, {}, port=taken) as third:
        assert third.port == taken


def test_it_tells_the_whole_story_and_serve_leaves_it_running_until_ctrl_c():
    """On the same port each time, if that is free, and with each page that it names."""
    with start(SERVE="1") as process:
        try:
            lines = itertools.takewhile(lambda line: "Ctrl-C ends" not in line, process.stdout)
            told = "".join(lines)
            assert process.poll() is None, told
            assert "18 steps" in told.partition("Without")[0], "it says what will happen"
            assert_told(told)
            pages = PAGE.findall(told.partition("Every step came out right.")[2])
            assert {"/admin/django_idempotency/idempotencyrecord/"} <= {page for _, page in pages}
            assert {port for port, _ in pages} == {"8000"} or "Port 8000 is taken" in told
            for login in ("admin, password admin-demo", "alice, password alice-demo"):
                assert login in told
            alice = f"Basic {base64.b64encode(b'alice:alice-demo').decode()}"
            for port, page in pages:
                url, headers = f"http://127.0.0.1:{port}{page}", {"Authorization": alice}
                with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
                    assert answer.status == 200, page
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=60) == 0
        finally:
            process.kill()
    wait_for_the_end_of(process)


@pytest.mark.parametrize(
    ("store", "number"), [("redis", signal.SIGTERM), ("dynamodb", signal.SIGKILL)]
)
@pytest.mark.skipif(sys.platform != "linux", reason="needs PR_SET_PDEATHSIG and /proc")
def test_its_servers_die_with_it(store, number):
    assert_ends(store, number)


def assert_ends(store: str, number: signal.Signals) -> None:
    with start(IDEMPOTENCY_STORE=store) as process:
        try:
            assert any("Alice pays" in line for line in process.stdout)
            assert marked(f"EXAMPLE_DEMO_PID={process.pid}")
            process.send_signal(number)
            assert process.wait(timeout=60) != 0
        finally:
            process.kill()
    wait_for_the_end_of(process)
