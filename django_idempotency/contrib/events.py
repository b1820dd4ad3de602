"""Consumers of queues and streams: keys of their messages, and batches with partial failures."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any
from urllib.parse import quote

from django_idempotency import fingerprint, transactions
from django_idempotency.api import run
from django_idempotency.conf import DEFAULT_ALIAS, engine_for, policy_for
from django_idempotency.exceptions import InvalidKey
from django_idempotency.policy import merge
from django_idempotency.records import Lease

__all__ = [
    "EventKey",
    "amqp_message_id",
    "composite",
    "eventbridge_id",
    "jmespath",
    "kafka_offset",
    "kinesis_sequence",
    "payload_hash",
    "process_batch",
    "sqs_message_id",
]

logger = logging.getLogger("django_idempotency")

_MISSING = object()


class EventKey:
    """
    The key of a message: a callable over the arguments of its consumer, the first of which it is.

    Raises InvalidKey for a message without it. What else a message carries (delivery counts,
    receipts) differs from delivery to delivery, so it is not compared.
    """

    def __init__(self, name: str, find: Callable[[Any], Any]) -> None:
        self.name = name
        self._find = find

    def __call__(self, *args: Any, **arguments: Any) -> str:
        """Return the key of the message, as a string."""
        message = args[0] if args else next(iter(arguments.values()))
        return self._text(self._find(message))

    def payload(self, **arguments: Any) -> None:
        """Return what is compared between deliveries of one key: nothing."""

    def _text(self, value: Any) -> str:
        if isinstance(value, bool) or not isinstance(value, (str, int)) or value == "":
            raise InvalidKey(
                f"{self.name} finds no string or number in this message, but "
                f"{'nothing' if value is None or value is _MISSING else type(value).__name__}."
            )
        return str(value)

    def __repr__(self) -> str:
        return f"<EventKey {self.name}>"


def jmespath(expression: str) -> EventKey:
    """
    Return the key that a JMESPath expression finds in a message.

    Raises ImportError without the extra ``events``, and ValueError for an expression that cannot
    be parsed.
    """
    return EventKey(f"jmespath({expression!r})", _search(expression))


def composite(*expressions: str) -> EventKey:
    """Return the key made of several JMESPath expressions, escaped so that they never meet."""
    if not expressions:
        raise ValueError("composite() needs at least one expression.")
    parts = [jmespath(expression) for expression in expressions]
    name = f"composite({', '.join(map(repr, expressions))})"
    return EventKey(name, lambda message: "#".join(quote(part(message), "") for part in parts))


def payload_hash(*expressions: str) -> EventKey:
    """
    Return the key of messages that have none: the SHA-256 of the message, or of parts of it.

    Two messages that say the same are then one: only for what is meant to happen once. A message
    without one of the parts says too little, and has no key.
    """
    searches = [_search(expression) for expression in expressions]
    name = f"payload_hash({', '.join(map(repr, expressions))})"

    def find(message: Any) -> str:
        said = [search(message) for search in searches] if searches else message
        for expression, part in zip(expressions, said, strict=False):
            if part is None:
                raise InvalidKey(f"{name} finds nothing at {expression!r} in this message.")
        return hashlib.sha256(fingerprint.canonical_payload(said)).hexdigest()

    return EventKey(name, find)


def _search(expression: str) -> Callable[[Any], Any]:
    try:
        import jmespath as library
    except ImportError as error:
        raise ImportError(
            'JMESPath keys need jmespath: pip install "django-idempotency[events]"'
        ) from error
    search: Callable[[Any], Any] = library.compile(expression).search
    return search


def _member(message: Any, *names: str) -> Any:
    """Return the first of `names` that the message has, as a member or as an attribute."""
    for name in names:
        value = (
            message.get(name, _MISSING)
            if isinstance(message, Mapping)
            else getattr(message, name, _MISSING)
        )
        if value is not _MISSING:
            return value() if callable(value) else value
    return _MISSING


def _kinesis_sequence(record: Any) -> Any:
    # A sequence number is unique within its shard; the event's id has the shard in front of it.
    event_id = _member(record, "eventID")
    if event_id is _MISSING:
        return _member(_member(record, "kinesis"), "sequenceNumber")
    return event_id


def _kafka_offset(message: Any) -> Any:
    parts = [_member(message, name) for name in ("topic", "partition", "offset")]
    if any(part is _MISSING or part is None for part in parts):
        return _MISSING
    return "-".join(str(part) for part in parts)


def _amqp_message_id(message: Any) -> Any:
    properties = _member(message, "properties")
    return _member(message if properties is _MISSING else properties, "message_id")


#: Of a record of a Lambda event, or of a message as boto3 receives it.
sqs_message_id = EventKey(
    "sqs_message_id", lambda message: _member(message, "messageId", "MessageId")
)
#: Of an EventBridge event.
eventbridge_id = EventKey("eventbridge_id", lambda event: _member(event, "id"))
#: Of a record of a Lambda event from Kinesis: shard and sequence number.
kinesis_sequence = EventKey("kinesis_sequence", _kinesis_sequence)
#: Topic, partition and offset: attributes, methods (confluent-kafka) or members (Lambda).
kafka_offset = EventKey("kafka_offset", _kafka_offset)
#: ``message_id`` of the properties (pika, kombu, aio-pika); publishers have to set it.
amqp_message_id = EventKey("amqp_message_id", _amqp_message_id)


def process_batch(
    records: Iterable[Mapping[str, Any]],
    handler: Callable[[Any], Any],
    *,
    key: Callable[..., str] = sqs_message_id,
    scope: str = "",
    payload: Callable[[Any], Any] | None = None,
    in_order: bool | None = None,
    store: str = DEFAULT_ALIAS,
    **policy: Any,
) -> dict[str, list[dict[str, str]]]:
    """
    Call ``handler(record)`` once for each record's key; return what is to be delivered again.

    That is Lambda's ``{"batchItemFailures": [{"itemIdentifier": …}]}``: the records whose handler
    raised, or that are in progress elsewhere. Those are logged, the others completed; what
    `handler` returns is not kept. `scope` is the records' own source by default
    (``eventSourceARN``). `in_order` (default: of FIFO queues and streams) ends the batch at the
    first failure, and hands back all that come after it.
    ``deadline=context.get_remaining_time_in_millis`` makes the leases end with the function's time.
    Raises TypeError, ValueError, InvalidStore, TransactionOpen for what no record could run with.
    """
    _check_arguments(handler, key, scope, payload, store, policy)
    batch = list(records)
    failed: list[Mapping[str, Any]] = []
    for index, record in enumerate(batch):
        try:
            run(
                partial(_call, handler, record),
                key=key(record),
                scope=scope or _source(record),
                payload=None if payload is None else payload(record),
                store=store,
                **policy,
            )
        except Exception as error:  # whatever it is, the rest of the batch is to be heard
            logger.error("A record of a batch failed: %s.", type(error).__name__, exc_info=error)
            if in_order or (in_order is None and _is_ordered(record)):
                failed.extend(batch[index:])
                break
            failed.append(record)
    return {"batchItemFailures": [{"itemIdentifier": _identifier(record)} for record in failed]}


def _check_arguments(
    handler: Any, key: Any, scope: Any, payload: Any, store: str, policy: Mapping[str, Any]
) -> None:
    """Raise what each record would fail with: handed back, it would look like bad luck."""
    for name, value in (("handler", handler), ("key", key), ("payload", payload)):
        if not callable(value) and not (name == "payload" and value is None):
            raise TypeError(f"{name} must be a callable over a record.")
    if not isinstance(scope, str):
        raise TypeError("scope must be a string that says whose key it is.")
    transactions.mode_for(merge(policy_for(store), policy), engine_for(store).store)


def _call(handler: Callable[[Any], Any], record: Mapping[str, Any], lease: Lease) -> None:
    handler(record)


def _source(record: Mapping[str, Any]) -> str:
    source = record.get("eventSourceARN")
    if not isinstance(source, str) or not source:
        raise InvalidKey("This record names no eventSourceARN: say scope= for its key.")
    return source


def _is_ordered(record: Mapping[str, Any]) -> bool:
    source = str(record.get("eventSourceARN", ""))
    return source.endswith(".fifo") or "kinesis" in record or "dynamodb" in record


def _identifier(record: Mapping[str, Any]) -> str:
    """Return what Lambda calls this record in a partial response."""
    for stream, number in (("kinesis", "sequenceNumber"), ("dynamodb", "SequenceNumber")):
        if stream in record:
            return str(record[stream][number])
    return str(record["messageId"])
