"""What the log says of calls and blocks, on each store and in each mode (R61, R79)."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from django.db import OperationalError, transaction

import django_idempotency as idempotency
from django_idempotency import FingerprintMismatch, InProgress, InvalidKey, StoreError
from django_idempotency.stores.database import DatabaseStore


class Down(DatabaseStore):
    """A store whose server does not answer."""

    def get(self, record_id: Any) -> Any:
        return self.claim(None)

    def claim(self, request: Any) -> Any:
        try:
            raise OperationalError("could not connect to db.internal")
        except OperationalError as error:
            raise StoreError("The store could not run its CLAIM.") from error


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level(logging.INFO, logger="django_idempotency")

    def take() -> list[Any]:
        found = [record for record in caplog.records if record.name == "django_idempotency"]
        caplog.clear()
        return found

    return take


@pytest.fixture
def outcomes(lines: Any) -> Any:
    return lambda: [line.outcome for line in lines()]


def run(func: Any, key: str = "confidential-key", **arguments: Any) -> Any:
    return idempotency.run(func, key=key, scope="s", operation="bill", **arguments)


def test_R79_a_call_without_an_operation_has_a_line_that_reads(
    memory: Any, lines: Any, settings: Any
) -> None:
    settings.IDEMPOTENCY = {**settings.IDEMPOTENCY, "down": {"BACKEND": f"{__name__}.Down"}}

    idempotency.run(lambda lease: None, key="confidential-key", scope="s")
    [line] = lines()
    assert line.getMessage().startswith("call without a name: completed (record ")
    assert line.operation == ""
    with pytest.raises(StoreError):
        idempotency.run(lambda lease: None, key="confidential-key", scope="s", store="down")
    [line] = lines()
    assert line.getMessage().startswith("call without a name: store unavailable (record ")


def test_R79_each_end_of_a_call_is_one_line(mode: str, outcomes: Any) -> None:
    def busy(lease: Any) -> None:
        with pytest.raises(InProgress):
            run(lambda lease: None, transaction=None)
        assert outcomes() == ["in progress"]

    run(busy)
    assert outcomes() == ["completed"]
    run(busy)
    assert outcomes() == ["replayed"]
    with pytest.raises(FingerprintMismatch):
        run(busy, payload=2)
    assert outcomes() == ["mismatch"]
    with pytest.raises(ZeroDivisionError):
        run(lambda lease: 1 / 0, key="failing")
    assert outcomes() == ["failed"]
    with pytest.raises(InvalidKey):
        run(busy, key="")
    assert outcomes() == ["key invalid"]


def test_R79_a_lost_lease_and_a_take_over_are_lines_of_their_own(
    memory: Any, clock: Any, outcomes: Any
) -> None:
    def stalled(lease: Any) -> str:
        clock.advance(61)
        run(lambda lease: "B")
        assert outcomes() == ["taken over", "completed"]
        return "A"

    with pytest.raises(idempotency.LeaseLost):
        run(stalled)
    assert outcomes() == ["lease lost"]


def test_R79_the_line_names_the_short_record_id_and_no_key(mode: str, lines: Any) -> None:
    outcome = run(lambda lease: "done")

    [line] = lines()
    short = str(outcome.record_id)[:12]
    assert line.getMessage() == f"bill: completed (record {short}, store default)"
    assert (line.alias, line.operation, line.record_id) == ("default", "bill", short)
    assert "confidential" not in str(vars(line))


@pytest.mark.django_db(transaction=True)
def test_R79_a_completion_after_the_callers_commit_is_told_when_it_is_written(
    memory: Any, outcomes: Any
) -> None:
    with transaction.atomic():
        run(lambda lease: "done")
        assert outcomes() == []

    assert outcomes() == ["completed"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("transaction_mode", ["single", "separate"])
def test_R61_an_error_of_the_store_is_one_line_with_its_cause(
    settings: Any, lines: Any, in_loop: Any, transaction_mode: str
) -> None:
    settings.IDEMPOTENCY = {
        "default": {"BACKEND": f"{__name__}.Down", "TRANSACTION": transaction_mode}
    }

    async def work(lease: Any) -> None:
        raise AssertionError("ran")

    async def arun() -> None:
        await idempotency.arun(work, key="confidential-key", scope="s", operation="bill")

    for call in (lambda: run(pytest.fail), lambda: in_loop(arun)):
        with pytest.raises(StoreError):
            call()
        [line] = lines()
        assert line.levelname == "ERROR"
        assert "db.internal" in line.getMessage()
        assert isinstance(line.exc_info[1].__cause__, OperationalError)


def test_R61_an_error_of_nested_work_is_told_once(memory: Any, lines: Any, settings: Any) -> None:
    settings.IDEMPOTENCY = {**settings.IDEMPOTENCY, "down": {"BACKEND": f"{__name__}.Down"}}

    with pytest.raises(StoreError):
        run(lambda lease: run(pytest.fail, store="down"))

    assert [(line.alias, line.outcome) for line in lines()] == [
        ("down", "store unavailable"),
        ("default", "failed"),
    ]
