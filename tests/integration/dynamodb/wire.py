"""What goes over the wire between a store and its server: the calls, each resend included."""

from __future__ import annotations

from typing import Any

from django_idempotency.stores.dynamodb import DynamoDBStore


class Wire:
    """Notes the name of each call that a store sends."""

    def __init__(self, store: DynamoDBStore) -> None:
        self._sent: list[str] = []
        events = store.table.client.native.meta.events
        events.register("before-send.dynamodb", self._note)

    def _note(self, event_name: str, **kwargs: Any) -> None:
        self._sent.append(event_name.rpartition(".")[2])

    def taken(self) -> list[str]:
        """Return what was sent since it was last asked."""
        sent, self._sent = self._sent, []
        return sent
