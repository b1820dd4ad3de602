"""The store of docs/howto/writing-a-store.md, and defects of it that only processes show."""

from __future__ import annotations

import os
import re
import sys
import time
from dataclasses import replace
from datetime import timedelta
from types import ModuleType

import pytest

from django_idempotency.leases import Lease
from tests.pages import DOCS, blocks_of


def run_page():
    """Run the examples of the page up to the contract, and return their names."""
    names = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "shop", ModuleType("shop"))
        for block in blocks_of(DOCS / "howto" / "writing-a-store.md"):
            own = re.fullmatch(r"module=(\S+)", block.marker)
            module = ModuleType(own[1] if own else "tests")
            patch.setitem(sys.modules, module.__name__, module)
            exec(block.compiled(), vars(module))
            names |= vars(module)
            if "TestFileStore" in names:
                return names
    raise AssertionError("the page has no contract")


names = run_page()
FileStore, Contract = names["FileStore"], names["TestFileStore"]


class FileStoreContract(Contract):
    moment = timedelta(milliseconds=20)
    patience = 60  # each process imports pytest, which takes seconds on a busy machine
    thread_keys = 10
    racers, process_keys = 2, 20

    def child_environment(self):
        # Without Django, which the store does not need.
        return {**super().child_environment(), "DJANGO_SETTINGS_MODULE": ""}


# Defective ones, which only several processes show.

RACE = "test_R26_I1_one_of_many_processes_wins_each_key"
RESULT = "test_R59_result_is_what_other_processes_are_told"
KILLED = "test_R65_I8_lease_of_a_killed_process_is_taken_over_when_it_has_lapsed"
CLOCK = "test_R72_process_whose_host_has_another_time_goes_by_the_stores"
STALLED = "test_R66_R67_R68_I7_process_that_stalled_past_its_lease_writes_nothing"


class ReadsThenWrites(FileStore):
    def claim(self, request):
        if self.get(request.record_id) is None:
            time.sleep(0.01)
            with self.exclusively() as records:
                delete = "DELETE FROM record WHERE id = ?"
                records.database.execute(delete, [str(request.record_id)])
        return super().claim(request)


class BelongsToOneProcess(FileStore):
    def __init__(self, *, path):
        super().__init__(path=f"{path}-{os.getpid()}")


class IsNotFenced(FileStore):
    def fail(self, lease, error, *, held=False):
        record = self.get(lease.record_id)
        request = replace(lease.request, token=record.token)
        super().fail(Lease(request, record.epoch), error, held=held)


class IsNeverTakenOver(FileStore):
    def claim(self, request):
        seen = self.get(request.record_id)
        return seen if seen is not None and seen.stale else super().claim(request)


class Defective(FileStoreContract):
    store_class = FileStore

    def make_store(self):
        return self.store_class(path=self.path or os.environ["RECORDS"])


def _defect(name, **attributes):
    return type(name, (Defective,), attributes)  # by this name it is imported by its processes


ReadingThenWriting = _defect("ReadingThenWriting", store_class=ReadsThenWrites)
BelongingToOneProcess = _defect("BelongingToOneProcess", store_class=BelongsToOneProcess)
NotFenced = _defect("NotFenced", store_class=IsNotFenced)
NeverTakenOver = _defect("NeverTakenOver", store_class=IsNeverTakenOver)
WithItsHostsClock = _defect("WithItsHostsClock", own_clock=True)  # which is not true of it
#: A defect, the rule that is meant to notice it, others that notice, and one that does not.
DEFECTS = {
    "I1-reads-then-writes": (ReadingThenWriting, RACE, set(), {RESULT}),
    "R59-one-process": (BelongingToOneProcess, RESULT, {RACE, KILLED, STALLED}, set()),
    "R66-not-fenced": (NotFenced, STALLED, set(), {KILLED}),
    "R72-hosts-clock": (WithItsHostsClock, CLOCK, set(), {RESULT}),
    "R65-never-taken-over": (NeverTakenOver, KILLED, set(), {RESULT}),
}
