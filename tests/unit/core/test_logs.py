"""What the log says of calls and blocks, on each store and in each mode (R61, R79)."""

from __future__ import annotations

import logging

import pytest
from django.db import OperationalError

from django_idempotency import (
    InvalidKey,
    LeaseLost,
    StoreError,
    arun,
    logs,
)
from django_idempotency.callables import name_of
from django_idempotency.logs import log_failure
from django_idempotency.stores.database import DatabaseStore
from tests.unit.core.conftest import Call, begin, fail, never
from tests.unit.core.conftest import run as run_work


class Down(DatabaseStore):
    """A store whose server does not answer."""

    error = OperationalError

    def get(self, record_id):
        return self.claim(None)

    def claim(self, request):
        cause = self.error("could not connect to db.internal")
        raise StoreError("The store could not run its CLAIM.") from cause


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, logger="django_idempotency")

    def take():
        found = [record for record in caplog.records if record.name == "django_idempotency"]
        caplog.clear()
        return found

    return take


def run(func, key="confidential-key", **arguments):
    return run_work(func, key, **{"operation": "bill", **arguments})


def test_R79_the_line_names_the_short_record_id_and_no_key(memory, lines):
    def work(lease):
        return "done"

    for name, said in (("bill", "bill"), ("", name_of(work))):
        outcome = run(work, f"confidential-{name}", operation=name)
        [line] = lines()
        short = str(outcome.record_id)[:12]
        assert line.getMessage() == f"{said}: completed (record {short}, store default)"
        assert (line.alias, line.operation, line.record_id) == ("default", name, short)
        assert "confidential" not in str(vars(line))


def test_R79_a_call_without_a_name_is_named_by_its_function_in_each_line(
    memory, clock, lines, in_loop
):
    def work(lease):
        clock.advance(61)
        run(never_again, operation="")
        return "late"

    def never_again(lease):
        return "done"

    async def acall():
        with pytest.raises(InvalidKey):
            await arun(work, key="", scope="s")

    with pytest.raises(LeaseLost):
        run(work, operation="")
    in_loop(acall)

    names = [line.getMessage().partition(": ")[0] for line in lines()]
    assert names == [name_of(it) for it in (never_again, never_again, work, work)]
    assert name_of(work).endswith("in_each_line.<locals>.work")


def test_R79_a_block_without_a_name_is_one(memory, lines):
    with begin() as attempt:
        attempt.complete(1)

    [line] = lines()
    assert line.getMessage().startswith("call without a name: completed")


def test_the_line_of_a_replay_says_how_often_the_work_was_tried(memory, lines):
    with pytest.raises(ValueError, match="boom"):
        run(fail)
    for _ in range(2):
        run(lambda lease: "done")
    assert [getattr(line, "attempts", None) for line in lines()] == [None, None, 2]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("caller", "mode"), [("run", "single"), ("arun", "separate")])
def test_R61_an_error_of_the_store_is_one_line_with_its_cause(settings, lines, caller, mode):
    settings.IDEMPOTENCY = {"default": {"BACKEND": f"{__name__}.Down", "TRANSACTION": mode}}
    with pytest.raises(StoreError):
        Call(caller, mode)(never)
    [line] = lines()
    assert line.levelname == "ERROR"
    assert line.getMessage().startswith(f"{name_of(never)}: store unavailable (record ")
    assert line.getMessage().endswith("could not run its CLAIM. (OperationalError)")
    assert isinstance(line.exc_info[1].__cause__, OperationalError)
    shown = logging.Formatter().format(line)
    assert "OperationalError" in shown
    assert "db.internal" not in shown


def test_R61_a_store_that_is_down_is_a_line_for_each_call_and_a_traceback_a_minute(
    settings, lines, monkeypatch
):
    settings.IDEMPOTENCY = {"default": {"BACKEND": f"{__name__}.Down"}}

    def traced(seconds_later=0):
        for kinds in logs._traced:
            logs._traced[kinds] -= seconds_later
        with pytest.raises(StoreError):
            run(never)
        [line] = lines()
        return line.exc_info is not None

    assert [traced(), traced(), traced(58), traced(61), traced()] == [1, 0, 0, 1, 0]
    monkeypatch.setattr(Down, "error", ConnectionResetError)
    assert traced()


@pytest.mark.parametrize("key", ["another", "db.internal"])
def test_R79_the_text_of_a_driver_is_for_DEBUG_unless_it_quotes_the_key(
    settings, lines, caplog, key
):
    caplog.set_level(logging.DEBUG, logger="django_idempotency")
    settings.IDEMPOTENCY = {"default": {"BACKEND": f"{__name__}.Down"}}
    with pytest.raises(StoreError):
        run(never, key)
    error, *debug = lines()
    assert [line.levelname for line in (error, *debug)] == ["ERROR"] + ["DEBUG"] * (
        key == "another"
    )
    for line in debug:
        told = "The driver's error was: OperationalError: could not connect to db.internal"
        assert line.getMessage() == told
        assert line.exc_info[1].__cause__.args == ("could not connect to db.internal",)


def test_R79_a_traceback_has_the_frames_and_classes_of_each_cause_and_no_text(caplog):
    texts = ["Key (id)=(confidential) already exists", "DETAIL: confidential"]

    def fails():
        try:
            raise LookupError(texts[0])
        except LookupError as error:
            raise OperationalError(texts[1]) from error

    try:
        try:
            fails()
        except OperationalError as error:
            raise LeaseLost(gone=True) from error
    except LeaseLost as error:
        log_failure("Something of %s failed.", "bill", error=error)
    assert "in fails" in caplog.text
    for name in ("LookupError", "OperationalError", "LeaseLost", str(LeaseLost(gone=True))):
        assert name in caplog.text
    assert "confidential" not in caplog.text
    [line] = caplog.records
    assert line.pathname == __file__


def test_R61_an_error_of_nested_work_is_told_once(memory, lines, settings):
    settings.IDEMPOTENCY = {**settings.IDEMPOTENCY, "down": {"BACKEND": f"{__name__}.Down"}}
    with pytest.raises(StoreError):
        run(lambda lease: run(never, store="down"))
    told = [(line.alias, line.outcome) for line in lines()]
    assert told == [("down", "store unavailable"), ("default", "failed")]
