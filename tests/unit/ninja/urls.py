"""APIs of django-ninja whose operations write an Effect, and answer as their body says."""
# mypy: ignore-errors

from __future__ import annotations

import functools
import json

from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.db import transaction
from django.http import HttpResponse, StreamingHttpResponse
from django.urls import path
from ninja import File, Header, NinjaAPI, Router, Schema, UploadedFile
from ninja.constants import NOT_SET
from ninja.decorators import decorate_view
from ninja.errors import HttpError
from ninja.renderers import BaseRenderer
from ninja.responses import Status
from ninja.security import APIKeyHeader, django_auth
from ninja.streaming import JSONL
from ninja.throttling import BaseThrottle

from django_idempotency.contrib.ninja import idempotent
from tests.app.models import Effect
from tests.unit.views.work import pieces


class Users(APIKeyHeader):
    """``X-User: alice`` is alice, as a user."""

    param_name = "X-User"

    def authenticate(self, request, key):
        return User.objects.get_or_create(username=key)[0] if key else None


class Keys(Users):
    """The same, as a mere text."""

    def authenticate(self, request, key):
        return key


class Throttle(BaseThrottle):
    def allow_request(self, request):
        return "X-Throttled" not in request.headers

    def wait(self):
        return 7


class Work(Schema):
    name: str = "first"
    then: str = "created"
    status: int = 201


class Made(Schema):
    id: int
    name: str


class Domain(Exception):
    """The API has a handler for it."""


class Odd(Exception):
    """The API has a handler for it, which raises."""


def act(work, response):
    """Write an Effect, then do as told."""
    effect = Effect.objects.create(name=work.name)
    match work.then:
        case "raised":
            raise HttpError(work.status, "raised")
        case "domain":
            raise Domain
        case "odd":
            raise Odd
        case "boom":
            raise RuntimeError("boom")
        case "misshapen":
            return Status(201, {"id": "no number"})
        case "broken_stream":
            return StreamingHttpResponse(pieces())
        case "rolled_back":
            transaction.set_rollback(True)
    response["Location"] = f"/effects/{effect.pk}/"
    response.set_cookie("seen", str(effect.pk))
    return Status(work.status, effect)


answers = {(200, 201, 402, 503): Made, 204: None}
api = NinjaAPI(auth=Users(), throttle=Throttle(), urls_namespace="api")
calls = []


@api.exception_handler(Domain)
def answer_domain(request, error):
    calls.append("domain")
    return api.create_response(request, {"detail": "domain"}, status=409)


@api.exception_handler(Odd)
def answer_odd(request, error):
    calls.append("odd")
    raise Domain


def work(request, work: Work, response: HttpResponse):
    return act(work, response)


async def awork(request, work: Work, response: HttpResponse):
    return await sync_to_async(act)(work, response)


def serve(router, route, function=work, *, auth=NOT_SET, **policy):
    """Let a function do its work behind a guard of its own; a key is required."""
    guard = idempotent(**{"required": True, **policy})
    router.post(route, response=answers, auth=auth)(guard(function))


serve(api, "/effects/")
serve(api, "/aeffects/", awork)
serve(api, "/ajoined/", awork, transaction="joined")
serve(api, "/optional/", required=False)


@api.post("/upload/{int:size}/")
@idempotent(required=True)
def upload(request, size: int, file: File[UploadedFile]):
    Effect.objects.create(name=file.name)
    return {"bytes": len(file.read()), "size": size}


@api.post("/bare/")
@idempotent(required=True)
def bare(request, amount: int):
    Effect.objects.create(name=str(amount))
    return {"amount": amount}


@api.post("/named/")
@idempotent(required=True)
def named(request, key: str = Header(alias="idempotency-key"), tag: str = Header("")):
    return {"key": key}


@api.get("/effects/")
def count(request):
    return {"count": Effect.objects.count()}


def allowed(function):
    @functools.wraps(function)
    def asked(request, *args, **kwargs):
        if "X-Forbidden" in request.headers:
            raise HttpError(403, "forbidden")
        return function(request, *args, **kwargs)

    return asked


api.post("/asked/", response=answers)(allowed(idempotent(required=True)(work)))


@api.post("/twice/", response=answers)
@idempotent
@decorate_view(idempotent(required=True))
@idempotent(required=True)
def twice(request, work: Work, response: HttpResponse):
    return act(work, response)


# A router whose operations are all guarded, mounted twice.
router = Router(auth=Users())
router.add_decorator(idempotent(required=True), mode="view")
router.add_decorator(allowed)


@router.post("/effects/", response=answers)
def of_router(request, work: Work, response: HttpResponse):
    return act(work, response)


@router.post("/mixed/", response=answers)
def made(request, work: Work, response: HttpResponse):
    return act(work, response)


@router.put("/mixed/", response=answers)
async def areplaced(request, work: Work, response: HttpResponse):
    return await sync_to_async(act)(work, response)


@router.get("/mixed/")
def listed(request):
    return {"count": Effect.objects.count()}


@router.get("/events/", response=JSONL[Made])
def events(request):
    yield from [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]


@router.get("/aevents/", response=JSONL[Made])
async def aevents(request):
    for event in events(request):
        yield event


serve(router, "/own/", required=False)
child = Router()
child.add_decorator(idempotent(required=False), mode="view")


@child.post("/effects/", response=answers)
def of_child(request, work: Work, response: HttpResponse):
    return act(work, response)


router.add_router("/child/", child)


@router.get("/effects/")
def read(request):
    return {"count": Effect.objects.count()}


class Plain(BaseRenderer):
    media_type = "text/plain"

    def render(self, request, data, *, response_status):
        return json.dumps(data).upper()


texts = NinjaAPI(urls_namespace="texts", renderer=Plain())
for other in (api, texts):
    other.add_router("/one/", router, url_name_prefix="one")
    other.add_router("/two/", router, url_name_prefix="two")


serve(texts, "/keys/", auth=Keys())
serve(texts, "/scoped/", auth=Keys(), scope=lambda request: f"key:{request.auth}")
serve(texts, "/session/", auth=django_auth)
serve(texts, "/open/")


class Heard(NinjaAPI):
    """Notes each error that it is asked about."""

    def on_exception(self, request, exc):
        calls.append(type(exc).__name__)
        return super().on_exception(request, exc)


heard = Heard(auth=Users(), urls_namespace="heard")
heard.add_exception_handler(Domain, answer_domain)
heard.add_exception_handler(Odd, answer_odd)


serve(heard, "/effects/")
serve(heard, "/aeffects/", awork)

urlpatterns = [
    path("api/", api.urls),
    path("heard/", heard.urls),
    path("texts/", texts.urls),
]
