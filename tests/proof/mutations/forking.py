"""The pytest plugin that collects once, and then runs tests with a change in a fork of its own."""

from __future__ import annotations

import gc
import json
import mmap
import os
import signal
import sys
import traceback
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from pathlib import Path
from types import FunctionType

import pytest
from asgiref.sync import SyncToAsync
from django.db import connections

from tests.proof.mutations.copies import changed
from tests.proof.mutations.exchange import NotExchanged, exchange, functions
from tests.services.processes import RUN_VARIABLE, marked, wait_until

#: The descriptors of the questions, and of the answers, which are lines of JSON.
ASKED, TOLD = "IDEMPOTENCY_TEST_ASKED", "IDEMPOTENCY_TEST_TOLD"
#: How a fork ends, beside pytest's codes 0, 1 and 5.
TIME_OUT, NOT_EXCHANGED, BROKEN = 70, 71, 72

_functions: list[FunctionType] = []


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool:
    """Answer questions, in place of running what was collected."""
    if session.testsfailed:
        return True  # not even unchanged
    _begin_what_tests_share(session)
    with open(int(os.environ[ASKED])) as asked, open(int(os.environ[TOLD]), "w") as told:
        print("{}", file=told, flush=True)
        for line in asked:
            print(json.dumps(_answer(session, **json.loads(line))), file=told, flush=True)
    return True


def _begin_what_tests_share(session: pytest.Session) -> None:
    """Set up a test of each class and module, so that all forks share servers and databases."""
    session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
    session.config.option.setuponly = True
    for item in {item.parent: item for item in session.items}.values():
        _run(item, session)
    session.config.option.setuponly = False
    connections.close_all()
    gc.collect()
    _functions.extend(functions())
    gc.freeze()  # a fork leaves the memory as it is shared


def _run(item: pytest.Item, then: pytest.Item | pytest.Session) -> None:
    """Run a test, and leave what it shares with the next; with all others, if it is the last."""
    item.ihook.pytest_runtest_protocol(item=item, nextitem=then)


def _answer(
    session: pytest.Session, file: str, text: str | None, tests: Sequence[str], patience: float
) -> dict[str, object]:
    """Return how the tests end with the change, and those that were run: the last one failed."""
    items = _chosen(session, tests)
    if not items:
        return {"code": int(pytest.ExitCode.NO_TESTS_COLLECTED), "tests": []}
    path = Path(file)
    old = "" if text is None else path.read_text()
    begun = mmap.mmap(-1, 8)
    mark = uuid.uuid4().hex
    with nullcontext() if text is None else changed(path, text):
        if not (pid := os.fork()):
            code = BROKEN
            try:
                os.setpgid(0, 0)
                os.environ[RUN_VARIABLE] = mark
                code = _in_fork(items, begun, file, old, text)
            except BaseException:
                traceback.print_exc(file=sys.__stderr__)
            finally:
                os._exit(code)
        code = _end_of(pid, mark, patience)
    count = int.from_bytes(begun[:], "big")
    return {"code": code, "tests": [item.nodeid for item in items[:count]]}


def _chosen(session: pytest.Session, words: Sequence[str]) -> list[pytest.Item]:
    """Return the tests that the words name: ids, files, folders, and perhaps -k and its word."""
    tests, keywords = (words[:-2], words[-1]) if "-k" in words else (words, "")
    named = {item.nodeid: item for item in session.items}
    chosen: list[pytest.Item] = []
    for test in tests:
        begins = f"{test}::", f"{test}[", f"{test}/"
        chosen += (
            [named[test]]
            if test in named
            else (item for id, item in named.items() if id.startswith(begins))
        )
    if keywords:
        session.config.option.keyword = keywords
        session.config.hook.pytest_collection_modifyitems(
            session=session, config=session.config, items=chosen
        )
        session.config.option.keyword = ""
    return chosen


def _in_fork(
    items: Sequence[pytest.Item], begun: mmap.mmap, file: str, old: str, text: str | None
) -> int:
    from tests.conftest import leaves_nothing_behind

    # Its thread is not in the fork.
    SyncToAsync.single_thread_executor = ThreadPoolExecutor(max_workers=1)
    if text is not None:
        try:
            exchange(file, old, text, _functions)
        except NotExchanged:
            return NOT_EXCHANGED
    failed = _Failed()
    items[0].config.pluginmanager.register(failed)
    behind = leaves_nothing_behind()
    behind.__enter__()
    for number, (item, then) in enumerate(
        zip(items, [*items[1:], items[0].session], strict=True), 1
    ):
        begun[:] = number.to_bytes(8, "big")
        _run(item, then)
        if failed:
            return 1
    try:
        behind.__exit__(None, None, None)
    except AssertionError:
        return 1
    return 0


class _Failed:
    """Whether a test has."""

    def __init__(self) -> None:
        self._seen = False

    def __bool__(self) -> bool:
        return self._seen

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seen |= report.failed


def _end_of(pid: int, mark: str, patience: float) -> int:
    """Wait for the fork, and end what it has left; return its code."""
    status = 0

    def ended() -> bool:
        nonlocal status
        found, status = os.waitpid(pid, os.WNOHANG)
        return bool(found)

    try:
        wait_until(ended, seconds=patience, what="the tests")
        code = os.waitstatus_to_exitcode(status)
        code = code if code >= 0 else 1  # a crash is noticed
    except TimeoutError:
        code = TIME_OUT
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    for left in marked(f"{RUN_VARIABLE}={mark}"):
        with suppress(ProcessLookupError):
            os.kill(left, signal.SIGKILL)
    return code
