"""What goes over the wire between a store and its server, each resend included."""

from __future__ import annotations

import io
import json
import math

from botocore.awsrequest import AWSResponse


class Wire:
    """Notes the name of each call that a store sends."""

    def __init__(self, store):
        self._sent = []
        events = store.table.client.ready().meta.events
        events.register("before-send.dynamodb", self._note)

    def _note(self, event_name, **kwargs):
        self._sent.append(event_name.rpartition(".")[2])

    def taken(self):
        """Return what was sent since it was last asked."""
        sent, self._sent = self._sent, []
        return sent


class Throttle:
    """
    Answer the calls of a store with an error: so many of them, and those of `operation` alone.

    As a busy table does, but in the client, before they are sent. With `applied` the server does
    what it is asked, as it has when it is asked again after a lost answer.
    """

    def __init__(
        self,
        store,
        error="ProvisionedThroughputExceededException",
        *,
        status=400,
        times=math.inf,
        operation="",
        applied=False,
    ):
        self.refused = 0
        self._error, self._status, self._times, self._applied = error, status, times, applied
        self._session = store.table.client.ready()._endpoint.http_session
        self._events = store.table.client.ready().meta.events
        self._name = f"before-send.dynamodb.{operation}".rstrip(".")
        self._events.register(self._name, self._answer)

    def end(self):
        """Let everything through again."""
        self._events.unregister(self._name, self._answer)

    def _answer(self, request, **kwargs):
        if self.refused >= self._times:
            return None
        self.refused += 1
        if self._applied:
            self._session.send(request)
        kind = f"com.amazonaws.dynamodb.v20120810#{self._error}"
        body = Body(json.dumps({"__type": kind, "message": "."}).encode())
        headers = {"Content-Type": "application/x-amz-json-1.0"}
        return AWSResponse(request.url, self._status, headers, body)


class Body(io.BytesIO):
    """What botocore reads of a connection."""

    def stream(self, **kwargs):
        yield self.read()
