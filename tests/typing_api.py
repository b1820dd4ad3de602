"""How users type the public calls: checked by mypy like a behaviour, and never run."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, assert_type

from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import ViewSet

import django_idempotency as idempotency
from django_idempotency import InProgress, Outcome
from django_idempotency.codecs import JSONCodec
from django_idempotency.contrib.rest_framework import IdempotencyMixin
from django_idempotency.leases import Lease
from django_idempotency.records import Record


def charge(lease: Lease) -> dict[str, str]:
    lease.check()
    assert_type(lease.fencing_token, int)
    return {"id": lease.derive_key("charge")}


async def acharge(lease: Lease) -> str:
    return lease.derive_key("charge")


def call() -> Any:
    policy: dict[str, Any] = {"lease": timedelta(seconds=5), "transaction": "joined"}
    codec, of = JSONCodec(), {"amount": 5}
    outcome = idempotency.run(charge, key="k", scope="s", payload=of, codec=codec, **policy)
    assert_type(outcome, Outcome)
    assert_type(outcome.replayed, bool)
    assert_type(outcome.stored, bool)
    idempotency.run(lambda lease: lease.fencing_token, key="k", scope="s", store="a", retention=5)
    return outcome.result


async def acall() -> Outcome:
    return await idempotency.arun(acharge, key="k", scope="s", operation="charge")


def block() -> Any:
    with idempotency.attempt(key="k", scope="s") as attempt:
        assert_type(attempt.replayed, bool)
        if not attempt.replayed:
            attempt.complete(charge(attempt.lease))
    assert_type(attempt.outcome, Outcome)
    return attempt.result


async def ablock() -> Any:
    async with idempotency.attempt(key="k", scope="s", payload=[1]) as attempt:
        if not attempt.replayed:
            attempt.complete(await acharge(attempt.lease))
    return attempt.result


@idempotency.idempotent_function(key="message_id", scope="queue")
def handle(message_id: str, amount: int = 0) -> list[str]:
    return [message_id, idempotency.derive_key("charge")]


@idempotency.idempotent_function(key=lambda n: f"m-{n}", scope="queue", payload=lambda n: None)
async def ahandle(n: int) -> int:
    return n


async def decorated() -> None:
    assert_type(handle("a", amount=5), list[str])
    assert_type(await ahandle(5), int)
    handle(5)  # type: ignore[arg-type]
    handle("a", nonesuch=5)  # type: ignore[call-arg]


def inside(error: InProgress) -> tuple[int, bool]:
    assert_type(idempotency.current(), Lease | None)
    assert_type(error.record, Record | None)
    return error.retry_after, error.stale


def wrong() -> None:
    idempotency.run(charge, key="k")  # type: ignore[call-arg]
    idempotency.run(lambda: 5, key="k", scope="s")  # type: ignore[arg-type, misc]
    idempotency.run(charge, key=5, scope="s")  # type: ignore[arg-type]
    idempotency.idempotent_function(scope="s")  # type: ignore[call-arg]


class PaymentViewSet(IdempotencyMixin, ViewSet):
    idempotency_required = True
    idempotency_actions = {"create", "capture"}
    idempotency_lease = timedelta(minutes=5)

    @action(detail=True, methods=["post"], idempotency_lease=300)
    def capture(self, request: Request, pk: str) -> Response:
        return Response()

    def idempotency_scope(self, request: Request) -> str:
        return str(request.user.pk)
