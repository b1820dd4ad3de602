"""The command that completes a record with a given result."""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

from django.core.management.base import CommandError, CommandParser

from django_idempotency.exceptions import ResultTooLarge
from django_idempotency.management.operating import DecisionCommand, Seen
from django_idempotency.operators.facts import KINDS
from django_idempotency.operators.results import kind_of, packed_answer, packed_value

__all__ = ["Command"]

#: As of the RETENTION of an alias.
_LONGEST = timedelta(days=36_525)
_OPTIONS = {"http": "--status", "task": "--value", "call": "--value"}


class Command(DecisionCommand):
    """Complete a record: each duplicate gets the given result from now on."""

    help = (
        "Completes an idempotency record, in progress or failed, with a given result: --status and "
        "--body for a view, --value for a task, a call or a consumer."
    )
    action: ClassVar[str] = "complete"

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        super().add_arguments(parser)
        parser.add_argument("--status", type=int, help="the status of a view's answer")
        body = parser.add_mutually_exclusive_group()
        body.add_argument("--body", default="", help="its body, as text")
        body.add_argument("--body-file", help="the file that has its body; - for standard input")
        parser.add_argument("--content-type", default="application/json", help="its Content-Type")
        parser.add_argument("--value", help="the result of a task or a call, as JSON")
        parser.add_argument("--retention", type=float, help="seconds for which it is kept")

    def given(self, seen: Seen, options: dict[str, Any]) -> dict[str, Any]:
        """Return the result, in the form of the record's adapter, and how long it is kept."""
        kept: dict[str, Any] = {}
        if (seconds := options["retention"]) is not None:
            if not 0 < seconds <= _LONGEST.total_seconds():  # as is nan
                told = "--retention is a number of seconds above 0, and at most 100 years."
                raise CommandError(told, returncode=2)
            kept["retention"] = timedelta(seconds=seconds)
        try:
            return {**kept, "result": self._result(seen, options)}
        except (
            LookupError,
            OSError,
            RecursionError,
            TypeError,
            ValueError,
            ResultTooLarge,
        ) as error:
            raise CommandError(f"This result cannot be kept. {error}", returncode=2) from error

    def _result(self, seen: Seen, options: dict[str, Any]) -> bytes:
        status, value = options["status"], options["value"]
        if (status is None) == (value is None):
            raise CommandError("Give --status for a view, or else --value.", returncode=2)
        if (kind := kind_of(seen.record)) is None:
            told = "Its scope is not stored whole, so nothing tells what made it: complete it in "
            raise CommandError(f"{told}code, by resolve().")
        if (kind == "http") is (status is None):
            told = f"This is the record of {KINDS[kind]}: give {_OPTIONS[kind]}."
            raise CommandError(told, returncode=2)
        if status is None:
            return packed_value(seen.alias, seen.record, json.loads(value))
        body = options["body"].encode()
        if options["body_file"] == "-":
            body = sys.stdin.buffer.read()
        elif options["body_file"] is not None:
            body = Path(options["body_file"]).read_bytes()
        return packed_answer(seen.alias, status, body, options["content_type"])
