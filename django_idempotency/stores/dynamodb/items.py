"""Records as items of a DynamoDB table, and back: names of attributes, keys, types and times."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Any
from uuid import UUID

from django_idempotency import keys
from django_idempotency.claims import ClaimRequest
from django_idempotency.exceptions import StoreError
from django_idempotency.leases import Lease
from django_idempotency.policy import suggestion
from django_idempotency.records import NAMED, Record, State
from django_idempotency.stores.options import text_of

#: An item, or a key, as the low-level client has it: ``{"name": {"S": "text"}}``.
Item = dict[str, dict[str, Any]]

#: In the place of a fingerprint that is forgotten or was never given: they have 32 bytes.
NO_FINGERPRINT = b"\0"

#: The attributes of an item besides its key.
ATTRIBUTES = (
    "status",
    "epoch",
    "token",
    "fingerprint",
    "lockExpiry",
    "expiry",
    *NAMED,
    "attempts",
    "createdAt",
    "updatedAt",
    "responsePayload",
    "error",
    "steps",
)


class Names:
    """The names of a table's attributes, and the keys of its items."""

    def __init__(
        self,
        partition_key: str,
        sort_key: str | None,
        static_partition_key: str,
        attributes: Mapping[str, str],
    ) -> None:
        for name in attributes:
            if name not in ATTRIBUTES:
                raise TypeError(
                    f"attributes has no {name!r}.{suggestion(str(name), list(ATTRIBUTES))}"
                )
        self.partition_key = text_of("partition_key", partition_key)
        self.sort_key = None if sort_key is None else text_of("sort_key", sort_key)
        self.static = text_of(
            "static_partition_key", static_partition_key, may_be_empty=sort_key is None
        )
        #: The attribute that is the record id.
        self.id = partition_key if sort_key is None else sort_key
        #: The table's name for each attribute.
        self.of = {name: text_of(name, attributes.get(name, name)) for name in ATTRIBUTES}
        taken = [*self.of.values(), partition_key, *([] if sort_key is None else [sort_key])]
        if twice := sorted({name for name in taken if taken.count(name) > 1}):
            raise TypeError(f"Two attributes of an item have one name: {', '.join(twice)}.")
        #: The same, with the names in expressions.
        self.placeholders = {
            "#id": self.id,
            "#partition": partition_key,
            **{f"#{name}": named for name, named in self.of.items()},
        }

    def key(self, record_id: UUID) -> Item:
        """Return the primary key of a record's item."""
        if self.sort_key is None:
            return {self.partition_key: {"S": str(record_id)}}
        return {self.partition_key: {"S": self.static}, self.sort_key: {"S": str(record_id)}}

    def record_id(self, item: Item) -> UUID:
        """Return the record id of an item, or of a key."""
        try:
            return UUID(item[self.id]["S"])
        except (KeyError, ValueError) as error:
            raise StoreError("An item of the table is not an idempotency record.") from error

    def key_schema(self) -> list[dict[str, str]]:
        """Return the primary key of the table, as DynamoDB describes it."""
        schema = [{"AttributeName": self.partition_key, "KeyType": "HASH"}]
        if self.sort_key is not None:
            schema.append({"AttributeName": self.sort_key, "KeyType": "RANGE"})
        return schema

    def record(self, item: Item, now: datetime, skew: timedelta) -> Record:
        """
        Return the item as a record; raise StoreError if it is damaged.

        A lease counts as live until `skew` after its end, so that is the end that the record has.
        """
        record_id = self.record_id(item)
        # An item of an earlier release may lack one that has a default.
        named = {name: text for name in NAMED if (text := self._maybe(item, name, "S")) is not None}
        until, entries = self._maybe(item, "lockExpiry", "N"), item.get(self.of["steps"])
        try:
            fingerprint = bytes(self._value(item, "fingerprint", "B"))
            return Record(
                record_id=record_id,
                **named,
                fingerprint=None if fingerprint == NO_FINGERPRINT else fingerprint,
                state=State(self._value(item, "status", "S")),
                epoch=int(self._value(item, "epoch", "N")),
                token=UUID(self._value(item, "token", "S")),
                lease_until=None if until is None else _moment(until) + skew,
                created_at=_moment(self._value(item, "createdAt", "N")),
                updated_at=_moment(self._value(item, "updatedAt", "N")),
                expires_at=_moment(self._maybe(item, "expiry", "N")),
                attempts=int(self._value(item, "attempts", "N")),
                result=self._maybe(item, "responsePayload", "B"),
                error=self._maybe(item, "error", "S") or "",
                now=now,
                steps=None if entries is None else b"".join(entry["B"] for entry in entries["L"]),
            )
        except (KeyError, OSError, OverflowError, TypeError, ValueError) as error:
            raise StoreError(
                f"The item of record {keys.short(record_id)} is damaged: {type(error).__name__}."
            ) from error

    def overflow(self, item: Item) -> tuple[str, bytes] | None:
        """Return the name and the hash of the object that holds an item's result, if one does."""
        kept = self._maybe(item, "responsePayload", "M")
        try:
            return None if kept is None else (kept["name"]["S"], kept["sha256"]["B"])
        except (KeyError, TypeError) as error:
            raise StoreError("The name of the object of a large result is damaged.") from error

    def _value(self, item: Item, name: str, kind: str) -> Any:
        return item[self.of[name]][kind]

    def _maybe(self, item: Item, name: str, kind: str) -> Any:
        """Return a value, or None where there is none."""
        return item.get(self.of[name], {}).get(kind)


def string(text: object) -> dict[str, str]:
    """Return a String."""
    return {"S": str(text)}


def binary(content: bytes) -> dict[str, bytes]:
    """Return a Binary."""
    return {"B": content}


def number(value: int) -> dict[str, str]:
    """Return a Number."""
    return {"N": str(value)}


def seconds(moment: datetime) -> dict[str, str]:
    """Return a moment as a Number: seconds since 1970, down to the microsecond."""
    if moment.microsecond == 0:
        return number(int(moment.timestamp()))
    return {"N": f"{moment.timestamp():.6f}"}


def whole_seconds(moment: datetime) -> datetime:
    """Return the moment at the next whole second: what DynamoDB's TTL takes for an expiry."""
    return datetime.fromtimestamp(math.ceil(moment.timestamp()), timezone.utc)


def microseconds(moment: datetime) -> int:
    """Return the microseconds since 1970, from which an epoch starts."""
    return int(moment.timestamp() * 1_000_000)


def claimed_values(
    request: ClaimRequest, fingerprint: bytes | None, now: datetime
) -> dict[str, Any]:
    """Return the values that every claim writes, named as in expressions."""
    values: dict[str, Any] = {
        ":token": string(request.token),
        ":fingerprint": binary(NO_FINGERPRINT if fingerprint is None else fingerprint),
        ":lockExpiry": seconds(now + request.lease),
        **{f":{name}": string(text) for name, text in request.named.items()},
    }
    if request.on_stale != "refuse":
        values[":expiry"] = seconds(whole_seconds(now + request.lifetime))
    return values


def proof_values(lease: Lease) -> dict[str, Any]:
    """Return the proof of ownership, named as in expressions."""
    return {":token": string(lease.token), ":epoch": number(lease.fencing_token)}


def _moment(text: Any) -> Any:
    return None if text is None else datetime.fromtimestamp(float(text), timezone.utc)
