"""The command that shows records."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from django_idempotency.management.operating import OperatorCommand
from django_idempotency.operators.facts import answer_facts, answer_lines, facts, line, lines

__all__ = ["Command"]


class Command(OperatorCommand):
    """Show a record: what it says, and what a duplicate sent now would be told."""

    help = "Shows an idempotency record, and what a duplicate sent now would be told."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        super().add_arguments(parser)
        parser.add_argument("--result", action="store_true", help="show the stored answer, too")

    def handle(self, *args: Any, **options: Any) -> None:
        """Show the record; list several."""
        found = self.found(options)
        if options["json"]:
            shown = []
            for store, record in found:
                shown.append(facts(store.alias, record))
                if options["result"]:
                    shown[-1]["answer"] = answer_facts(store.alias, record)
            self.write_json({"records": shown})
            return
        if len(found) > 1:
            self.write_lines(line(store.alias, record) for store, record in found)
            return
        [(store, record)] = found
        self.write_lines(lines(store.alias, record))
        if options["result"] and record.result is not None:
            self.write_lines(["", *answer_lines(store.alias, record)])
