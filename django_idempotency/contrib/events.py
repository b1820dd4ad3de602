"""Consumers of queues and streams: keys of their messages, and batches with partial failures."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from django_idempotency import fingerprint
from django_idempotency.api import call_operation, plan_of_call
from django_idempotency.arguments import escaped
from django_idempotency.callables import coroutine_problem, name_of, refuse_lazy
from django_idempotency.conf import DEFAULT_ALIAS
from django_idempotency.engine.operation import OpenTransactions
from django_idempotency.exceptions import InvalidKey
from django_idempotency.exceptions.base import missing
from django_idempotency.leases import Lease
from django_idempotency.observers import logger

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from django_idempotency.options import PolicyOptions

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

#: The parameters of `process_batch` that are not fields of the policy.
_OWN = ("key", "scope", "payload", "operation", "in_order", "store")


class EventKey:
    """
    The key of a message: a callable over the arguments of its consumer, of which it is the first.

    Raises InvalidKey for a message without a key. The other parts of a message (delivery counts,
    receipts) differ with each delivery, so they are not compared.
    """

    def __init__(self, name: str, find: Callable[[Any], Any]) -> None:
        self.name = name
        #: Returns the value at the place of the key.
        self.find = find

    def __call__(self, *args: Any, **arguments: Any) -> str:
        """Return the key of the message, as a string."""
        message = args[0] if args else next(iter(arguments.values()))
        return self._text(self.find(message))

    def payload(self, *args: Any, **arguments: Any) -> None:
        """Return None: nothing is compared between deliveries of one key."""

    def _text(self, value: Any) -> str:
        if isinstance(value, bool) or not isinstance(value, (str, int)) or value == "":
            raise InvalidKey(
                f"{self.name} finds no string or number in this message, but "
                f"{'nothing' if value is None else type(value).__name__}."
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
    """Return a key made of several JMESPath expressions, escaped so that they never collide."""
    if not expressions:
        raise ValueError("composite() needs at least one expression.")
    parts = [jmespath(expression) for expression in expressions]
    name = f"composite({', '.join(map(repr, expressions))})"
    return EventKey(name, lambda message: "#".join(escaped(part(message), "#") for part in parts))


def payload_hash(*expressions: str) -> EventKey:
    """
    Return a key for messages without an id: the SHA-256 of the message, or of parts of it.

    Two messages with equal parts count as one, so use it only for work that must happen once for
    this content. A message that lacks one of the parts raises InvalidKey.
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
        raise missing("JMESPath keys need", "jmespath", "events") from error
    search: Callable[[Any], Any] = library.compile(expression).search
    return search


def _member(message: Any, *names: str) -> Any:
    """Return the first of `names` that the message has, as a member or as an attribute, or None."""
    for name in names:
        is_mapping = isinstance(message, Mapping)
        value = message.get(name) if is_mapping else getattr(message, name, None)
        if value is not None:
            return value() if callable(value) else value
    return None


def _kinesis_sequence(record: Any) -> Any:
    # A sequence number is unique within its shard; the event's id has the shard in front of it.
    found = _member(record, "eventID")
    if found is None:
        found = _member(_member(record, "kinesis"), "sequenceNumber")
    # The records that the KPL has aggregated share it. The first of them has no number in its key,
    # as before their numbers counted.
    part = _member(_member(record, "kinesis"), "subSequenceNumber")
    return found if part in (None, 0) or found is None else f"{found}.{part}"


def _kafka_offset(message: Any) -> Any:
    parts = [_member(message, name) for name in ("topic", "partition", "offset")]
    if any(part is None for part in parts):
        return None
    if isinstance(parts[-1], int) and parts[-1] < 0:  # as librdkafka says that there is none
        return None
    return "-".join(map(str, parts))


def _amqp_message_id(message: Any) -> Any:
    properties = _member(message, "properties")
    return _member(message if properties is None else properties, "message_id")


#: Of a record of a Lambda event, or of a message as boto3 receives it.
sqs_message_id = EventKey(
    "sqs_message_id", lambda message: _member(message, "messageId", "MessageId")
)
#: Of an EventBridge event.
eventbridge_id = EventKey("eventbridge_id", lambda event: _member(event, "id"))
#: Of a record of a Lambda event from Kinesis: shard and sequence number; of a record that the KPL
#: has aggregated with others, its number among them as well.
kinesis_sequence = EventKey("kinesis_sequence", _kinesis_sequence)
#: Topic, partition and offset: attributes, methods (confluent-kafka) or members (Lambda).
kafka_offset = EventKey("kafka_offset", _kafka_offset)
#: ``message_id`` of the properties (pika, kombu, aio-pika); publishers must set it.
amqp_message_id = EventKey("amqp_message_id", _amqp_message_id)


