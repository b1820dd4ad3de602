"""What all the views of these tests do: write an Effect, then answer as the body says."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from typing import Any

from asgiref.sync import sync_to_async
from django.core.exceptions import BadRequest, PermissionDenied, SuspiciousOperation
from django.db import connection, transaction
from django.http import Http404, HttpResponse, JsonResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.template import engines
from django.template.response import TemplateResponse

import django_idempotency as idempotency
from tests.app.models import Child, Effect

PATIENCE = 30

Data = Mapping[str, Any]

#: A body that lets the work stop at the gate.
PAUSED = {"then": "paused", "name": "first"}


class Gate:
    """Where work of the kind "paused" stands still until the test lets it go on."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.open = threading.Event()
        #: What the next ones do behind it; then each does what its body says.
        self.orders: list[str] = []

    def order(self, data: Data) -> str:
        """Return what is to be done behind the gate."""
        return self.orders.pop(0) if self.orders else str(data.get("after", "created"))

    def passed(self) -> None:
        """Say that the work has come this far, and wait for the test."""
        self.reached.set()
        assert self.open.wait(PATIENCE), "nobody opened the gate"

    async def apassed(self) -> None:
        """See `passed`; a cancellation ends it."""
        self.reached.set()
        for _ in range(PATIENCE * 200):
            if self.open.is_set():
                return
            await asyncio.sleep(0.005)
        raise AssertionError("nobody opened the gate")


#: The gate of the running test, under "gate".
gates: dict[str, Gate] = {}


def created(data: Data, effect: Effect) -> HttpResponseBase:
    response = JsonResponse({"id": effect.pk, "name": effect.name}, status=201)
    response["Location"] = f"/effects/{effect.pk}/"
    response["ETag"] = f'"{effect.pk}"'
    response.set_cookie("seen", str(effect.pk))
    return response


def status(data: Data, effect: Effect) -> HttpResponseBase:
    return JsonResponse({"status": data["status"]}, status=data["status"])


def redirect(data: Data, effect: Effect) -> HttpResponseBase:
    return HttpResponse(status=303, headers={"Location": f"/effects/{effect.pk}/"})


def template(data: Data, effect: Effect) -> HttpResponseBase:
    """A response that is rendered after the view has returned it: its template writes."""
    page: Any = engines["django"].from_string("{{ write }}")
    context = {"write": lambda: Effect.objects.create(name="rendered").pk}
    return TemplateResponse(None, page, context, status=201)  # type: ignore[arg-type]


#: What work may raise, with its own name as the text.
RAISED = {
    "bad": BadRequest,
    "boom": RuntimeError,
    "denied": PermissionDenied,
    "missing": Http404,
    "suspicious": SuspiciousOperation,
}


def raising(then: str) -> Callable[[Data, Effect], HttpResponseBase]:
    def work(data: Data, effect: Effect) -> HttpResponseBase:
        raise RAISED[then](then)

    return work


def deferred(data: Data, effect: Effect) -> HttpResponseBase:
    """The COMMIT fails."""
    Child.objects.create(parent_id=10**9)
    return created(data, effect)


def hook(data: Data, effect: Effect) -> HttpResponseBase:
    transaction.on_commit(lambda: Effect.objects.create(name="hook") and None)
    return JsonResponse({}, status=data.get("status", 201))


def hook_boom(data: Data, effect: Effect) -> HttpResponseBase:
    transaction.on_commit(lambda: raising("boom")(data, effect) and None)
    return created(data, effect)


def rolled_back(data: Data, effect: Effect) -> HttpResponseBase:
    transaction.set_rollback(True)
    return JsonResponse({}, status=409)


def hook_busy(data: Data, effect: Effect) -> HttpResponseBase:
    """An idempotent call after the commit, whose key another has."""

    def fail() -> None:
        raise idempotency.InProgress

    transaction.on_commit(fail)
    return created(data, effect)


def nested(data: Data, effect: Effect) -> HttpResponseBase:
    """An idempotent call of the work's own, on another store."""
    idempotency.run(lambda lease: None, key="nested", scope="nested", store="down")
    return created(data, effect)


def nested_later(data: Data, effect: Effect) -> HttpResponseBase:
    """See `nested`: after the commit."""
    transaction.on_commit(lambda: nested(data, effect) and None)
    return created(data, effect)


def loses_theirs(data: Data, effect: Effect) -> HttpResponseBase:
    """The lease of a call within the work is lost."""

    def work(lease: idempotency.Lease) -> None:
        lease.mark_lost()
        lease.check()

    idempotency.run(work, key="nested", scope="nested", store="memory")
    return created(data, effect)


def loses_ours(data: Data, effect: Effect) -> HttpResponseBase:
    """The lease of this work is lost."""
    lease = idempotency.current()
    assert lease is not None
    lease.mark_lost()
    lease.check()
    return created(data, effect)


def nothing(data: Data, effect: Effect) -> Any:
    """No response."""
    return None


def stream(data: Data, effect: Effect) -> HttpResponseBase:
    return StreamingHttpResponse([b"a", b"b"])


def paused(data: Data, effect: Effect) -> HttpResponseBase:
    gates["gate"].passed()
    return THEN[gates["gate"].order(data)](data, effect)


def away(data: Data, effect: Effect) -> HttpResponseBase:
    """Stand at the gate without a connection."""
    connection.close()
    return paused(data, effect)


def slow(data: Data, effect: Effect) -> HttpResponseBase:
    threading.Event().wait(0.1)
    return created(data, effect)


THEN: dict[str, Callable[[Data, Effect], HttpResponseBase]] = {
    **{then: raising(then) for then in RAISED},
    **{
        function.__name__: function
        for function in (
            *(away, created, deferred, hook, hook_boom, hook_busy, loses_ours, loses_theirs),
            *(nested, nested_later, nothing, paused, redirect, rolled_back, slow, status, stream),
            template,
        )
    },
}


def act(data: Data) -> HttpResponseBase:
    """Write an Effect, and answer as told."""
    effect = Effect.objects.create(name=data.get("name", "first"))
    return THEN[data.get("then", "created")](data, effect)


async def aact(data: Data) -> HttpResponseBase:
    """See `act`."""
    if data.get("then") != "paused":
        return await sync_to_async(act)(data)
    effect = await Effect.objects.acreate(name=data.get("name", "first"))
    await gates["gate"].apassed()
    return await sync_to_async(THEN[gates["gate"].order(data)])(data, effect)
