"""The command that shows what is guarded, and by which policy."""

from __future__ import annotations

from typing import Any, ClassVar

from django.core.management.base import CommandError, CommandParser

from django_idempotency.management.shell import ShellCommand
from django_idempotency.operators.guarded import guarded, lines


class Command(ShellCommand):
    """Show each guarded view and task, its effective policy, and what becomes of each status."""

    help = (
        "Shows each guarded view and task, its effective policy, and what happens to each status "
        "of an answer."
    )
    # A view whose policy is not valid is shown, with its problem.
    requires_system_checks: ClassVar[list[str]] = []  # type: ignore[misc]

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("names", nargs="*", metavar="NAME", help="part of a name or a route")
        parser.add_argument("--all", action="store_true", help="defaults of the policy, too")
        parser.add_argument("--json", action="store_true", help="write JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        """Show what is guarded; exit code 1 for a name that nothing has."""
        names = options["names"]
        chosen = [it for it in guarded(every=options["all"]) if not names or _has(it, names)]
        if names and not chosen:
            raise CommandError("Nothing that is guarded has such a name or route.")
        if options["json"]:
            self.write_json({"guarded": chosen})
            return
        self.write_lines(line for facts in chosen for line in lines(facts))
        if not chosen:
            self.write_lines(["Nothing is guarded."])


def _has(facts: dict[str, Any], names: list[str]) -> bool:
    return any(name in text for name in names for text in (facts["name"], *facts["routes"]))
