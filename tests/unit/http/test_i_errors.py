"""Section I, R78 and R79: what errors say, and what they keep to themselves."""

from __future__ import annotations

import json
import logging
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.http import HttpResponse, JsonResponse
from django.test import RequestFactory
from django.utils import translation
from rest_framework.request import Request
from rest_framework.response import Response

from django_idempotency.exceptions import ScopeMissing
from django_idempotency.http.problems import problem_response
from django_idempotency.models import IdempotencyRecord
from django_idempotency.policy import HTTPPolicy
from tests.unit.http.api import Api, problem
from tests.unit.http.conftest import InProgress, Mount, SetPolicy
from tests.unit.http.views import BareView

pytestmark = pytest.mark.django_db

MEMBERS = {"type", "title", "status", "detail", "instance", "code", "retryable", "safe_new_key"}


class Problems:
    """Makes the library answer with each of its problems."""

    def __init__(self, api: Api, policy: SetPolicy, in_progress: InProgress) -> None:
        self.api, self.policy, self.in_progress = api, policy, in_progress

    def make(self, code: str) -> Any:
        api = self.api
        match code:
            case "idempotency_key_missing":
                return api(key=None)
            case "idempotency_key_invalid":
                return api(key='"')
            case "scope_missing":
                return api(user=None, path="/optional/")
            case "idempotency_key_reused":
                api()
                return api({"name": "other"})
            case "in_progress":
                api()
                self.in_progress()
                return api()
            case "stale":
                self.policy(ON_STALE="refuse")
                api()
                self.in_progress(on_stale="refuse")
                IdempotencyRecord.objects.update(lease_until="2001-01-01T00:00:00Z")
                return api()
            case "result_unavailable":
                api.then("stream")
                return api.then("stream")
            case "store_unavailable":
                self.policy(BACKEND="tests.unit.http.stores.CannotComplete")
                return api()
            case "replay_refused":
                self.policy(HTTP={"REPLAY_CHECK": "tests.unit.http.test_replay.never"})
                api()
                return api()
        raise AssertionError(code)


@pytest.fixture
def problems(api: Api, policy: SetPolicy, in_progress: InProgress) -> Problems:
    return Problems(api, policy, in_progress)


#: status, retryable, safe_new_key
TABLE = {
    "idempotency_key_missing": (400, False, True),
    "idempotency_key_invalid": (400, False, True),
    "scope_missing": (400, False, True),
    "idempotency_key_reused": (422, False, True),
    "in_progress": (409, True, False),
    "stale": (409, False, False),
    "result_unavailable": (409, False, False),
    "store_unavailable": (503, True, False),
    "replay_refused": (403, False, False),
}


@pytest.mark.parametrize("code", TABLE)
def test_R78_members_of_a_problem(problems: Problems, code: str) -> None:
    response = problems.make(code)

    status, retryable, safe_new_key = TABLE[code]
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


def catalog(directory: Path, language: str, messages: dict[str, str]) -> None:
    """Write a compiled catalog of gettext."""
    entries = sorted({"": "Content-Type: text/plain; charset=UTF-8\n", **messages}.items())
    texts, tables = b"", ([], [])  # type: ignore[var-annotated]
    start = 28 + 16 * len(entries)
    for column, table in enumerate(tables):
        for entry in entries:
            text = entry[column].encode()
            table.append(struct.pack("<II", len(text), start + len(texts)))
            texts += text + b"\0"
    head = struct.pack("<IIIIIII", 0x950412DE, 0, len(entries), 28, 28 + 8 * len(entries), 0, 0)
    folder = directory / language / "LC_MESSAGES"
    folder.mkdir(parents=True)
    (folder / "django.mo").write_bytes(head + b"".join(tables[0] + tables[1]) + texts)


@pytest.fixture
def german(tmp_path: Path, settings: Any) -> Iterator[None]:
    """A translation, as a project may add one, chosen by the request."""
    catalog(
        tmp_path,
        "de",
        {
            "Idempotency-Key is missing": "Idempotency-Key fehlt",
            "This operation requires an idempotency key, and the request has none.": "Er fehlt.",
        },
    )
    settings.LOCALE_PATHS = [str(tmp_path)]
    settings.MIDDLEWARE = ["django.middleware.locale.LocaleMiddleware", *settings.MIDDLEWARE]
    yield
    translation.activate(settings.LANGUAGE_CODE)


@pytest.mark.usefixtures("german")
def test_R78_title_and_detail_are_translated_and_the_code_never_is(api: Api) -> None:
    german = api(key=None, headers={"Accept-Language": "de"})
    english = api(key=None, headers={"Accept-Language": "en"})

    assert german.json()["title"] == "Idempotency-Key fehlt"
    assert german.json()["detail"] == "Er fehlt."
    assert german.headers["Content-Language"] == "de"
    assert english.json()["title"] == "Idempotency-Key is missing"
    assert english.headers["Content-Language"] == "en"
    for name in ("code", "type", "status"):
        assert german.json()[name] == english.json()[name]


