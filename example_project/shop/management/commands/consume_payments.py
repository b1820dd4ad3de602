"""Consume a queue: ``python -m example_project.manage consume_payments QUEUE_URL``."""

from __future__ import annotations

from typing import Any

import boto3
from django.core.management.base import BaseCommand, CommandParser

from example_project.shop.payments_queue import consume


class Command(BaseCommand):
    """Runs until it is interrupted; a message that was being worked on is delivered again."""

    help = "Adds the payments of an SQS queue to their orders, each of them once."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("queue_url")
        parser.add_argument("--endpoint-url", help="of a server that speaks SQS, instead of AWS")
        parser.add_argument("--region", default=None)
        parser.add_argument("--wait", type=int, default=20, help="seconds for an empty queue")
        parser.add_argument("--once", action="store_true", help="stop when the queue is empty")

    def handle(self, *args: Any, **options: Any) -> None:
        sqs = boto3.client(
            "sqs", region_name=options["region"], endpoint_url=options["endpoint_url"]
        )
        while True:
            done, left = consume(sqs, options["queue_url"], wait=options["wait"])
            if done or left:
                self.stdout.write(f"{done} done, {left} left in the queue")
            elif options["once"]:
                return
