"""What all the views of these tests do: write an Effect, then answer as the body says."""
# mypy: ignore-errors

from __future__ import annotations

import asyncio
import threading

from asgiref.sync import sync_to_async
from django.core.exceptions import BadRequest, PermissionDenied, SuspiciousOperation
from django.db import transaction
from django.http import Http404, HttpResponse, JsonResponse, StreamingHttpResponse
from django.template import engines
from django.template.response import TemplateResponse

import django_idempotency as idempotency
from django_idempotency.models import IdempotencyRecord
from tests.app.models import Effect

PATIENCE = 60
#: A body that lets the work stop at the gate.
PAUSED = {"then": "paused", "name": "first"}


class Gate:
    """Where work of the kind "paused" stands still until the test lets it go on."""

    def __init__(self):
        self.reached = threading.Event()
        self.open = threading.Event()
        #: What the next ones do behind it; then each does what its body says.
        self.orders = []

    def work(self, data):
        """Return what is to be done behind the gate."""
        return THEN[self.orders.pop(0) if self.orders else data.get("after", "created")]

    def passed(self):
        """Say that the work has come this far, and wait for the test."""
        self.reached.set()
        assert self.open.wait(PATIENCE), "nobody opened the gate"

    async def apassed(self):
        """See `passed`; a cancellation ends it."""
        self.reached.set()
        for _ in range(PATIENCE * 200):
            if self.open.is_set():
                return
            await asyncio.sleep(0.005)
        raise AssertionError("nobody opened the gate")


#: The gate of the running test, under "gate".
gates: dict[str, Gate] = {}


def created(data, effect):
    response = JsonResponse({"id": effect.pk, "name": effect.name}, status=201)
    response["Location"] = f"/effects/{effect.pk}/"
    response["ETag"] = f'"{effect.pk}"'
    response.set_cookie("seen", str(effect.pk))
    return response


def status(data, effect):
    return JsonResponse({"status": data["status"]}, status=data["status"])


def template(data, effect):
    """A response that is rendered after the view has returned it: its template writes."""
    page = engines["django"].from_string("{{ write }}")
    context = {"write": lambda: Effect.objects.create(name="rendered").pk}
    return TemplateResponse(None, page, context, status=201)


def replaced(data, effect):
    """A response that a callback replaces once it is rendered, as a middleware's decorator does."""
    response = TemplateResponse(None, engines["django"].from_string("as it was"))
    new = HttpResponse("replaced", headers={"X-Replaced": "yes"}, status=201)
    response.add_post_render_callback(lambda rendered: new)
    return response


def stream(data, effect):
    return StreamingHttpResponse([b"a", b"b"])


#: What a generator of a stream found when it was first asked for a piece.
found = []


def pieces():
    """A body that notes the states of all records, and breaks off after one piece."""
    found.append([*IdempotencyRecord.objects.values_list("state", flat=True)])
    yield b"a"
    raise OSError("broken off")


async def apieces():
    """See `pieces`."""
    found.append(
        [state async for state in IdempotencyRecord.objects.values_list("state", flat=True)]
    )
    yield b"a"
    raise OSError("broken off")


def broken_stream(data, effect):
    return StreamingHttpResponse(apieces() if "asynchronous" in data else pieces())


def nothing(data, effect):
    """No response."""


def raising(error, then):
    def work(data, effect):
        raise error(then)

    return work


#: What work may raise, with its own name as the text.
RAISED = {
    "bad": BadRequest,
    "boom": RuntimeError,
    "denied": PermissionDenied,
    "missing": Http404,
    "suspicious": SuspiciousOperation,
}


def hook_busy(data, effect):
    """An idempotent call after the commit, whose key another has."""
    transaction.on_commit(lambda: raising(idempotency.InProgress, "busy")(data, effect))
    return created(data, effect)


def nested(data, effect):
    """An idempotent call of the work's own, on another store."""
    idempotency.run(lambda lease: None, key="nested", scope="nested", store="down")
    return created(data, effect)


def lose(lease):
    lease.mark_lost()
    lease.check()


def loses_theirs(data, effect):
    """The lease of a call within the work is lost."""
    idempotency.run(lose, key="nested", scope="nested", store="memory")


def loses_ours(data, effect):
    """The lease of this work is lost."""
    lose(idempotency.current())


def loses_and_meets(data, effect):
    """The lease of this work is lost, and a call within it meets another attempt."""
    idempotency.current().mark_lost()
    raise idempotency.InProgress


def paused(data, effect):
    gates["gate"].passed()
    return gates["gate"].work(data)(data, effect)


THEN = {
    function.__name__: function
    for function in (
        *(broken_stream, created, hook_busy, loses_and_meets, loses_ours, loses_theirs, nested),
        *(nothing, paused, replaced, status, stream, template),
    )
} | {then: raising(error, then) for then, error in RAISED.items()}


def act(data) -> HttpResponse:
    """Write an Effect, and answer as told."""
    effect = Effect.objects.create(name=data.get("name", "first"))
    return THEN[data.get("then", "created")](data, effect)


async def aact(data) -> HttpResponse:
    """See `act`."""
    if data.get("then") != "paused":
        return await sync_to_async(act)(data)
    effect = await Effect.objects.acreate(name=data.get("name", "first"))
    await gates["gate"].apassed()
    return await sync_to_async(gates["gate"].work(data))(data, effect)
