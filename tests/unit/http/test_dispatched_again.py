"""R58: work that is tried again in the same request is another attempt, with a key or without."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from adrf.views import APIView as AsyncAPIView
from asgiref.sync import sync_to_async
from django.db import OperationalError
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.utils.decorators import method_decorator
from django.views import View
from rest_framework.decorators import api_view, authentication_classes
from rest_framework.response import Response
from rest_framework.views import APIView

from django_idempotency.contrib.rest_framework import IdempotencyMixin
from django_idempotency.http import idempotent
from django_idempotency.models import IdempotencyRecord
from tests.app.models import Effect
from tests.unit.http.api import replayed
from tests.unit.http.views import ANYONE, KEYED
from tests.unit.views.conftest import AsgiClient

pytestmark = pytest.mark.django_db(transaction=True)


class Deadlocks:
    """Work that the database ends at its first attempt."""

    def __init__(self) -> None:
        self.attempts = 0

    def __call__(self) -> None:
        self.attempts += 1
        Effect.objects.create(name=f"attempt {self.attempts}")
        if self.attempts == 1:
            raise OperationalError("deadlock detected")


def twice(view: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator of the project: try again after a deadlock."""

    def tried(*args: Any, **kwargs: Any) -> Any:
        try:
            return view(*args, **kwargs)
        except OperationalError:
            return view(*args, **kwargs)

    return tried


def atwice(view: Callable[..., Any]) -> Callable[..., Any]:
    async def tried(*args: Any, **kwargs: Any) -> Any:
        try:
            return await view(*args, **kwargs)
        except OperationalError:
            return await view(*args, **kwargs)

    return tried


class Twice:
    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        dispatch: Any = super().dispatch  # type: ignore[misc]
        return twice(dispatch)(request, *args, **kwargs)


class ATwice:
    async def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        dispatch: Any = super().dispatch  # type: ignore[misc]
        return await atwice(dispatch)(request, *args, **kwargs)


def _drf(work: Deadlocks, *bases: type) -> Any:
    def post(self: Any, request: Any) -> Response:
        work()
        return Response({"attempt": work.attempts}, status=201)

    return type("Tried", bases, {"authentication_classes": [], "post": post})


def outside(work: Deadlocks) -> Any:
    return _drf(work, Twice, IdempotencyMixin, APIView)


def within(work: Deadlocks) -> Any:
    return _drf(work, IdempotencyMixin, Twice, APIView)


def coroutine(work: Deadlocks) -> Any:
    async def post(self: Any, request: Any) -> Response:
        await sync_to_async(work)()
        return Response({"attempt": work.attempts}, status=201)

    members = {"authentication_classes": [], "post": post}
    return type("Tried", (ATwice, IdempotencyMixin, AsyncAPIView), members)


def below_api_view(work: Deadlocks) -> Any:
    @api_view(["POST"])
    @authentication_classes([])
    @idempotent
    def view(request: Any) -> Response:
        work()
        return Response({"attempt": work.attempts}, status=201)

    view.cls.dispatch = twice_bound(view.cls.dispatch)
    return view


def twice_bound(dispatch: Any) -> Any:
    def tried(self: Any, *args: Any, **kwargs: Any) -> Any:
        return twice(dispatch.__get__(self))(*args, **kwargs)

    return tried


def answered(work: Deadlocks) -> Callable[[HttpRequest], HttpResponse]:
    def view(request: HttpRequest) -> HttpResponse:
        work()
        return HttpResponse(f'{{"attempt": {work.attempts}}}', status=201)

    return view


def function(work: Deadlocks) -> Any:
    return twice(idempotent(answered(work)))


def class_view(work: Deadlocks) -> Any:
    members = {"post": lambda self, request: answered(work)(request)}
    decorated = method_decorator(idempotent, name="dispatch")(type("Plain", (View,), members))
    return type("Tried", (Twice, decorated), {})


DRF = [outside, within, coroutine, below_api_view]


@KEYED
@pytest.mark.parametrize("mode", ["joined", "single", "separate"], indirect=True)
@pytest.mark.parametrize("made", [*DRF, function, class_view])
def test_R58_work_that_is_tried_again_is_another_attempt(mount, policy, mode, made, key):
    policy(HTTP={"SCOPE": ANYONE})
    work = Deadlocks()
    url = mount(made(work))
    client: Any = AsgiClient() if made is coroutine else Client()

    def send() -> Any:
        return client.generic("POST", url, headers={"Idempotency-Key": key} if key else {})

    first = send()

    assert (first.status_code, json.loads(first.content)) == (201, {"attempt": 2})
    left = ["attempt 1", "attempt 2"] if mode == "separate" else ["attempt 2"]
    assert list(Effect.objects.values_list("name", flat=True)) == left
    if key:
        again = send()
        assert (replayed(again), again.content, work.attempts) == (True, first.content, 2)
        assert mode == "single" or IdempotencyRecord.objects.get().attempts == 2


@KEYED
def test_R58_answer_of_a_second_dispatch_is_finalised(mount, policy, key):
    """The first one's was, and is thrown away."""
    policy(HTTP={"SCOPE": ANYONE})
    answers = iter([503, 201])

    class Tried(IdempotencyMixin, APIView):
        authentication_classes: Any = ()

        def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> Any:
            response = super().dispatch(request, *args, **kwargs)
            again = response.status_code == 503
            return super().dispatch(request, *args, **kwargs) if again else response

        def post(self, request: Any) -> Response:
            return Response({}, status=next(answers))

    headers = {"Idempotency-Key": key} if key else {}
    assert Client().post(mount(Tried), headers=headers).status_code == 201


@pytest.mark.parametrize("made", [outside, within])
def test_R58_a_second_dispatch_reads_the_body_again(mount, policy, made):
    policy(HTTP={"SCOPE": ANYONE})

    view = made(Deadlocks())
    post = view.post
    view.post = lambda self, request: (request.data["amount"], post(self, request))[1]
    url, sent = mount(view), {"content_type": "application/json"}

    def send(amount: int) -> Any:
        body, headers = {"amount": amount}, {"Idempotency-Key": "key-1"}
        return Client().post(url, body, **sent, headers=headers)

    assert [send(5).status_code, send(5).status_code, send(6).status_code] == [201, 201, 422]


def test_R1_handler_of_a_method_that_initial_has_changed_is_guarded(mount, policy):
    policy(HTTP={"SCOPE": ANYONE})
    runs = []

    class Overridden(IdempotencyMixin, APIView):
        authentication_classes: Any = ()

        def initial(self, request: Any, *args: Any, **kwargs: Any) -> None:
            super().initial(request, *args, **kwargs)
            request.method = "DELETE"

        def post(self, request: Any) -> Response:
            raise AssertionError("the method was changed")

        def delete(self, request: Any) -> Response:
            runs.append("deleted")
            return Response({}, status=201)

    url = mount(Overridden)
    first, again = (Client().post(url, headers={"Idempotency-Key": "key-1"}) for _ in range(2))
    assert (first.status_code, replayed(again), runs) == (201, True, ["deleted"])
