"""R2, R43, R89: a multipart form is left to the view as it came, whoever looked for its key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.core.files.uploadhandler import TemporaryFileUploadHandler
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from django_idempotency.http import content, idempotent
from django_idempotency.models import IdempotencyRecord
from tests.app.models import Effect
from tests.unit.forms.conftest import Part, multipart
from tests.unit.http.api import replayed
from tests.unit.views.conftest import api_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls(__name__)]

ANYONE = "django_idempotency.http.scopes.anyone"
PARTS: tuple[Part, ...] = (
    ("title", None, None, b"Report"),
    ("file", "a.pdf", "application/pdf", b"%PDF one"),
)
KEY: Part = ("idempotency_key", None, None, b"of the form")


def body(request: HttpRequest) -> Any:
    return len(request.body)


def stream(request: HttpRequest) -> Any:
    return len(request.read())


def handlers(request: HttpRequest) -> Any:
    request.upload_handlers = [TemporaryFileUploadHandler(request)]
    return type(request.FILES["file"]).__name__


def parsed(request: Any) -> Any:
    return [request.POST["title"], request.FILES["file"].read().decode()]


READ: dict[str, Callable[[HttpRequest], Any]] = {
    "body": body,
    "stream": stream,
    "handlers": handlers,
    "parsed": parsed,
}


def guarded(read: Callable[[HttpRequest], Any]) -> Any:
    @csrf_exempt
    @idempotent(scope=ANYONE)
    def view(request: HttpRequest) -> HttpResponse:
        Effect.objects.create(name="read")
        return JsonResponse({"read": read(request)}, status=201)

    return view


def async_guarded(read: Callable[[HttpRequest], Any]) -> Any:
    @csrf_exempt
    @idempotent(scope=ANYONE)
    async def view(request: HttpRequest) -> HttpResponse:
        return JsonResponse({"read": read(request)}, status=201)

    return view


def looked_at(request: HttpRequest) -> Any:
    assert request.POST
    return plain(request)


plain = guarded(parsed)
urlpatterns = [
    *(path(f"{name}/", guarded(read)) for name, read in READ.items()),
    *(path(f"async/{name}/", async_guarded(read)) for name, read in READ.items()),
    path("either/", lambda request: (looked_at if "X-Look" in request.headers else plain)(request)),
]


@pytest.mark.parametrize("key", [None, "of the header"])
@pytest.mark.parametrize("stack", ["wsgi", "asgi"])
@pytest.mark.parametrize("name", READ)
def test_R2_R43_the_view_reads_the_form_as_it_likes(name: str, stack: str, key: str | None) -> None:
    sent, content_type = multipart(*PARTS)
    view = f"/async/{name}/" if stack == "asgi" else f"/{name}/"

    response = api_for(stack)(sent, path=view, key=key, content_type=content_type)

    expected = {"handlers": "TemporaryUploadedFile", "parsed": ["Report", "%PDF one"]}
    assert response.json() == {"read": expected.get(name, len(sent))}


@pytest.mark.parametrize("name", READ)
def test_R89_key_in_the_form_of_a_csrf_exempt_view(name: str) -> None:
    arguments: dict[str, Any] = {"path": f"/{name}/", "key": None}
    answers = []
    for boundary in ("one", "another"):
        sent, content_type = multipart(*PARTS, KEY, boundary=boundary)
        answers.append(api_for("wsgi")(sent, content_type=content_type, **arguments))

    assert [replayed(answer) for answer in answers] == [False, True]
    assert Effect.objects.count() == 1
    assert IdempotencyRecord.objects.get().key == "of the form"


def test_R43_the_form_is_parsed_apart_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """By who looks for the key, and not again for the fingerprint."""
    times: list[HttpRequest] = []
    parse = content._parsed_apart

    def noted(request: HttpRequest) -> Any:
        times.append(request)
        return parse(request)

    monkeypatch.setattr(content, "_parsed_apart", noted)
    sent, content_type = multipart(*PARTS, KEY)

    api_for("wsgi")(sent, path="/parsed/", key=None, content_type=content_type)

    assert len(times) == 1


@pytest.mark.parametrize("looked", [("yes", None), (None, "yes")])
def test_R43_it_is_the_same_request_whether_it_was_parsed_before_or_not(looked: Any) -> None:
    sent, content_type = multipart(*PARTS)

    answers = [
        api_for("wsgi")(sent, path="/either/", content_type=content_type, headers={"X-Look": look})
        for look in looked
    ]

    assert [answer.status_code for answer in answers] == [201, 201]
    assert replayed(answers[1])
