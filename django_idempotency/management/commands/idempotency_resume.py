"""The command that lets a request go on behind its steps."""

from __future__ import annotations

from typing import Any, ClassVar

from django.core.management.base import CommandError, CommandParser

from django_idempotency.management.operating import DecisionCommand
from django_idempotency.management.shell import printable
from django_idempotency.operators.results import given_result
from django_idempotency.operators.steps import steps_of
from django_idempotency.records import Record


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

    def about(self, alias: str, record: Record, options: dict[str, Any]) -> dict[str, Any]:
        """Return the call that is meant, and whether it was not made."""
        step, not_done = options["step"], options["not_done"]
        if options["done"] is None and not not_done:
            if step is not None:
                raise CommandError("--step goes with --done or --not-done.", returncode=2)
            return {}
        if step is None:
            steps = steps_of(alias, record)
            uncertain = steps.uncertain if steps else ()
            if len(uncertain) > 1:
                told = f"Name the call by --step: {', '.join(uncertain)}."
                raise CommandError(printable(told), returncode=2)
            step = next(iter(uncertain), "")
        return {"step": step, "not_done": not_done}

    def given(
        self, alias: str, record: Record, about: dict[str, Any], options: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the result of the call."""
        if options["done"] is None:
            return {}
        try:
            said = {"value": options["done"], "step": about["step"]}
            result = given_result(alias, record, **said, is_chosen=options["store"] is not None)
        except ValueError as error:
            raise CommandError(f"This result cannot be kept. {error}", returncode=2) from error
        return {"result": result}
