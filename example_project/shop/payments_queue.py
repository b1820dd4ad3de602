"""
Payments that arrive on a queue: each event counts once, however often it is delivered.

The key is the provider's own id of the event, not that of the message: a provider that sends an
event twice puts two messages into the queue.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from django.db.models import F

import django_idempotency as idempotency
from django_idempotency.contrib import events
from example_project.shop.models import Order

logger = logging.getLogger(__name__)


@idempotency.idempotent_function(
    key=events.jmespath("event"),
    scope="queue:payments",
    payload=lambda event: [event["order"], event["amount"]],
)
def payment_received(event: Mapping[str, Any]) -> str:
    """Add a payment to its order."""
    if not Order.objects.filter(pk=event["order"]).update(paid=F("paid") + int(event["amount"])):
        raise Order.DoesNotExist(f"There is no order {event['order']}.")
    return str(event["order"])


def consume(sqs: Any, queue_url: str, *, wait: int = 20) -> tuple[int, int]:
    """
    Take what the queue has to offer; return how many messages were done, and how many were left.

    An empty queue is asked for `wait` seconds.
    """
    answer = sqs.receive_message(QueueUrl=queue_url, MaxNumberOfMessages=10, WaitTimeSeconds=wait)
    done = left = 0
    for message in answer.get("Messages", []):
        try:
            payment_received(json.loads(message["Body"]))
        except Exception:  # one bad message must not stop the queue; it comes again
            logger.exception("The message %s is left in the queue.", message["MessageId"])
            left += 1
        else:  # only now: what is not deleted is delivered again
            sqs.delete_message(QueueUrl=queue_url, ReceiptHandle=message["ReceiptHandle"])
            done += 1
    return done, left
