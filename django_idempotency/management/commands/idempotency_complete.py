"""The command that completes a record with a given result."""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

from django.core.management.base import CommandError, CommandParser

from django_idempotency.management.shell import DecisionCommand
from django_idempotency.operators.decisions import Decision
from django_idempotency.operators.facts import KINDS, Reading

#: As of the RETENTION of an alias.
_LONGEST = timedelta(days=36_525)


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

    def with_options(self, decision: Decision, found: Reading, options: dict[str, Any]) -> Decision:
        """Return the decision with the result, and how long it is kept."""
        seconds = options["retention"]
        if seconds is not None and not 0 < seconds <= _LONGEST.total_seconds():  # as is nan
            told = "--retention is a number of seconds above 0, and at most 100 years."
            raise CommandError(told, returncode=2)
        status, value = options["status"], options["value"]
        if (status is None) == (value is None):
            raise CommandError("Give --status for a view, or else --value.", returncode=2)
        if (found.kind == "http") is (status is None):
            option = "--status" if found.kind == "http" else "--value"
            told = f"This is the record of {KINDS[found.kind]}: give {option}."
            raise CommandError(told, returncode=2)
        body, file = options["body"], options["body_file"]
        try:
            if file is not None:
                body = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        except OSError as error:
            raise CommandError(f"This result cannot be kept. {error}", returncode=2) from error
        answer = {"status": status, "body": body, "content_type": options["content_type"]}
        result = self.given(found, options, **answer, value=value)
        retention = None if seconds is None else timedelta(seconds=seconds)
        return replace(decision, result=result, retention=retention)
