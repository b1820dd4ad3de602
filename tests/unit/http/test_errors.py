"""Section I, R78 to R81: what errors say and keep to themselves, their log, hostile input."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from django.db import DatabaseError, IntegrityError, connections
from django.http import HttpResponse, JsonResponse
from rest_framework.request import Request
from rest_framework.response import Response

from django_idempotency.exceptions import ScopeMissing, StoreError
from django_idempotency.http.problems import problem_response
from django_idempotency.logs import log_store_error
from django_idempotency.models import IdempotencyRecord
from django_idempotency.policy import HTTPPolicy
from tests.unit.http.api import Api, problem, replayed
from tests.unit.http.conftest import InProgress, SetPolicy
from tests.unit.http.views import MISMATCH, BareView

pytestmark = pytest.mark.django_db

MEMBERS = {"type", "title", "status", "detail", "instance", "code", "retryable", "safe_new_key"}
KEY, PAYLOAD = "confidential-key", "confidential-payload"
#: By code: status, retryable, safe_new_key, and what the log calls it.
TABLE = {
    "idempotency_key_missing": (400, False, True, "key missing"),
    "idempotency_key_invalid": (400, False, True, "key invalid"),
    "scope_missing": (400, False, True, "scope missing"),
    "idempotency_key_reused": (422, False, True, "mismatch"),
    "in_progress": (409, True, False, "in progress"),
    "stale": (409, False, False, "stale"),
    "result_unavailable": (409, False, False, "result unavailable"),
    "store_unavailable": (503, True, False, "store unavailable"),
    "replay_refused": (403, False, False, "replay refused"),
}


def made(code: str, api: Api, policy: SetPolicy, in_progress: InProgress) -> Any:
    """Make the library answer with one of its problems."""
    match code:
        case "idempotency_key_missing":
            return api(key=None)
        case "idempotency_key_invalid":
            return api(key=f'"{KEY}')
        case "scope_missing":
            return api(user=None, path="/optional/")
        case "stale":
            policy(ON_STALE="refuse")
        case "store_unavailable":
            policy(BACKEND="tests.unit.http.stores.CannotComplete")
            return api()
        case "replay_refused":
            policy(HTTP={"REPLAY_CHECK": f"{__name__}.never"})
        case "result_unavailable":
            api.then("stream")
            return api.then("stream")
    api()
    if code == "idempotency_key_reused":
        return api({"name": "other"})
    if code in ("in_progress", "stale"):
        in_progress(on_stale="refuse" if code == "stale" else "take_over")
    if code == "stale":
        IdempotencyRecord.objects.update(lease_until="2001-01-01T00:00:00Z")
    return api()


def never(request: Any, record: Any) -> bool:
    return False


@pytest.mark.parametrize("code", TABLE)
def test_R78_R79_problem_and_its_line_of_the_log(api, policy, in_progress, caplog, code):
    caplog.set_level(logging.DEBUG)
    api.key, api.name = KEY, PAYLOAD

    response = made(code, api, policy, in_progress)

    status, retryable, safe_new_key, outcome = TABLE[code]
    members = response.json()
    assert problem(response) == (status, code)
    assert members.keys() == MEMBERS
    assert (members["retryable"], members["safe_new_key"]) == (retryable, safe_new_key)
    assert all(isinstance(members[name], str) and members[name] for name in ("title", "detail"))
    assert code in members["type"]
    assert members["instance"] in ("/effects/", "/optional/")
    assert ("Retry-After" in response.headers) == retryable
    assert response.headers["Cache-Control"] == "no-store"
    assert response.headers["Link"] == f'<{members["type"]}>; rel="describedby"'
    assert response.headers["Content-Language"] == "en-us"
    for text in (response.content.decode(), repr(response.headers), caplog.text):
        assert KEY not in text
        assert PAYLOAD not in text
    line: Any = [entry for entry in caplog.records if entry.name == "django_idempotency"][-1]
    assert (line.outcome, line.alias) == (outcome, "default")
    assert line.operation.startswith("POST optional" if code == "scope_missing" else "POST effect")
    assert f": {outcome} (" in line.getMessage()
    assert line.levelname == ("ERROR" if code == "store_unavailable" else "INFO")
    if record := IdempotencyRecord.objects.first():
        assert line.record_id == str(record.pk)[:12]
        assert line.record_id in line.getMessage()
        assert str(record.pk)[:13] not in line.getMessage()


def rendered(request: Any, members: dict[str, Any]) -> HttpResponse:
    """An error_renderer for the dotted path below."""
    return JsonResponse({"error": members["code"], "user": request.user.username}, status=418)


def test_R78_error_renderer_as_a_dotted_path(api, policy):
    policy(HTTP={"ERROR_RENDERER": f"{__name__}.rendered"})

    response = api(key=None)

    assert response.status_code == 418
    assert response.json() == {"error": "idempotency_key_missing", "user": "alice"}
    assert response.headers["Cache-Control"] == "no-store"


def test_R78_error_renderer_as_a_method_may_answer_as_the_view_does(api, mount):
    class Own(BareView):
        def idempotency_error_renderer(self, request: Request, members: dict[str, Any]) -> Response:
            assert members.keys() == MEMBERS
            return Response({type(self).__name__: members["code"]}, status=members["status"])

    response = api(key=None, path=mount(Own))

    assert (response.status_code, response.json()) == (400, {"Own": "idempotency_key_missing"})
    assert response.headers["Content-Type"] == "application/json"


@pytest.mark.parametrize("debug", [True, False])
def test_R21_debug_says_how_a_view_of_each_kind_asks_for_a_login(settings, rf, debug):
    settings.DEBUG = debug

    detail = json.loads(problem_response(ScopeMissing(), rf.post("/"), HTTPPolicy()).content)

    for told in ["@login_required above @idempotent", "permission_classes", "scopes.session"]:
        assert (told in detail["detail"]) is debug


# The log.


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Any:
    """Give the lines of our logger so far."""
    caplog.set_level(logging.INFO, logger="django_idempotency")
    return lambda: [record for record in caplog.records if record.name == "django_idempotency"]


def test_R79_each_end_of_an_attempt_is_one_line(api, in_progress, lines):
    for then, status in (("created", 201), ("created", 201), ("returned", 400), ("returned", 500)):
        api.then(then, status=status, key=str(status))
    IdempotencyRecord.objects.exclude(key="201").delete()
    in_progress()
    IdempotencyRecord.objects.update(lease_until="2001-01-01T00:00:00Z")
    api.then("created", status=201, key="201")

    ends = ["completed", "replayed", "released", "failed", "taken over", "completed"]
    assert [line.outcome for line in lines()] == ends


def test_R79_nothing_is_made_of_a_line_that_is_not_wanted(api, caplog, monkeypatch):
    caplog.set_level(logging.WARNING, logger="django_idempotency")
    made: list[Any] = []
    monkeypatch.setattr("django_idempotency.logs._facts", lambda *facts: made.append(facts))

    api(), api(), api(key='"')
    with pytest.raises(RuntimeError):
        api.then("boom", key="boom")

    assert made == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("then", ["created", "boom", "broken"])
def test_R61_R79_failure_of_the_store_is_a_line_with_its_cause_and_the_short_record_id(
    api, policy, lines, caplog, then
):
    api.client.raise_request_exception = False
    policy(BACKEND="tests.unit.http.stores.CannotEnd")

    api({"name": PAYLOAD, "then": then}, key=KEY)

    short = str(IdempotencyRecord.objects.get().pk)[:12]
    assert all(short in line.getMessage() for line in lines())
    assert "ERROR" in [line.levelname for line in lines()]
    assert then != "created" or "no_such_table" in lines()[-1].getMessage()
    assert KEY not in caplog.text
    assert not [line for line in lines() if PAYLOAD in line.getMessage()]


@pytest.mark.parametrize("cause", [IntegrityError, ValueError, DatabaseError])
def test_R79_a_cause_that_quotes_the_record_is_named_by_its_type(lines, caplog, cause):
    failure = StoreError("The record is damaged.")
    failure.__cause__ = cause(f"Failing row contains ({KEY!r}, {PAYLOAD}).")

    log_store_error("default", "POST pay", failure, key=KEY)

    said = f"{caplog.text} {failure.told}"
    assert cause.__name__ in failure.told
    assert KEY not in said
    assert PAYLOAD not in said
    assert len(lines()) == 1


def test_R79_the_work_that_a_failure_followed_is_not_quoted(lines, caplog):
    refused = OSError("refused")
    refused.__context__ = RuntimeError(PAYLOAD)
    failure = StoreError("No answer.")
    failure.__cause__ = refused

    for _ in range(2):
        log_store_error("default", "POST pay", failure)

    assert "refused" in caplog.text
    assert PAYLOAD not in caplog.text
    assert len(lines()) == 1


@pytest.mark.parametrize(
    ("accept", "debug", "installed"),
    [
        ("application/json", True, True),
        ("text/html", True, False),
        ("application/json", False, False),
    ],
)
def test_R61_a_table_that_is_not_there_is_told_by_the_503_itself(
    api, lines, settings, monkeypatch, accept, debug, installed
):
    settings.DEBUG = debug
    monkeypatch.setattr("django.apps.apps.is_installed", lambda name: installed)
    with connections["default"].cursor() as cursor:  # the test's transaction brings it back
        cursor.execute("ALTER TABLE idempotency_record RENAME TO idempotency_record_away")

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


# Hostile input: what the contract of HTTP sends, and what only this process can look at.


def test_R80_hostile_scopes_are_inert(api, policy, runs):
    policy(HTTP={"SCOPE": lambda request: bytes.fromhex(request.headers["X-Scope"]).decode()})

    for scope in ("a\0b", "';--", "x" * 10_000, "é\u2028😀", "a"):
        headers = {"X-Scope": scope.encode().hex()}
        assert [replayed(api(headers=headers)) for _ in range(2)] == [False, True]
    assert len(runs) == 5


JSON, MULTIPART = "application/json", "multipart/form-data; boundary=b"


ADDRESSES = ["a%00b", "%ff%fe", "%ed%a0%80é", "a?b=%00", "a?%ff=%fe&&&==;", "a" * 8192, "a/" * 4096]


def test_R80_R81_hostile_and_long_addresses_are_no_500(api, mount):
    named, unnamed = (mount(BareView, "<path:rest>", name=name) for name in ("x" * 5000, None))
    tails = [*ADDRESSES, "a?b=" + "c" * 8192, "a?" + "b=1&" * 999]

    for number, url in enumerate([*(named + tail for tail in tails), unnamed + tails[-1]]):
        sent = {"path": url, "key": str(number)}
        assert [replayed(api(**sent)) for _ in range(2)] == [False, True]
        assert problem(api(path=f"{url}d", key=str(number))) == MISMATCH