def rendered(request: Any, members: dict[str, Any]) -> HttpResponse:
    """An error_renderer for the dotted path below."""
    return JsonResponse(
        {"errors": [{"code": members["code"], "user": request.user.username}]},
        status=members["status"],
    )


def test_R78_error_renderer_as_a_dotted_path(api: Api, policy: SetPolicy) -> None:
    policy(HTTP={"ERROR_RENDERER": "tests.unit.http.test_i_errors.rendered"})

    response = api(key=None)

    assert response.status_code == 400
    assert response.json() == {"errors": [{"code": "idempotency_key_missing", "user": "alice"}]}
    assert response.headers["Content-Type"] == "application/json"
    assert response.headers["Cache-Control"] == "no-store"


def test_R78_error_renderer_as_a_method(api: Api, mount: Mount) -> None:
    class Own(BareView):
        def idempotency_error_renderer(
            self, request: Request, members: dict[str, Any]
        ) -> HttpResponse:
            assert members.keys() == MEMBERS
            return HttpResponse(f"{self.action_name}: {members['code']}", status=418)

        action_name = "own"

    response = api(key=None, path=mount(Own))

    assert (response.status_code, response.content) == (418, b"own: idempotency_key_missing")


def test_R78_error_renderer_may_answer_as_the_view_does(api: Api, mount: Mount) -> None:
    class Own(BareView):
        def idempotency_error_renderer(self, request: Request, members: dict[str, Any]) -> Response:
            return Response({"error": members["code"]}, status=members["status"])

    response = api(key=None, path=mount(Own))

    assert response.status_code == 400
    assert response.json() == {"error": "idempotency_key_missing"}
    assert response.headers["Content-Type"] == "application/json"


# What stays secret.

KEY, PAYLOAD = "confidential-key", "confidential-payload"


@pytest.mark.parametrize("code", [code for code in TABLE if code != "scope_missing"])
def test_R79_problems_and_logs_name_neither_key_nor_payload(
    problems: Problems, caplog: pytest.LogCaptureFixture, code: str
) -> None:
    caplog.set_level(logging.DEBUG)
    problems.api.key, problems.api.name = KEY, PAYLOAD

    response = problems.make(code)

    assert problem(response)[1] == code
    for text in (response.content.decode(), repr(response.headers), caplog.text):
        assert KEY not in text
        assert PAYLOAD not in text


@pytest.mark.parametrize("field", [f"{KEY}\x7f", f'"{KEY}', f"{KEY},", KEY * 20])
def test_R79_invalid_keys_are_not_repeated(
    api: Api, caplog: pytest.LogCaptureFixture, field: str
) -> None:
    caplog.set_level(logging.DEBUG)

    response = api(key=field)

    assert problem(response) == (400, "idempotency_key_invalid")
    assert KEY not in response.content.decode()
    assert KEY not in caplog.text


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("backend", ["CannotComplete", "CannotEnd"])
@pytest.mark.parametrize("then", ["created", "boom", "raised", "broken", "stream"])
def test_R79_failures_of_the_store_log_the_short_record_id(
    api: Api,
    policy: SetPolicy,
    mode: str,
    caplog: pytest.LogCaptureFixture,
    then: str,
    backend: str,
) -> None:
    caplog.set_level(logging.DEBUG)
    api.client.raise_request_exception = False
    policy(BACKEND=f"tests.unit.http.stores.{backend}")

    api({"name": PAYLOAD, "then": then, "status": 409}, key=KEY)

    logged = [record for record in caplog.records if record.name == "django_idempotency"]
    assert KEY not in caplog.text
    assert PAYLOAD not in "".join(record.getMessage() for record in logged)
    if record := IdempotencyRecord.objects.first():
        for line in logged:
            assert str(record.pk)[:12] in line.getMessage()
            assert str(record.pk)[:13] not in line.getMessage()


def test_R79_error_of_the_work_is_recorded_by_its_type_alone(api: Api, mount: Mount) -> None:
    class Telling(BareView):
        def post(self, request: Request) -> None:
            raise RuntimeError(PAYLOAD)

    with pytest.raises(RuntimeError):
        api(path=mount(Telling))

    assert IdempotencyRecord.objects.get().error == "builtins.RuntimeError"


@pytest.mark.parametrize("debug", [True, False])
def test_R31_debug_says_how_a_view_of_each_kind_asks_for_a_login(
    settings: Any, rf: RequestFactory, debug: bool
) -> None:
    settings.DEBUG = debug

    answer = problem_response(ScopeMissing(), rf.post("/"), HTTPPolicy())

    detail = json.loads(answer.content)["detail"]
    for told in ["@login_required above @idempotent", "permission_classes", "scopes.session"]:
        assert (told in detail) is debug
