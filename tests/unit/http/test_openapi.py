"""What drf-spectacular says of guarded views: keys, problems, replays, and no word of ours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.urls import path
from drf_spectacular.drainage import GENERATOR_STATS
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.utils import OpenApiParameter, extend_schema
from drf_spectacular.validation import validate_schema
from rest_framework import serializers, viewsets
from rest_framework.decorators import action, api_view
from rest_framework.request import Request
from rest_framework.response import Response

from django_idempotency.contrib import spectacular
from django_idempotency.contrib.rest_framework import IdempotencyMixin
from django_idempotency.http import idempotent

PROBLEM = {"schema": {"$ref": "#/components/schemas/IdempotencyProblem"}}


@pytest.fixture(autouse=True)
def no_warnings() -> Iterator[None]:
    """The settings of the tests name drf-spectacular's schema class."""
    assert spectacular.GuardedViewExtension.target_class is IdempotencyMixin
    GENERATOR_STATS.reset()
    yield
    GENERATOR_STATS.reset()


class AmountSerializer(serializers.Serializer[Any]):
    amount = serializers.IntegerField()


class Payments(IdempotencyMixin, viewsets.GenericViewSet[Any]):
    serializer_class = AmountSerializer
    idempotency_required = True
    idempotency_actions = {"create", "capture", "refund"}

    def list(self, request: Request) -> Response:
        return Response([])

    def create(self, request: Request) -> Response:
        return Response({}, status=201)

    def update(self, request: Request, pk: int) -> Response:
        return Response({})

    @action(detail=True, methods=["post"], idempotency_required=False)
    def capture(self, request: Request, pk: int) -> Response:
        return Response({})

    @extend_schema(
        parameters=[OpenApiParameter("IDEMPOTENCY-KEY", int, "header", description="Ours.")],
        responses={201: AmountSerializer, 402: AmountSerializer, 404: None, 409: AmountSerializer},
    )
    @action(detail=True, methods=["post"])
    def refund(self, request: Request, pk: int) -> Response:
        return Response({})


def document(**views: Any) -> dict[Any, Any]:
    """Return the operations of a valid document without warnings, and its components."""
    patterns = [path(f"{name}/<int:id>/", view) for name, view in views.items()]
    generator: Any = SchemaGenerator(patterns=patterns)
    schema = generator.get_schema(public=True)
    validate_schema(schema)
    assert not GENERATOR_STATS, "the schema has warnings"
    operations = {
        (route.split("/")[1], method): operation
        for route, item in schema["paths"].items()
        for method, operation in item.items()
    }
    return {**operations, "components": schema.get("components", {}).get("schemas", {})}


def key_of(operation: dict[str, Any]) -> dict[str, Any]:
    [found] = [given for given in operation["parameters"] if given["in"] == "header"]
    parameter: dict[str, Any] = found
    return parameter


def test_R78_each_answer_of_the_guard_is_described():
    told = document(pay=Payments.as_view({"post": "create"}))

    operation = told["pay", "post"]
    problems = {
        status: response["content"]["application/problem+json"]
        for status, response in operation["responses"].items()
        if status != "201"
    }
    assert problems == dict.fromkeys(["400", "409", "422", "503"], PROBLEM)
    assert all(operation["responses"][status]["description"] for status in problems)
    assert "Retry-After" in operation["responses"]["409"]["headers"]
    assert "Retry-After" in operation["responses"]["503"]["headers"]
    assert {"code", "retryable", "safe_new_key"} < set(
        told["components"]["IdempotencyProblem"]["properties"]
    )


def test_R77_kept_answers_tell_of_replay_and_expiry():
    told = document(refund=Payments.as_view({"post": "refund"}))

    responses = told["refund", "post"]["responses"]
    kept = {
        status
        for status, response in responses.items()
        if {"Idempotency-Replayed", "Idempotency-Expires"} <= set(response.get("headers", {}))
    }
    assert kept == {"201", "402", "409"}
    assert set(responses["409"]["content"]) == {"application/json", "application/problem+json"}


def test_R1_the_key_is_required_as_the_action_says():
    create = Payments.as_view({"get": "list", "post": "create", "put": "update"})
    capture = Payments.as_view({"post": "capture"}, idempotency_required=False)  # as routers do
    told = document(create=create, capture=capture)

    assert key_of(told["create", "post"])["required"] is True
    assert "required" not in key_of(told["capture", "post"])
    assert "400" in told["capture", "post"]["responses"]
    for unguarded in ("get", "put"):
        operation = told["create", unguarded]
        assert [given["in"] for given in operation["parameters"]] == ["path"]
        assert set(operation["responses"]) == {"200"}
        assert "headers" not in operation["responses"]["200"]


def test_R10_the_form_of_the_key_is_told(policy):
    policy(HTTP={"HEADER": "X-Key", "KEY_VALIDATOR": "uuid7", "REPLAY_HEADER": None})

    told = document(pay=Payments.as_view({"post": "create"}))["pay", "post"]

    assert key_of(told)["name"] == "X-Key"
    assert key_of(told)["schema"] == {"type": "string", "format": "uuid"}
    assert set(told["responses"]["201"]["headers"]) == {"Idempotency-Expires"}


def test_R78_statuses_of_the_policy_count(policy):
    policy(HTTP={"IN_PROGRESS_STATUS": 425, "MISMATCH_STATUS": 409, "KEY_MIN_LENGTH": 8})

    told = document(pay=Payments.as_view({"post": "create"}))["pay", "post"]

    assert set(told["responses"]) == {"201", "400", "409", "425", "503"}
    assert key_of(told)["schema"] == {"type": "string", "minLength": 8, "maxLength": 255}


def test_R78_a_renderer_of_the_project_has_a_form_of_its_own(policy):
    policy(HTTP={"ERROR_RENDERER": lambda request, problem: Response(problem)})

    told = document(pay=Payments.as_view({"post": "create"}))

    assert "content" not in told["pay", "post"]["responses"]["503"]
    assert "IdempotencyProblem" not in told["components"]


def test_what_the_project_says_comes_first():
    told = document(refund=Payments.as_view({"post": "refund"}))["refund", "post"]

    assert key_of(told)["description"] == "Ours."


def test_R18_the_decorator_above_api_view_is_described():
    @idempotent(required=True)
    @extend_schema(request=AmountSerializer, responses={201: AmountSerializer})
    @api_view(["POST"])
    def pay(request: Request, id: int) -> Response:
        """Take money."""
        return Response({}, status=201)

    told = document(pay=pay)["pay", "post"]

    assert key_of(told)["required"] is True
    assert set(told["responses"]) == {"201", "400", "409", "422", "503"}
    assert told["description"] == "Take money."


def test_no_word_of_ours_is_in_the_description_of_a_view():
    class Silent(Payments):
        pass

    told = document(pay=Silent.as_view({"post": "create"}))["pay", "post"]

    assert "description" not in told


def test_the_view_itself_stays_as_it_is():
    before = dict(vars(Payments)), Payments.create.__dict__.copy()

    document(pay=Payments.as_view({"post": "create"}))

    assert (dict(vars(Payments)), Payments.create.__dict__) == before
