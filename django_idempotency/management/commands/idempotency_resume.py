"""The command that lets a request go on behind its steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from django.core.management.base import CommandError, CommandParser

from django_idempotency.management.shell import DecisionCommand, printable
from django_idempotency.operators.decisions import Decision
from django_idempotency.operators.facts import Reading


class Command(DecisionCommand):
    """Resume a record: the same request goes on behind its steps."""

    help = (
        "Resumes an idempotency record, in progress or failed: the same request goes on behind its "
        "steps. --done or --not-done says whether a call was made of which nobody knows."
    )
    action: ClassVar[str] = "resume"

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        super().add_arguments(parser)
        parser.add_argument("--step", help="the call; may be left out if one alone is uncertain")
        answer = parser.add_mutually_exclusive_group()
        answer.add_argument("--done", metavar="JSON", help="it was made, and this is its result")
        answer.add_argument("--not-done", action="store_true", help="it was not made")

    def handle(self, *args: Any, **options: Any) -> None:
        """Decide about the one record that is meant."""
        if options["step"] is not None and options["done"] is None and not options["not_done"]:
            raise CommandError("--step goes with --done or --not-done.", returncode=2)
        super().handle(*args, **options)

    def with_options(self, decision: Decision, found: Reading, options: dict[str, Any]) -> Decision:
        """Return the decision about the call that is meant."""
        step, not_done, value = options["step"], options["not_done"], options["done"]
        if value is None and not not_done:
            return decision
        if step is None:
            uncertain = found.steps.uncertain if found.steps else ()
            if len(uncertain) > 1:
                told = f"Name the call by --step: {', '.join(uncertain)}."
                raise CommandError(printable(told), returncode=2)
            step = next(iter(uncertain), "")
        result = None if value is None else self.given(found, options, value=value, step=step)
        return replace(decision, step=step, not_done=not_done, result=result)