def process_batch(
    records: Iterable[Mapping[str, Any]],
    handler: Callable[[Any], Any],
    *,
    key: Callable[..., str] = sqs_message_id,
    scope: str = "",
    payload: Callable[[Any], Any] | None = None,
    operation: str = "",
    in_order: bool | None = None,
    store: str = DEFAULT_ALIAS,
    **policy: Unpack[PolicyOptions],
) -> dict[str, list[dict[str, str]]]:
    """
    Call ``handler(record)`` once for each record's key; return the records to deliver again.

    The return value is Lambda's ``{"batchItemFailures": [{"itemIdentifier": …}]}``: the records
    whose handler raised, or that are in progress elsewhere. These are logged, and the others
    completed. The result of `handler` is not kept. `scope` is by default the records' source
    (``eventSourceARN``), or the module and name of `handler` for a record without one. Module and
    name are also the default of `operation`, so one handler never gets another's results.
    `in_order` (by default for FIFO queues and streams) ends the batch at the first failure, and
    returns all later records as failures. ``deadline=lambda: context.get_remaining_time_in_millis()
    / 1000`` makes the leases end with the function's time. Raises TypeError, ValueError,
    InvalidStore or TransactionOpen before the first record runs, for arguments with which no record
    could run, and for a record that could not be returned.
    """
    _check_arguments(handler, key, scope, payload, operation)
    plan = plan_of_call(store, policy, beside=_OWN)
    OpenTransactions(plan.store).mode(plan.policy)
    plan.policy.attempt_lease()
    batch = list(records)
    identifiers = [_identifier(number, record) for number, record in enumerate(batch, 1)]
    scopes = [scope or _source(record) or _name_of(handler) for record in batch]
    failed: list[str] = []
    for index, record in enumerate(batch):
        try:
            asked = call_operation(
                plan,
                key(record),
                scopes[index],
                None if payload is None else payload(record),
                operation or name_of(handler),
                None,
                coroutine=False,
            )
            plan.engine.run(asked, partial(_call, handler, record))
        except Exception as error:  # whatever it is, the rest of the batch must run
            logger.error("A record of a batch failed: %s.", type(error).__name__, exc_info=error)
            if in_order or (in_order is None and _is_ordered(record)):
                failed.extend(identifiers[index:])
                break
            failed.append(identifiers[index])
    return {"batchItemFailures": [{"itemIdentifier": identifier} for identifier in failed]}


def _check_arguments(
    handler: Any,
    key: Any,
    scope: Any,
    payload: Any,
    operation: Any,
) -> None:
    """Raise the error with which each record would fail: another delivery would not help."""
    for name, value in (("handler", handler), ("key", key), ("payload", payload)):
        if not callable(value) and not (name == "payload" and value is None):
            raise TypeError(f"{name} must be a callable over a record.")
        if problem := coroutine_problem(name, value):
            raise TypeError(problem)
    if not isinstance(scope, str):
        raise TypeError("scope must be a string that says whose key it is.")
    if not isinstance(operation, str):
        raise TypeError("operation must be a string that says what the handler does.")


def _call(handler: Callable[[Any], Any], record: Mapping[str, Any], lease: Lease) -> None:
    refuse_lazy("The handler", handler(record))


def _source(record: Mapping[str, Any]) -> str | None:
    source = record.get("eventSourceARN")
    return source if isinstance(source, str) else None


def _name_of(handler: Callable[[Any], Any]) -> str:
    """Return the scope of records without a source; TypeError for a handler that has no name."""
    module, name = (getattr(handler, part, None) for part in ("__module__", "__qualname__"))
    if module is None or name is None:
        raise TypeError(
            "These records have no eventSourceARN, and their handler has no name to use as scope: "
            "give scope=."
        )
    return f"{module}.{name}"


def _is_ordered(record: Mapping[str, Any]) -> bool:
    source = str(record.get("eventSourceARN", ""))
    return source.endswith(".fifo") or "kinesis" in record or "dynamodb" in record


def _identifier(number: int, record: Mapping[str, Any]) -> str:
    """Return the identifier of a record for a partial response; ValueError if it has none."""
    found = sqs_message_id.find(record)
    for stream, name in (("kinesis", "sequenceNumber"), ("dynamodb", "SequenceNumber")):
        if stream in record:
            found = _member(record[stream], name)
    if found is None or found == "":
        raise ValueError(
            f"Record {number} of this batch has no messageId (MessageId, or sequence number), so "
            f"it could not be returned as a failure."
        )
    return str(found)
