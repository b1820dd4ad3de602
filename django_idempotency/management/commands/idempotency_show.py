"""The command that shows records."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any, ClassVar

from django.core.management.base import CommandError, CommandParser

from django_idempotency.exceptions import StoreError
from django_idempotency.management.operating import OperatorCommand
from django_idempotency.management.shell import chosen_stores
from django_idempotency.operators.facts import (
    ago,
    answer_facts,
    answer_lines,
    facts,
    line,
    lines,
    noted_facts,
    noted_lines,
)
from django_idempotency.operators.search import stale_pages
from django_idempotency.records import Record
from django_idempotency.stores.base import BaseStore

__all__ = ["Command"]

_AGE = re.compile(r"(\d{1,6})(s|min|h|d)")
_UNITS = {"s": "seconds", "min": "minutes", "h": "hours", "d": "days"}


class Command(OperatorCommand):
    """Show a record, and what a duplicate sent now would be told; or list all stale leases."""

    help = (
        "Shows an idempotency record, and what a duplicate sent now would be told. With --stale it "
        "lists every record whose attempt has ended without a word."
    )
    nargs: ClassVar[str | None] = "?"  # --stale takes none

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        super().add_arguments(parser)
        parser.add_argument("--result", action="store_true", help="show stored results, too")
        parser.add_argument(
            "--stale",
            action="store_true",
            help="list all records in progress under a lapsed lease; reads every record of a store",
        )
        parser.add_argument("--operation", help="with --stale: those of this operation")
        parser.add_argument(
            "--older-than",
            type=_age,
            metavar="AGE",
            help="with --stale: those that were claimed before this: 90s, 30min, 2h, 1d",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Show the record; list several."""
        if options["stale"]:
            self._show_stale(options)
            return
        if options["record"] is None:
            raise CommandError("Name a record, or give --stale.", returncode=2)
        if options["operation"] is not None or options["older_than"] is not None:
            raise CommandError("--operation and --older-than go with --stale.", returncode=2)
        found = self.found(options)
        if options["json"]:
            shown = []
            for store, record in found:
                shown.append(facts(store.alias, record))
                if options["result"]:
                    shown[-1]["answer"] = answer_facts(store.alias, record)
                    if shown[-1]["steps"] is not None:
                        shown[-1]["steps"]["noted"] = noted_facts(store.alias, record)
            self.write_json({"records": shown})
            return
        if len(found) > 1:
            self.write_lines(line(store.alias, record) for store, record in found)
            return
        [(store, record)] = found
        self.write_lines(lines(store.alias, record))
        if options["result"] and record.result is not None:
            self.write_lines(["", *answer_lines(store.alias, record)])
        if options["result"] and record.steps is not None:
            self.write_lines(["", *noted_lines(store.alias, record)])

    def _show_stale(self, options: dict[str, Any]) -> None:
        if options["record"] is not None or options["scope"] is not None or options["result"]:
            told = "--stale takes no record, --scope or --result."
            raise CommandError(told, returncode=2)
        failures: list[str] = []
        found = []
        for store, record in self._stale(options, failures):
            if not options["json"]:  # each as it is found: a store may be large
                self.write_lines([line(store.alias, record)])
            found.append((store, record))
        if options["json"]:
            self.write_json({"records": [facts(store.alias, record) for store, record in found]})
        else:
            self.write_lines([_summary([record for _, record in found])])
        if failures:
            raise CommandError("\n".join(failures))

    def _stale(
        self, options: dict[str, Any], failures: list[str]
    ) -> Iterator[tuple[BaseStore, Record]]:
        """Yield the stale leases of each store; one that two aliases share comes once."""
        before = None
        if options["older_than"] is not None:
            before = datetime.now(timezone.utc) - options["older_than"]
        seen = set()
        for store in chosen_stores(options["store"], options["schema"]):
            damaged: list[str] = []
            try:
                for page in stale_pages(
                    store, operation=options["operation"], created_before=before
                ):
                    damaged += page.damaged
                    for record in page.records:
                        if record.token not in seen:
                            seen.add(record.token)
                            yield store, record
            except (NotImplementedError, StoreError) as error:
                failures.append(f"{store.alias}: {error or 'this store has no browse().'}")
            if damaged:
                told = f"{len(damaged)} damaged records cannot be read: {', '.join(damaged)}."
                failures.append(f"{store.alias}: {told}")


def _age(text: str) -> timedelta:
    """Return the age that an operator has typed."""
    match = _AGE.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no age: write 90s, 30min, 2h or 1d")
    return timedelta(**{_UNITS[match[2]]: int(match[1])})


def _summary(found: list[Record]) -> str:
    if not found:
        return "No lease is stale."
    oldest = min(found, key=lambda record: record.created_at)
    number = "1 lease is stale" if len(found) == 1 else f"{len(found):,} leases are stale"
    return f"{number}. The oldest was claimed {ago(oldest, oldest.created_at)}."
