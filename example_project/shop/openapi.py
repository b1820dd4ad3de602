"""What the schema says about the shop's own answers; the library describes keys and replays."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import OpenApiResponse
from rest_framework import serializers


class RefusalSerializer(serializers.Serializer[Any]):
    """The shop's own no."""

    detail = serializers.CharField()


DECLINES: dict[Any, Any] = {402: OpenApiResponse(RefusalSerializer, "The card was declined.")}
# Beside the answer of the operation itself.
REFUSALS: dict[Any, Any] = {
    402: OpenApiResponse(RefusalSerializer, "Not enough money."),
    409: OpenApiResponse(RefusalSerializer, "Against the rules of the shop."),
}
