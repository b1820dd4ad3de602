"""Section I in the log: one line for each request, and the cause of each 503 (R61, R79)."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from django.db import DatabaseError, IntegrityError, connections

from django_idempotency.exceptions import StoreError
from django_idempotency.logs import log_store_error
from django_idempotency.models import IdempotencyRecord
from tests.unit.http.api import Api, problem
from tests.unit.http.conftest import InProgress, SetPolicy
from tests.unit.http.test_i_errors import Problems

pytestmark = pytest.mark.django_db

KEY, PAYLOAD = "confidential-key", "confidential-payload"
NO_TABLE = "no_such_table"


@pytest.fixture
def problems(api: Api, policy: SetPolicy, in_progress: InProgress) -> Problems:
    return Problems(api, policy, in_progress)


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Any:
    """Give the lines of our logger since the last call."""
    caplog.set_level(logging.INFO, logger="django_idempotency")

    def take() -> list[Any]:
        found = [record for record in caplog.records if record.name == "django_idempotency"]
        caplog.clear()
        return found

    return take


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        ("idempotency_key_missing", "key missing"),
        ("idempotency_key_invalid", "key invalid"),
        ("scope_missing", "scope missing"),
        ("idempotency_key_reused", "mismatch"),
        ("in_progress", "in progress"),
        ("stale", "stale"),
        ("result_unavailable", "result unavailable"),
        ("store_unavailable", "store unavailable"),
        ("replay_refused", "replay refused"),
    ],
)
def test_R79_each_problem_is_one_line_with_what_happened(
    problems: Problems, lines: Any, code: str, outcome: str
) -> None:
    problems.api.key, problems.api.name = KEY, PAYLOAD

    assert problem(problems.make(code))[1] == code

    line = lines()[-1]
    view = "optional" if code == "scope_missing" else "effect"
    assert (line.outcome, line.alias) == (outcome, "default")
    assert line.operation.startswith(f"POST {view}")
    assert f": {outcome} (" in line.getMessage()
    if record := IdempotencyRecord.objects.first():
        assert line.record_id == str(record.pk)[:12]
        assert line.record_id in line.getMessage()
    assert line.levelname == ("ERROR" if code == "store_unavailable" else "INFO")


def test_R79_each_end_of_an_attempt_is_one_line(
    api: Api, in_progress: InProgress, mode: str, lines: Any
) -> None:
    def outcomes() -> list[str]:
        return [line.outcome for line in lines()]

    api()
    assert outcomes() == ["completed"]
    api()
    assert outcomes() == ["replayed"]
    in_progress()
    IdempotencyRecord.objects.update(lease_until="2001-01-01T00:00:00Z")
    api()
    assert outcomes() == ["taken over", "completed"]
    api.then("returned", status=400, key="400")
    assert outcomes() == ["released"]
    api.then("returned", status=500, key="500")
    assert outcomes() == ["failed"]


def test_R79_nothing_is_made_of_a_line_that_is_not_wanted(
    api: Api, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.WARNING, logger="django_idempotency")
    made: list[Any] = []
    monkeypatch.setattr("django_idempotency.logs._facts", lambda *facts: made.append(facts))

    api(), api(), api(key='"')

    assert made == []


# R61: the cause of a 503.


@pytest.fixture
def table() -> Any:
    """Take the table away, as long as the test lasts."""
    with connections["default"].cursor() as cursor:
        cursor.execute("ALTER TABLE idempotency_record RENAME TO idempotency_record_away")
        yield
    # The test's transaction brings it back.


@pytest.mark.parametrize(
    ("accept", "debug", "installed"),
    [
        ("application/json", True, True),
        ("text/html", True, False),
        ("application/json", False, False),
    ],
)
def test_R61_a_table_that_is_not_there_is_told_by_the_503_itself(
    api: Api,
    table: None,
    lines: Any,
    settings: Any,
    accept: str,
    monkeypatch: pytest.MonkeyPatch,
    debug: bool,
    installed: bool,
) -> None:
    settings.DEBUG = debug
    monkeypatch.setattr("django.apps.apps.is_installed", lambda name: installed)

    answer = api(headers={"Accept": accept})

    assert answer.status_code == 503
    [line] = lines()
    assert line.levelname == "ERROR"
    assert isinstance(line.exc_info[1].__cause__, DatabaseError)
    detail = answer.content.decode()
    for told in ["run manage.py migrate"] + ["INSTALLED_APPS"] * (not installed):
        assert told in line.getMessage()
        assert (told in detail) is debug
    assert ("idempotency_record" in detail) is debug


def test_R61_work_whose_completion_cannot_be_written_is_one_line(
    api: Api, policy: SetPolicy, lines: Any
) -> None:
    policy(BACKEND="tests.unit.http.stores.CannotEnd")

    assert problem(api())[1] == "store_unavailable"

    [line] = lines()
    assert NO_TABLE in line.getMessage()
    assert line.exc_info[1].__cause__ is not None


@pytest.mark.parametrize(
    "cause",
    [
        IntegrityError(f"Failing row contains ({KEY}, {PAYLOAD})."),
        ValueError(f"invalid literal: {PAYLOAD}"),
        DatabaseError(f"LINE 4: SELECT 'scope', '{KEY}'"),
    ],
)
def test_R79_a_cause_that_quotes_the_record_is_named_by_its_type(
    lines: Any, caplog: pytest.LogCaptureFixture, cause: Exception
) -> None:
    failure = StoreError("The record is damaged.")
    try:
        raise failure from cause
    except StoreError as error:
        log_store_error("default", "POST pay", error, key=KEY)

    said = f"{caplog.text} {failure.told}"
    assert type(cause).__name__ in failure.told
    assert KEY not in said
    assert PAYLOAD not in said
    assert len(lines()) == 1


def test_R79_the_work_that_a_failure_followed_is_not_quoted(
    lines: Any, caplog: pytest.LogCaptureFixture
) -> None:
    try:
        try:
            raise RuntimeError(PAYLOAD)
        except RuntimeError:
            try:
                raise OSError("refused")
            except OSError as refused:
                raise StoreError("No answer.") from refused
    except StoreError as error:
        log_store_error("default", "POST pay", error)
        log_store_error("default", "POST pay", error)

    assert "refused" in caplog.text
    assert PAYLOAD not in caplog.text
    assert len(lines()) == 1
