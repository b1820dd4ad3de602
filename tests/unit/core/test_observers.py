"""Handlers of the log, receivers and instruments that raise: the work never meets their errors."""

from __future__ import annotations

import functools
import io
import logging
import os
import sys
from pathlib import Path
from subprocess import run as run_process

import pytest

import django_idempotency
from django_idempotency import observers, signals
from django_idempotency.contrib.opentelemetry.metrics import metrics as opentelemetry
from django_idempotency.contrib.prometheus.metrics import metrics as prometheus
from tests.pages import ROOT
from tests.unit.core.conftest import callers, run

LOGGER = logging.getLogger("django_idempotency")
both = callers([("run", "separate"), ("arun", "separate")])


@pytest.fixture(autouse=True)
def nothing_seen(monkeypatch, memory, caplog):
    monkeypatch.setattr(observers, "_seen", {})
    caplog.set_level(logging.INFO, logger=LOGGER.name)


class Broken(logging.Handler):
    def emit(self, record):
        raise OSError("the disk is full")


class Refusing(logging.Filter):
    def filter(self, record):
        raise OSError("the disk is full")


class Unreadable(logging.Formatter):
    def format(self, record):
        raise OSError("the disk is full")


def formatting():
    class Formatting(logging.Handler):
        def emit(self, record):
            self.format(record)

    handler = Formatting()
    handler.setFormatter(Unreadable())
    return handler


def filtered():
    handler = logging.StreamHandler(io.StringIO())
    handler.addFilter(Refusing())
    return handler


@both
@pytest.mark.parametrize("make", [Broken, filtered, formatting])
def test_error_of_a_log_handler_is_told_once_and_reaches_no_work(call, make, capsys):
    LOGGER.addHandler(handler := make())
    try:
        for key in ("a", "b", "a"):
            assert call(lambda lease: "done", key=key).result == "done"
    finally:
        LOGGER.removeHandler(handler)
    assert capsys.readouterr().err.count("OSError: the disk is full") == 1


def test_error_of_a_filter_or_a_record_factory_reaches_no_work(capsys, monkeypatch):
    LOGGER.addFilter(refusing := Refusing())
    try:
        assert run(lambda lease: "done").result == "done"
    finally:
        LOGGER.removeFilter(refusing)
    factory = logging.getLogRecordFactory()

    def broken(*args, **kwargs):
        raise LookupError("no tenant")

    logging.setLogRecordFactory(broken)
    try:
        assert run(lambda lease: "done").replayed
    finally:
        logging.setLogRecordFactory(factory)


def test_closed_error_stream_reaches_no_work(tmp_path, monkeypatch):
    LOGGER.addHandler(handler := Broken())
    stream = (tmp_path / "log").open("w")
    stream.close()
    monkeypatch.setattr(sys, "stderr", stream)
    try:
        assert run(lambda lease: "done").result == "done"
    finally:
        LOGGER.removeHandler(handler)


def test_interrupt_in_a_log_handler_passes():
    class Ending(logging.Handler):
        def emit(self, record):
            raise SystemExit(3)

    LOGGER.addHandler(handler := Ending())
    try:
        with pytest.raises(SystemExit):
            run(lambda lease: "done")
    finally:
        LOGGER.removeHandler(handler)


def test_a_line_names_the_place_in_the_code_that_wrote_it(caplog):
    run(lambda lease: "done")
    [line] = [record for record in caplog.records if record.name == LOGGER.name]
    assert (Path(line.pathname).name, line.funcName) == ("logs.py", "_log")


class Receiver:
    """Has no name of its own, as a partial has none."""

    def __call__(self, **facts):
        raise ZeroDivisionError("of a receiver")


@both
@pytest.mark.parametrize("receiver", [Receiver(), functools.partial(Receiver())])
def test_error_of_a_receiver_is_logged_once_and_reaches_no_work(
    call, receiver, caplog, monkeypatch
):
    for signal in (signals.claimed, signals.completed, signals.left):
        signal.connect(receiver)
    try:
        for key in ("a", "b", "a"):
            assert call(lambda lease: "done", key=key).result == "done"
        assert caplog.text.count("An error of the receiver") == 1
        monkeypatch.setattr(observers, "_QUIET", -1)
        call(lambda lease: "done", key="c")
        assert caplog.text.count("An error of the receiver") > 1
    finally:
        for signal in (signals.claimed, signals.completed, signals.left):
            signal.disconnect(receiver)
    assert "ZeroDivisionError: of a receiver" in caplog.text
    assert "django.dispatch" not in {record.name for record in caplog.records}


def test_error_of_the_sending_itself_reaches_no_work(caplog, monkeypatch):
    def refuses(sender):
        raise RuntimeError("no loop here")

    monkeypatch.setattr(signals.claimed, "_live_receivers", refuses)
    signals.claimed.connect(receiver := Receiver())
    try:
        assert run(lambda lease: "done").result == "done"
    finally:
        signals.claimed.disconnect(receiver)
    assert "RuntimeError: no loop here" in caplog.text


@both
@pytest.mark.parametrize("metrics", [prometheus, opentelemetry])
@pytest.mark.parametrize("instrument", ["store_calls", "attempts", "in_flight", "instrument"])
def test_error_of_an_instrument_is_logged_once_and_reaches_no_work(
    call, metrics, instrument, caplog, monkeypatch
):
    def broken(*args):
        raise FileNotFoundError("the directory is gone")

    monkeypatch.setattr(metrics, instrument, broken)
    metrics.connect()
    try:
        for key in ("a", "b", "a"):
            assert call(lambda lease: "done", key=key).result == "done"
        with pytest.raises(ZeroDivisionError):
            call(lambda lease: 1 / 0, key="c")
    finally:
        metrics.disconnect()
    observing = 2 if instrument == "in_flight" else 1  # a receiver of a claim, and one of its end
    assert caplog.text.count("FileNotFoundError: the directory is gone") == observing


GONE = """
import os, shutil
import django
from django.conf import settings
settings.configure(
    SECRET_KEY="secret",
    INSTALLED_APPS=["django_idempotency", "django_idempotency.contrib.prometheus"],
    IDEMPOTENCY={"default": {"BACKEND": "django_idempotency.stores.memory.MemoryStore"}},
)
django.setup()
import django_idempotency
shutil.rmtree(os.environ["PROMETHEUS_MULTIPROC_DIR"])
child = os.fork()  # whose files of values are made anew, in the directory that is gone
outcome = django_idempotency.run(lambda lease: 5, key="k", scope="s")
if child:
    assert os.waitpid(child, 0)[1] == 0
    print(outcome.result)
"""


@pytest.mark.processes
def test_directory_of_prometheus_may_vanish_while_processes_run(tmp_path):
    values = tmp_path / "values"
    values.mkdir()
    done = run_process(
        [sys.executable, "-c", GONE],
        cwd=ROOT,
        env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(values)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "5\n"), done.stderr
    assert "FileNotFoundError" in done.stderr


def test_each_line_of_the_package_goes_through_the_one_log():
    package = Path(django_idempotency.__file__).parent
    found = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if "getLogger(" in path.read_text()
    }
    assert found == {"observers.py", "client/policy.py"}, "write: from observers import logger"
