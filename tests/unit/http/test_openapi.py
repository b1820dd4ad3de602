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


def answer(self: Any, request: Request, **kwargs: Any) -> Response:
    return Response({})


class Payments(IdempotencyMixin, viewsets.GenericViewSet[Any]):
    serializer_class = AmountSerializer
    idempotency_required = True
    idempotency_actions = {"create", "capture", "refund"}
    list = create = update = answer

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


CREATE: Any = Payments.as_view({"get": "list", "post": "create", "put": "update"})


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


def key_of(operation: dict[str, Any]) -> Any:
    [found] = [given for given in operation["parameters"] if given["in"] == "header"]
    return found


def test_R1_R78_each_answer_of_the_guard_is_described_and_no_word_of_ours():
    before = dict(vars(Payments)), Payments.create.__dict__.copy()
    told = document(pay=CREATE)

    operation = told["pay", "post"]
    responses = operation["responses"]
    problems = {
        status: response["content"]["application/problem+json"]
        for status, response in responses.items()
        if response["description"] and "application/problem+json" in response["content"]
    }
    assert problems == dict.fromkeys(["400", "409", "422", "503"], PROBLEM)
    assert all("Retry-After" in responses[status]["headers"] for status in ("409", "503"))
    assert {"code", "retryable", "safe_new_key"} < set(
        told["components"]["IdempotencyProblem"]["properties"]
    )
    assert key_of(operation)["required"] is True
    assert "description" not in operation
    for unguarded in ("get", "put"):
        assert [given["in"] for given in told["pay", unguarded]["parameters"]] == ["path"]
        assert set(told["pay", unguarded]["responses"]) == {"200"}
        assert "headers" not in told["pay", unguarded]["responses"]["200"]
    assert (dict(vars(Payments)), Payments.create.__dict__) == before


def test_R78_the_schema_of_a_problem_describes_its_members_and_lists_the_codes():
    class Voucher(serializers.Serializer[Any]):
        code = serializers.ChoiceField(["spring", "autumn"])

    @extend_schema(responses=Voucher)
    @api_view(["GET"])
    def voucher(request: Request, id: int) -> Response:
        raise NotImplementedError

    told = document(pay=CREATE, voucher=voucher)["components"]

    members = told["IdempotencyProblem"]["properties"]
    assert [name for name, member in members.items() if not member["description"]] == []
    assert sorted(told["IdempotencyProblem"]["required"]) == sorted(members)
    [code] = members["code"]["allOf"]
    assert {"in_progress", "stale", "replay_refused"} < set(code["enum"])
    assert [name for name in told if name.endswith("Enum")] == ["CodeEnum"]  # the voucher's


def test_R1_R77_kept_answers_tell_of_replay_and_expiry_and_the_project_comes_first():
    capture = Payments.as_view({"post": "capture"}, idempotency_required=False)  # as routers do
    told = document(refund=Payments.as_view({"post": "refund"}), capture=capture)

    operation = told["refund", "post"]
    kept = {
        status
        for status, response in operation["responses"].items()
        if {"Idempotency-Replayed", "Idempotency-Expires"} <= set(response.get("headers", {}))
    }
    assert kept == {"201", "402", "409"}
    both = {"application/json", "application/problem+json"}
    assert set(operation["responses"]["409"]["content"]) == both
    assert key_of(operation)["description"] == "Ours."
    assert "required" not in key_of(told["capture", "post"])
    assert "400" in told["capture", "post"]["responses"]


def test_R10_R78_the_policy_says_which_keys_and_statuses_there_are(policy):
    policy(HTTP={"HEADER": "X-Key", "KEY_VALIDATOR": "uuid7", "REPLAY_HEADER": None})
    told = document(pay=CREATE)["pay", "post"]

    assert key_of(told)["name"] == "X-Key"
    assert key_of(told)["schema"] == {"type": "string", "format": "uuid"}
    assert set(told["responses"]["201"]["headers"]) == {"Idempotency-Expires"}

    policy(HTTP={"IN_PROGRESS_STATUS": 425, "MISMATCH_STATUS": 409, "KEY_VALIDATOR": None})
    policy(HTTP={"ERROR_RENDERER": lambda request, problem: Response(problem), "KEY_MIN_LENGTH": 8})
    other = document(pay=CREATE)

    told = other["pay", "post"]
    assert set(told["responses"]) == {"201", "400", "409", "425", "503"}
    assert key_of(told)["schema"] == {"type": "string", "minLength": 8, "maxLength": 255}
    assert "content" not in told["responses"]["503"]  # the form is the project's own
    assert "IdempotencyProblem" not in other["components"]


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


def test_a_drf_spectacular_before_0_29_is_named_and_leaves_the_view_as_it_is(capsys):
    extension: Any = spectacular.GuardedViewExtension(CREATE)
    del extension.target_callback  # earlier ones give the class alone
    assert extension.view_replacement() is Payments
    assert "drf-spectacular 0.29 or newer" in capsys.readouterr().err
