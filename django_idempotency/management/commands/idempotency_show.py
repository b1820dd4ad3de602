"""The command that shows records."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any, ClassVar

from django.core.management.base import CommandError, CommandParser

from django_idempotency.management.shell import OperatorCommand, chosen_stores
from django_idempotency.operators.facts import Reading, ago
from django_idempotency.operators.search import pages
from django_idempotency.records import Filters, Record, State

_AGE = re.compile(r"(\d{1,6})(s|min|h|d)")
_UNITS = {"s": "seconds", "min": "minutes", "h": "hours", "d": "days"}


class Command(OperatorCommand):
    """Show a record, and what a duplicate sent now would be told; or list all that wait."""

    help = (
        "Shows an idempotency record, and what a duplicate sent now would be told. With --stale it "
        "lists every record whose attempt has ended without a word, with --held every one that "
        "waits for an operator."
    )
    nargs: ClassVar[str | None] = "?"  # a list takes none

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        super().add_arguments(parser)
        parser.add_argument("--result", action="store_true", help="show stored results, too")
        which = parser.add_mutually_exclusive_group()
        which.add_argument(
            "--stale",
            action="store_true",
            help="list all records in progress under a lapsed lease; reads every record of a store",
        )
        which.add_argument(
            "--held",
            action="store_true",
            help="list all records that do not expire, but for those of running attempts",
        )
        parser.add_argument("--operation", help="in a list: those of this operation")
        parser.add_argument(
            "--older-than",
            type=_age,
            metavar="AGE",
            help="in a list: those that were claimed before this: 90s, 30min, 2h, 1d",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Show the record; list several."""
        if options["stale"] or options["held"]:
            self._show_list(options)
            return
        if options["record"] is None:
            raise CommandError("Name a record, or give --stale or --held.", returncode=2)
        if options["operation"] is not None or options["older_than"] is not None:
            told = "--operation and --older-than go with --stale or --held."
            raise CommandError(told, returncode=2)
        found = self.found(options)
        if options["json"]:
            self.write_json({"records": [it.facts(results=options["result"]) for it in found]})
        elif len(found) > 1:
            self.write_lines(it.line for it in found)
        else:
            self.write_lines(found[0].lines(results=options["result"]))

    def _show_list(self, options: dict[str, Any]) -> None:
        if options["record"] is not None or options["scope"] is not None or options["result"]:
            told = "--stale and --held take no record, --scope or --result."
            raise CommandError(told, returncode=2)
        found = []
        for each in self._listed(options):
            if not options["json"]:  # each as it is found: a store may be large
                self.write_lines([each.line])
            found.append(each)
        if options["json"]:
            self.write_json({"records": [it.facts() for it in found]})
        else:
            self.write_lines([_summary([it.record for it in found], held=options["held"])])
        self.end()

    def _listed(self, options: dict[str, Any]) -> Iterator[Reading]:
        """Yield what is listed of each store; a record that two aliases share comes once."""
        wanted = Filters(held=True) if options["held"] else Filters(State.IN_PROGRESS, stale=True)
        wanted = replace(wanted, operation=options["operation"])
        if options["older_than"] is not None:
            before = datetime.now(timezone.utc) - options["older_than"]
            wanted = replace(wanted, created_before=before)
        seen = set()
        for store in chosen_stores(options["store"], options["schema"]):
            damaged: list[str] = []
            with self.trying(store, "browse"):
                for page in pages(store, wanted):
                    damaged += page.damaged
                    for record in page.records:
                        if record.token not in seen and not record.live:
                            seen.add(record.token)
                            yield Reading(store, record)
            if damaged:
                told = f"{len(damaged)} damaged records cannot be read: {', '.join(damaged)}."
                self.failures.append(f"{store.alias}: {told}")


def _age(text: str) -> timedelta:
    """Return the age that an operator has typed."""
    match = _AGE.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no age: write 90s, 30min, 2h or 1d")
    return timedelta(**{_UNITS[match[2]]: int(match[1])})


def _summary(found: list[Record], *, held: bool) -> str:
    what, state = ("record", "held") if held else ("lease", "stale")
    if not found:
        return f"No {what} is {state}."
    oldest = min(found, key=lambda record: record.created_at)
    one = len(found) == 1
    number = f"1 {what} is {state}" if one else f"{len(found):,} {what}s are {state}"
    return f"{number}. The oldest was claimed {ago(oldest, oldest.created_at)}."
