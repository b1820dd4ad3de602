"""What the benchmarks measure with: the load, the targets, the files that a run leaves."""

from __future__ import annotations

import importlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from xml.etree import ElementTree

import pytest

from benchmarks import figures
from benchmarks.__main__ import TABLES
from benchmarks.figures import Target
from benchmarks.load import payment, send_all
from benchmarks.worker import first_and_replay


class Payments(BaseHTTPRequestHandler):
    """Takes each payment once, and answers in two writes, in chunks or with a length."""

    protocol_version = "HTTP/1.1"
    taken: list[str] = []

    def do_POST(self):
        key = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["key"]
        self.send_response(409 if key in self.taken else 201)
        chunked = len(self.taken) % 2
        self.send_header(*(("Transfer-Encoding", "chunked") if chunked else ("Content-Length", 2)))
        self.end_headers()
        self.wfile.write(b"2\r\n{}\r\n0\r\n\r\n" if chunked else b"{}")
        self.taken.append(key)

    def log_message(self, *args):
        """Say nothing."""


def test_load_counts_what_was_done_and_what_was_refused():
    with ThreadingHTTPServer(("127.0.0.1", 0), Payments) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        requests = [payment(f"key {number % 15}") for number in range(20)]
        answer = send_all(server.server_port, requests, connections=1)
        server.shutdown()
        serving.join()
    assert Payments.taken == [f"key {number % 15}" for number in range(20)]
    assert answer["refused"] == 5
    assert len(answer["us"]) == 20
    assert answer["per_second"] > 0


def test_run_leaves_rounds_and_targets_and_a_plot(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(figures, "PLOTS", tmp_path / "plots")
    commands = first_and_replay(lambda key: None)
    answers = {"ours": {"first": [commands["first"](30)]}}
    targets = [Target("slow", 2.0, at_most=1.5), Target("fast", 400, at_least=400)]
    figures.save("one", {"rounds": figures.short(answers)}, targets)
    figures.plot("one", "A & B", {"ours": 0.5, "theirs": 2.0}, unit="times", ours={"ours"})

    found = json.loads((tmp_path / "results" / "one.json").read_text())
    assert [(target["wanted"], target["met"]) for target in found["targets"]] == [
        ("≤ 1.50", False),
        ("≥ 400", True),
    ]
    assert found["rounds"]["ours"]["first"][0].keys() == {"p50_us", "p99_us", "cpu_us"}
    assert figures.verdicts(targets).count("MISSED") == 1
    drawn = ElementTree.fromstring((tmp_path / "plots" / "one.svg").read_text())
    widths = [node.get("width") for node in drawn.iter() if node.get("class") in ("bar", "other")]
    assert [float(width or 0) for width in widths] == [110, 440]


@pytest.mark.parametrize("name", TABLES)
def test_each_table_can_be_run_alone(name):
    assert callable(importlib.import_module(f"benchmarks.{name}").run)
