"""A server that turns calls away, as a busy table does: in the client, before they are sent."""

from __future__ import annotations

import io
import json
import math
from typing import Any

from botocore.awsrequest import AWSResponse

from django_idempotency.stores.dynamodb import DynamoDBStore

__all__ = ["Throttle"]


class Throttle:
    """
    Answer the calls of a store with an error: so many of them, and those of `operation` alone.

    With `applied` the server does what it is asked, as it has when it is asked again after a lost
    answer.
    """

    def __init__(
        self,
        store: DynamoDBStore,
        error: str = "ProvisionedThroughputExceededException",
        *,
        status: int = 400,
        times: float = math.inf,
        operation: str = "",
        applied: bool = False,
    ) -> None:
        #: Calls that were turned away.
        self.refused = 0
        self._error, self._status, self._times, self._applied = error, status, times, applied
        self._session = store.table.client.native._endpoint.http_session
        self._events = store.table.client.native.meta.events
        self._name = f"before-send.dynamodb.{operation}".rstrip(".")
        self._events.register(self._name, self._answer)

    def end(self) -> None:
        """Let everything through again."""
        self._events.unregister(self._name, self._answer)

    def _answer(self, request: Any, **kwargs: Any) -> AWSResponse | None:
        if self.refused >= self._times:
            return None
        self.refused += 1
        if self._applied:
            self._session.send(request)
        kind = f"com.amazonaws.dynamodb.v20120810#{self._error}"
        body = _Body(json.dumps({"__type": kind, "message": "."}).encode())
        headers = {"Content-Type": "application/x-amz-json-1.0"}
        return AWSResponse(request.url, self._status, headers, body)


class _Body(io.BytesIO):
    """What botocore reads of a connection."""

    def stream(self, **kwargs: Any) -> Any:
        yield self.read()
