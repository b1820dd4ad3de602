"""Section I, R78 to R81: what errors say, in which language; their log; hostile input."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from django.db import DatabaseError, IntegrityError, connections
from django.http import HttpResponse
from django.utils import translation
from rest_framework.request import Request
from rest_framework.response import Response

from django_idempotency.exceptions import (
    FingerprintMismatch,
    InProgress,
    InvalidKey,
    KeyRequired,
    LeaseLost,
    ResultUnavailable,
    ScopeMissing,
    StoreError,
)
from django_idempotency.http.problems import problem_response, replay_refused
from django_idempotency.logs import log_refusal, log_store_error, tell_end
from django_idempotency.policy import HTTPPolicy
from django_idempotency.stores.memory import MemoryStore
from tests.unit.http.api import problem, replayed
from tests.unit.http.views import MISMATCH, BareView

pytestmark = pytest.mark.django_db

MEMBERS = {"type", "title", "status", "detail", "instance", "code", "retryable", "safe_new_key"}
KEY, PAYLOAD = "confidential-key", "confidential-payload"


class Told(NamedTuple):
    """What a problem says of an error."""

    status: int
    code: str
    retryable: bool = False
    safe_new_key: bool = False


TOLD = {
    KeyRequired(): Told(400, "idempotency_key_missing", safe_new_key=True),
    InvalidKey("why"): Told(400, "idempotency_key_invalid"),
    ScopeMissing(): Told(400, "scope_missing"),
    FingerprintMismatch(): Told(422, "idempotency_key_reused"),
    InProgress(): Told(409, "in_progress", retryable=True),
    InProgress(stale=True): Told(409, "stale"),
    LeaseLost(): Told(409, "lease_lost", retryable=True),
    LeaseLost(gone=True): Told(503, "store_unavailable", retryable=True),
    ResultUnavailable(): Told(409, "result_unavailable"),
    StoreError(): Told(503, "store_unavailable", retryable=True),
}


def test_R78_problem_of_each_error(rf):
    request, policy = rf.post("/pay/"), HTTPPolicy()
    made = [(problem_response(error, request, policy), told) for error, told in TOLD.items()]
    made.append((replay_refused(request, policy, request), Told(403, "replay_refused")))
    for response, told in made:
        members = json.loads(response.content)
        assert problem(response) == (told.status, told.code)
        assert members.keys() == MEMBERS
        assert members["retryable"] is told.retryable
        assert members["safe_new_key"] is told.safe_new_key
        assert members["title"]
        assert members["detail"]
        assert members["instance"] == "/pay/"
        assert told.code in members["type"]
        assert response.headers["Link"] == f'<{members["type"]}>; rel="describedby"'
        assert ("Retry-After" in response.headers) is told.retryable
        assert response.headers["Cache-Control"] == "no-store"
        assert response.headers["Content-Language"] == "en-us"


def test_R79_each_refusal_is_one_line_and_names_neither_key_nor_payload(api, policy, lines, caplog):
    """What the engine refuses: core/test_logs.py."""
    api.key, api.name = KEY, PAYLOAD
    answers = [api(), api(key=None), api(key=f'"{KEY}'), api(user=None, path="/optional/")]
    policy(HTTP={"REPLAY_CHECK": f"{__name__}.never"})
    answers += [api(), api({"name": "other"})]
    policy(BACKEND="tests.unit.http.stores.CannotComplete")
    answers.append(api(key="other"))

    others = {line.msg for line in lines() if not hasattr(line, "outcome")}
    assert others == {"Replays of %s leave out the header field %s."}
    of_attempts = [line for line in lines() if line.msg not in others]
    said = [line.outcome for line in of_attempts]
    refused = ["key missing", "key invalid", "scope missing", "replay refused"]
    assert said == ["completed", *refused, "mismatch", "store unavailable"]
    assert [line.levelname for line in of_attempts] == ["INFO"] * 6 + ["ERROR"]
    operations = [line.operation for line in of_attempts]
    assert operations == ["POST optional" if o == "scope missing" else "POST effects" for o in said]
    for text in (caplog.text, *(a.content.decode() + repr(a.headers) for a in answers[1:])):
        assert KEY not in text
        assert PAYLOAD not in text


def never(request: Any, record: Any) -> bool:
    return False


def test_R79_replay_that_the_check_has_let_through_is_one(api, policy, lines):
    policy(HTTP={"REPLAY_CHECK": f"{__name__}.always"})
    assert api().content == api().content
    told = [line.outcome for line in lines() if hasattr(line, "outcome")]
    assert told == ["completed", "replayed"]


def always(request: Any, record: Any) -> bool:
    return True


def test_R78_error_renderer_as_a_method_may_answer_as_the_view_does(api, mount):
    class Own(BareView):
        def idempotency_error_renderer(self, request: Request, members: dict[str, Any]) -> Response:
            assert members.keys() == MEMBERS
            return Response({type(self).__name__: members["code"]}, status=members["status"])

    response = api(key=None, path=mount(Own))
    assert (response.status_code, response.json()) == (400, {"Own": "idempotency_key_missing"})
    assert response.headers["Content-Type"] == "application/json"
    assert response.headers["Cache-Control"] == "no-store"


def test_R21_debug_says_how_a_view_of_each_kind_asks_for_a_login(settings, rf):
    for settings.DEBUG in (True, False):
        answer = problem_response(ScopeMissing(), rf.post("/"), HTTPPolicy()).content.decode()
        for told in ["@login_required above @idempotent", "permission_classes", "scopes.session"]:
            assert (told in answer) is settings.DEBUG


def test_R1_debug_says_which_field_is_nearly_that_of_the_key(settings, rf):
    request = rf.post("/", headers={"X-Idempotency-Key": "key"})
    for settings.DEBUG in (True, False):
        answer = problem_response(KeyRequired(), request, HTTPPolicy()).content.decode()
        told = "The field is Idempotency-Key, and not X-Idempotency-Key."
        assert (told in answer) is settings.DEBUG


# The log.


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Any:
    """Give the lines of our logger so far."""
    caplog.set_level(logging.INFO, logger="django_idempotency")
    return lambda: [record for record in caplog.records if record.name == "django_idempotency"]


def test_R79_nothing_is_made_of_a_line_that_is_not_wanted(api, caplog, monkeypatch):
    caplog.set_level(logging.WARNING, logger="django_idempotency")
    made: list[Any] = []
    monkeypatch.setattr("django_idempotency.logs.extra", made.append)
    api(), api(), api(key='"')
    with pytest.raises(RuntimeError):
        api.then("boom", key="boom")
    assert made == []


def test_R71_R79_a_stale_attempt_has_a_line_of_its_own(lines):
    log_refusal("default", "POST pay", InProgress(stale=True))
    assert [line.outcome for line in lines()] == ["stale"]


FACTS = {"alias": "default", "operation": "POST pay", "record_id": None}


def test_R79_a_cause_that_quotes_the_record_is_named_by_its_type(lines, caplog):
    for cause in (IntegrityError, ValueError):
        failure = StoreError("The record is damaged.")
        failure.__cause__ = cause(f"Failing row contains ({KEY!r}, {PAYLOAD}).")
        tell_end(MemoryStore, dict(FACTS, outcome="store unavailable"), failure, key=KEY)
        assert cause.__name__ in failure.told
        for text in (KEY, PAYLOAD):
            assert text not in f"{caplog.text} {failure.told}"
    assert len(lines()) == 2


def test_R79_the_work_that_a_failure_followed_is_not_quoted(lines, caplog):
    refused = OSError("refused")
    refused.__context__ = RuntimeError(PAYLOAD)
    failure = StoreError("No answer.")
    failure.__cause__ = refused
    caplog.set_level(logging.DEBUG, logger="django_idempotency")
    for _ in range(2):
        log_store_error("default", "POST pay", failure)
    error, debug = lines()
    assert ("refused" in error.getMessage(), "refused" in debug.getMessage()) == (False, True)
    assert PAYLOAD not in caplog.text


@pytest.mark.parametrize(
    ("accept", "debug", "installed"),
    [("application/json", False, False), ("text/html", True, True)],
)
def test_R61_a_table_that_is_not_there_is_told_by_the_503_itself(
    api, lines, settings, monkeypatch, accept, debug, installed
):
    settings.DEBUG = debug
    monkeypatch.setattr("django.apps.apps.is_installed", lambda name: installed)
    with connections["default"].cursor() as cursor:  # the test's transaction brings it back
        cursor.execute("ALTER TABLE idempotency_record RENAME TO idempotency_record_away")

    answer = api(headers={"Accept": accept})

    assert (answer.status_code, answer["Retry-After"]) == (503, "60")
    [line] = lines()
    assert line.levelname == "ERROR"
    assert isinstance(line.exc_info[1].__cause__, DatabaseError)
    for told in ["run manage.py migrate"] + ["INSTALLED_APPS"] * (not installed):
        assert told in line.getMessage()
        assert (told in answer.content.decode()) is debug
    assert ("idempotency_record" in answer.content.decode()) is debug


# Hostile input: what the contract of HTTP does not send.


def test_R80_R81_hostile_addresses_and_long_names_of_routes_are_no_500(api, mount):
    url = mount(BareView, "<path:rest>", name="x" * 5000)
    for tail in ("a%00b", "%ff%fe", "%ed%a0%80é", "a?b=%00", "a?%ff=%fe&&&==;"):
        sent = {"path": url + tail, "key": str(len(tail))}
        assert [replayed(api(**sent)) for _ in range(2)] == [False, True]
        assert problem(api(**{**sent, "path": f"{url}{tail}d"})) == MISMATCH


# The language of problems: tests/unit/project/test_translations.py has the German catalogue.


@pytest.fixture
def language(settings: Any) -> Iterator[None]:
    """The request chooses."""
    settings.MIDDLEWARE = ["django.middleware.locale.LocaleMiddleware", *settings.MIDDLEWARE]
    yield
    translation.activate(settings.LANGUAGE_CODE)


@pytest.mark.usefixtures("language")
@pytest.mark.parametrize(
    ("asked", "said", "title"),
    [
        ("de-AT", "de", "Idempotency-Key fehlt"),
        ("en-GB", "en-gb", "Idempotency-Key is missing"),
        ("fr", "en", "Idempotency-Key is missing"),
    ],
)
def test_R78_content_language_is_that_of_the_text(api, asked, said, title):
    response = api(key=None, headers={"Accept-Language": asked})
    assert response.headers["Content-Language"] == said
    assert response.json()["title"] == title
    assert response.json()["code"] == "idempotency_key_missing"


def refuse(key: str) -> None:
    raise InvalidKey("result")


@pytest.mark.usefixtures("language")
def test_R78_reason_of_an_invalid_key_is_translated(api, policy):
    """What a validator of the project says stays."""
    reasons = {
        "x" * 300: ("has 300 characters; 1 to 255 are", "hat 300 Zeichen; erlaubt sind 1 bis 255"),
        "k": ("result", "result"),
    }
    policy(HTTP={"KEY_VALIDATOR": refuse})
    for field, detail in reasons.items():
        for language, said in zip(("en", "de"), detail, strict=True):
            answer = api(key=field, headers={"Accept-Language": language}).json()
            assert said in answer["detail"]
    assert answer["title"] == "Idempotency-Key ist ungültig"


@pytest.mark.parametrize(("code", "said"), [("de", "de"), ("fr", None)])
def test_R78_an_answer_of_the_project_is_labelled_where_our_texts_are_its_language(
    api, policy, settings, code, said
):
    """What else it says, nobody here knows."""
    settings.LANGUAGE_CODE = code
    policy(HTTP={"ERROR_RENDERER": lambda request, members: HttpResponse(members["title"])})
    assert api(key=None).headers.get("Content-Language") == said
