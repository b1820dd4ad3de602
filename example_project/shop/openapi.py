"""What the schema says about an operation that takes an idempotency key."""

from __future__ import annotations

from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse
from rest_framework import serializers

IDEMPOTENCY_KEY = OpenApiParameter(
    name="Idempotency-Key",
    type=OpenApiTypes.STR,
    location=OpenApiParameter.HEADER,
    required=True,
    description=(
        "Your name for this operation, 1 to 255 characters; a new UUID does well. "
        "The same key with the same request gets the first answer again."
    ),
)


class ProblemSerializer(serializers.Serializer[Any]):
    """An RFC 9457 problem; `code` says which, `retryable` whether to send the same again."""

    type = serializers.CharField()
    title = serializers.CharField()
    status = serializers.IntegerField()
    detail = serializers.CharField()
    instance = serializers.CharField()
    code = serializers.CharField()
    retryable = serializers.BooleanField()
    safe_new_key = serializers.BooleanField()


class RefusalSerializer(serializers.Serializer[Any]):
    """The shop's own no."""

    detail = serializers.CharField()


# Beside the answer of the operation itself. A status may have two bodies, told apart by their type.
REFUSALS: dict[Any, Any] = {
    (400, "application/problem+json"): OpenApiResponse(
        ProblemSerializer, "The key is missing or malformed."
    ),
    402: OpenApiResponse(RefusalSerializer, "Not enough money. Kept: a retry gets the same."),
    (409, "application/json"): OpenApiResponse(
        RefusalSerializer, "Against the rules of the shop. Kept: a retry gets the same."
    ),
    (409, "application/problem+json"): OpenApiResponse(
        ProblemSerializer, "The first request with this key still runs: see `Retry-After`."
    ),
    (422, "application/problem+json"): OpenApiResponse(
        ProblemSerializer, "The key was used for another request."
    ),
}
