"""
How users type the public calls, and mistakes of theirs: checked by mypy and pyright, never run.

An ignored error that one of them does not find is an error there.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, assert_type
from uuid import UUID

import httpx
from celery import shared_task
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client, TestCase
from django.views import View
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.test import APIClient
from rest_framework.viewsets import ViewSet

import django_idempotency as idempotency
from django_idempotency import InProgress, Outcome
from django_idempotency.codecs import JSONCodec
from django_idempotency.contrib.celery import idempotent_task
from django_idempotency.contrib.ninja import idempotent as idempotent_operation
from django_idempotency.contrib.rest_framework import IdempotencyMixin
from django_idempotency.http import (
    IdempotencyViewMixin,
    IdempotentRequest,
    idempotent,
    scopes,
)
from django_idempotency.leases import Lease
from django_idempotency.options import PolicyOptions
from django_idempotency.records import Record
from django_idempotency.testing import keyed_client, keyed_clients


def charge(lease: Lease) -> dict[str, str]:
    lease.check()
    assert_type(lease.fencing_token, int)
    return {"id": lease.derive_key("charge")}


async def acharge(lease: Lease) -> str:
    return lease.derive_key("charge")


class TextCodec:
    id = "text"
    exact = True

    def encode(self, result: str) -> bytes:
        return result.encode()

    def decode(self, payload: bytes) -> str:
        return payload.decode()


def call() -> Any:
    policy: dict[str, Any] = {"lease": timedelta(seconds=5), "transaction": "joined"}
    codec, of = JSONCodec(), {"amount": 5}
    outcome = idempotency.run(charge, key="k", scope="s", payload=of, codec=codec, **policy)
    assert_type(outcome, Outcome[dict[str, str]])
    assert_type(outcome.replayed, bool)
    assert_type(outcome.stored, bool)
    fence = idempotency.run(lambda lease: lease.fencing_token, key="k", scope="s", retention=5)
    assert_type(fence.result, int)
    idempotency.run(lambda lease: "héllo", key="k", scope="s", codec=TextCodec())
    return outcome.result


async def acall() -> Outcome[str]:
    return await idempotency.arun(acharge, key="k", scope="s", operation="charge", wait=2.5)


def bare(outcome: Outcome) -> Any:
    return outcome.result


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
    handle(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    handle("a", nonesuch=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def inside(error: InProgress) -> tuple[int, bool]:
    assert_type(idempotency.current(), Lease | None)
    assert_type(error.record, Record | None)
    return error.retry_after, error.stale


def order(cart_id: int, *, total: int = 0) -> dict[str, int]:
    return {"id": cart_id, "total": total}


async def acharge_by(key: str) -> str:
    return key


def found(key: str) -> int:
    raise idempotency.NotDone


async def afound(key: str) -> str:
    raise idempotency.NotDone("The bank has no such transfer.")


def steps(lease: Lease) -> str:
    made = lease.step("order", order, 7, total=5)
    assert_type(made, dict[str, int])
    assert_type(idempotency.step("again", order, 7), dict[str, int])
    lease.step("wrong", order, "7")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    lease.step("wrong", order)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    charged = lease.external("charge", lambda key: len(key), uncertain="repeat")
    assert_type(charged, int)
    assert_type(lease.external("refuse", len, uncertain="refuse"), int)
    assert_type(lease.external("ask", len, uncertain=found), int)
    assert_type(idempotency.external("refuse", len, uncertain="refuse"), int)
    assert_type(idempotency.external("ask", len, uncertain=lambda key: len(key)), int)
    lease.external("wrong", len, uncertain=len, again=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    idempotency.external("wrong", len)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    wrong = idempotency.external("x", str, uncertain="maybe")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    return wrong


async def asteps(lease: Lease) -> int:
    assert_type(await lease.astep("order", order, 7), dict[str, int])
    assert_type(await idempotency.astep("again", order, cart_id=7), dict[str, int])
    assert_type(await lease.aexternal("a", acharge_by, uncertain="repeat"), str)
    assert_type(await idempotency.aexternal("b", acharge_by, uncertain="repeat"), str)
    assert_type(await lease.aexternal("refuse", acharge_by, uncertain="refuse"), str)
    assert_type(await lease.aexternal("ask", acharge_by, uncertain=afound), str)
    assert_type(await idempotency.aexternal("ask", acharge_by, uncertain=afound), str)
    await lease.aexternal("wrong", acharge_by, uncertain=found)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await lease.aexternal("wrong", found, uncertain="refuse")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    return 1


def uncertain(error: idempotency.Uncertain) -> tuple[bool, str, str, UUID | None]:
    return error.stale, error.step, error.key, error.record_id


def with_steps() -> None:
    outcome = idempotency.run(steps, key="k", scope="s", transaction="steps", max_steps_bytes=9)
    assert_type(outcome, Outcome[str])


@idempotent
def plain(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


@idempotent_operation(required=True, operation="pay", lease=timedelta(minutes=5))
async def operation(request: HttpRequest, amount: int) -> dict[str, int]:
    return {"amount": amount}


@idempotent(required=True, operation="pay", scope=scopes.user, keep="success", lease=5)
def pay(request: IdempotentRequest) -> HttpResponse:
    assert_type(request.idempotency, Lease | None)
    return HttpResponse()


views: tuple[Callable[[HttpRequest], HttpResponse], Any] = (plain, pay)


@shared_task(acks_late=True)
@idempotent_task(key="order_id", on_in_progress="wait", transaction="separate")
def book(order_id: str) -> None: ...


@idempotent_task("{order_id}#{day}", retention=3600)
def remind(order_id: str, day: int) -> str:
    return order_id


assert_type(remind("o-1", 5), str)
options: PolicyOptions = {"lease": 300, "on_stale": "refuse"}


class PaymentViewSet(IdempotencyMixin, ViewSet):
    idempotency_required = True
    idempotency_actions = {"create", "capture"}
    idempotency_operation = "payment"
    idempotency_lease = timedelta(minutes=5)
    idempotency_retention = 3600
    idempotency_transaction = "joined"
    idempotency_fingerprint_exclude = ("client.sent_at",)
    idempotency_methods = {"POST"}

    @action(detail=True, methods=["post"], idempotency_lease=300)
    def capture(self, request: Request, pk: str) -> Response:
        return Response()

    def idempotency_scope(self, request: Request) -> str:
        return str(request.user.pk)


class OrderView(IdempotencyViewMixin, View):
    idempotency_guards = "dispatch"
    idempotency_methods = {"POST"}

    def idempotency_scope(self, request: HttpRequest) -> str:
        return str(request.user.pk)


class OldTests(TestCase):
    client_class = keyed_client(Client)
    async_client_class = keyed_client(AsyncClient)

    @keyed_clients()
    async def test_a_payment(self) -> None:
        assert_type(keyed_client(APIClient()), APIClient)


# What must be refused: mistakes in a user's project.


def calls_without_what_they_need() -> None:
    idempotency.run(charge, key="k")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    idempotency.run(lambda: 5, key="k", scope="s")  # type: ignore[arg-type, misc]  # pyright: ignore[reportArgumentType]
    idempotency.run(charge, key=5, scope="s")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    idempotency.idempotent_function(scope="s")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def calls_with_wrong_options() -> None:
    idempotency.run(charge, key="k", scope="s", leese=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    idempotency.run(charge, key="k", scope="s", lease="5 minutes")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    idempotency.run(charge, key="k", scope="s", transaction="none")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    idempotency.run(charge, key="k", scope="s", required=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    idempotency.attempt(key="k", scope="s", renew="no")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    idempotency.idempotent_function(key="k", scope="s", on_stale="retry")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    idempotent_operation(leese=5)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    idempotent(operation=5)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    idempotent_operation(operation=5)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    idempotent(header=5)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    idempotent(keep="all")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    idempotent(methods="POST")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    idempotent("required")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    idempotent_task(key="order_id", on_duplicate="fail")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    idempotent_task(key="order_id", retention="1 day")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]


def clients_of_no_test() -> None:
    keyed_client(httpx.Client)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]


def results_of_another_type() -> str:
    return idempotency.run(lambda lease: lease.fencing_token, key="k", scope="s").result  # type: ignore[return-value]  # pyright: ignore[reportReturnType]


@idempotent
def unasked(request: IdempotentRequest) -> str:
    return request.idempotency.derive_key("charge")  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]


class Mistaken(IdempotencyMixin, ViewSet):
    idempotency_required = "yes"  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    idempotency_operation = 5  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    idempotency_actions = "create"  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    idempotency_lease = "5 minutes"  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    idempotency_transaction = "always"  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    idempotency_max_result_bytes = 1.5  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]


class MistakenView(IdempotencyViewMixin, View):
    idempotency_required = "yes"  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    idempotency_guards = "post"  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
