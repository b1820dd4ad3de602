"""R58: work that is tried again in the same request is another attempt, with a key or without."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import isawaitable
from typing import Any

import pytest
from adrf.views import APIView as AsyncAPIView
from asgiref.sync import sync_to_async
from django.db import OperationalError
from django.http import JsonResponse
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
from tests.unit.http.views import KEYED
from tests.unit.views.conftest import AsgiClient

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("anyone")]


class Deadlocks:
    """Work that the database ends at its first attempt."""

    def __init__(self, response: Callable[..., Any] = JsonResponse) -> None:
        self.attempts = 0
        self.response = response

    def __call__(self, request: Any) -> Any:
        self.attempts += 1
        Effect.objects.create(name=f"attempt {self.attempts}")
        if self.attempts == 1:
            raise OperationalError("deadlock detected")
        return self.response({"attempt": self.attempts}, status=201)


def tried_again(view: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator of the project: try again after a deadlock."""

    def tried(*args: Any, **kwargs: Any) -> Any:
        try:
            answer = view(*args, **kwargs)
        except OperationalError:
            return view(*args, **kwargs)
        return atried(answer, *args, **kwargs) if isawaitable(answer) else answer

    async def atried(answer: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return await answer
        except OperationalError:
            return await view(*args, **kwargs)

    return tried


dispatched_again = method_decorator(tried_again, name="dispatch")


def of_class(work: Any, *bases: type) -> Any:
    members = {"authentication_classes": [], "post": lambda self, request: work(request)}
    return type("Pay", bases, members)


def outside(work: Any) -> Any:
    return dispatched_again(of_class(work, IdempotencyMixin, APIView))


def within(work: Any) -> Any:
    again: Any = dispatched_again(type("Again", (APIView,), {}))
    return of_class(work, IdempotencyMixin, again)


def coroutine(work: Any) -> Any:
    async def post(self: Any, request: Any) -> Response:
        return await sync_to_async(work)(request)

    view: Any = of_class(work, IdempotencyMixin, AsyncAPIView)
    view.post = post
    return dispatched_again(view)


def below_api_view(work: Any) -> Any:
    view = api_view(["POST"])(authentication_classes([])(idempotent(partial(work))))
    dispatched_again(view.cls)
    return view


def function(work: Any) -> Any:
    return tried_again(idempotent(partial(work)))


def class_view(work: Any) -> Any:
    guarded: Any = method_decorator(idempotent, name="dispatch")(of_class(work, View))
    return dispatched_again(guarded)


OF_DRF = [outside, within, coroutine, below_api_view]


@KEYED
@pytest.mark.parametrize("mode", ["joined", "single", "separate"], indirect=True)
@pytest.mark.parametrize("kind", [*OF_DRF, function, class_view])
def test_R58_work_that_is_tried_again_is_another_attempt(mount, mode, kind, key):
    work = Deadlocks(Response if kind in OF_DRF else JsonResponse)
    url = mount(kind(work))
    client: Any = AsgiClient() if kind is coroutine else Client()

    def send() -> Any:
        return client.generic("POST", url, headers={"Idempotency-Key": key} if key else {})

    first = send()

    assert (first.status_code, first.json()) == (201, {"attempt": 2})
    left = ["attempt 1", "attempt 2"] if mode == "separate" else ["attempt 2"]
    assert list(Effect.objects.values_list("name", flat=True)) == left
    if key:
        again = send()
        assert (replayed(again), again.content, work.attempts) == (True, first.content, 2)
        assert mode == "single" or IdempotencyRecord.objects.get().attempts == 2


@KEYED
def test_R58_answer_of_a_second_dispatch_is_finalised(mount, key):
    """The first one's was, and is thrown away."""
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


@pytest.mark.parametrize("kind", [outside, within])
def test_R58_a_second_dispatch_reads_the_body_again(mount, kind):
    work = Deadlocks()
    view = kind(lambda request: request.data["amount"] and work(request))
    url, sent = mount(view), {"content_type": "application/json"}

    def send(amount: int) -> Any:
        body, headers = {"amount": amount}, {"Idempotency-Key": "key-1"}
        return Client().post(url, body, **sent, headers=headers)

    assert [send(5).status_code, send(5).status_code, send(6).status_code] == [201, 201, 422]


def test_R1_handler_of_a_method_that_initial_has_changed_is_guarded(mount):
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
