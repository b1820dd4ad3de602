"""The same work behind operations of django-ninja, of every policy."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.urls import path
from ninja import File, Form, NinjaAPI, Schema, UploadedFile
from ninja.errors import HttpError
from ninja.responses import Status
from ninja.security import APIKeyHeader
from ninja.throttling import BaseThrottle

from django_idempotency.contrib.ninja import idempotent
from tests.app.contract.views import THEN, _may_go_on, as_text, is_allowed
from tests.app.models import Effect


class Users(APIKeyHeader):
    """``X-User: alice`` is alice."""

    param_name = "X-User"

    def authenticate(self, request: HttpRequest, key: str | None) -> User | None:
        if "X-Forbidden" in request.headers:
            raise HttpError(403, "forbidden")
        return User.objects.get_or_create(username=key)[0] if key else None


class OnDemand(BaseThrottle):
    def allow_request(self, request: HttpRequest) -> bool:
        return "X-Throttled" not in request.headers


class Told(Schema):
    name: str
    then: str = "created"
    status: int = 201
    value: Any = None


class Made(Schema):
    id: int
    name: str


def _hook(name: str, *, fails: bool = False) -> None:
    def hook() -> None:
        if fails:
            raise RuntimeError("boom in a hook")
        Effect.objects.create(name=f"hook of {name}")

    transaction.on_commit(hook)


def work(request: HttpRequest, told: Told, response: HttpResponse) -> Any:
    effect = Effect.objects.create(name=told.name)
    match told.then:
        case "created":
            pass
        case "returned":
            return Status(told.status, effect)
        case "raised":
            raise HttpError(told.status, "raised")
        case "boom":
            raise RuntimeError("boom")
        case "hook" | "hook_of_a_failure" | "hook_boom":
            _hook(told.name, fails=told.then == "hook_boom")
            if told.then == "hook_of_a_failure":
                raise RuntimeError("boom")
        case "mutated":
            told.name = "another"
        case "empty":
            return Status(204, None)
        case "accepted":
            return Status(202, effect)
        case "value":
            return HttpResponse(json.dumps(told.value), content_type="application/json")
        case _:  # answers that are responses already, and work that waits
            answer = THEN[told.then](request, effect)  # type: ignore[arg-type]
            if told.then not in ("held", "first_held", "first_failing"):
                return answer
    response["Location"] = f"/effects/{effect.pk}/"
    response["ETag"] = f'"{effect.pk}"'
    response["X-Request-Id"] = f"request-{effect.pk}"
    response["X-Custom"] = f"custom-{effect.pk}"
    response.set_cookie("seen", str(effect.pk))
    return Status(201, effect)


async def awork(request: HttpRequest, told: Told) -> Any:
    effect = await Effect.objects.acreate(name=told.name)
    while told.then == "held" and not _may_go_on(effect.name):
        await asyncio.sleep(0.005)
    return Status(201, effect)


def form(request: HttpRequest, name: Form[str], file: File[UploadedFile | None] = None) -> Any:
    effect = Effect.objects.create(name=name)
    return {"id": effect.pk, "size": file and file.size}


def named(request: HttpRequest, name: str) -> Any:
    return {"id": Effect.objects.create(name=name).pk}


def long(request: HttpRequest, tail: Any, told: Told, response: HttpResponse) -> Any:
    return work(request, told, response)


api = NinjaAPI(auth=Users(), throttle=OnDemand(), urls_namespace="contract")


def serve(route: str, function: Callable[..., Any] = work, **policy: Any) -> None:
    guard = idempotent(**{"required": True, **policy})
    response = {204: None, ...: Made} if function in (work, awork, long) else Any
    methods = ["POST"] if function is form else ["POST", "PUT", "PATCH", "DELETE"]
    api.api_operation(methods, route, response=response)(guard(function))


serve("/effects/")
serve("/optional/", required=False)
serve("/elsewhere/")
serve("/effects/{int:tail}/", long)
serve("/long/{path:tail}", long)
serve("/any/{name}/", named)
serve("/form/", form)
serve("/strict/", strict_header=True)
serve("/uuids/", key_validator="uuid")
serve("/echo/", echo_key=True)
serve("/only-post/", methods={"POST"})
serve("/by-endpoint/one/", scope_endpoint=True)
serve("/by-endpoint/other/", scope_endpoint=True)
serve("/as-bytes/", fingerprint="raw")
serve("/uncompared/", fingerprint=None)
serve("/excluding/", fingerprint_exclude=["value.noise"])
serve("/by-version/", fingerprint_headers=["X-Version"])
serve("/rendered/", error_renderer=as_text)
serve("/adorned/", replay_headers=["X-Custom"])
serve("/checked/", replay_check=is_allowed)
serve("/success/", keep="success")
serve("/stripe/", keep="stripe")
serve("/waiting/", wait=30)
serve("/lease/", lease=8)
serve("/renewed/", lease=4)
serve("/lapsing/", lease=2.5, renew=False)
serve("/stale/", lease=2.5, renew=False, on_stale="refuse")
serve("/short/", retention=4)
serve("/incomplete/", store="incomplete")
serve("/incomplete/separate/", store="incomplete", transaction="separate")
serve("/down/", store="down")
serve("/down/open/", store="down", fail_open=True)
serve("/coroutine/", awork, transaction="joined")
api.get("/read-only/")(lambda request: {})

urlpatterns = [path("", api.urls)]
