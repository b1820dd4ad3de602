"""What the commands of operators share: finding records, and asking before a decision."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any, ClassVar

from django.core.management.base import CommandError, CommandParser

from django_idempotency import keys
from django_idempotency.exceptions import StoreError
from django_idempotency.management.shell import ShellCommand, chosen_stores, printable
from django_idempotency.operators.decisions import Decision, NotResolved, Seen
from django_idempotency.operators.facts import facts, line, lines
from django_idempotency.operators.search import NEWEST, find
from django_idempotency.records import Record
from django_idempotency.stores.base import BaseStore

_RECORD = (
    "a record id, or 8 or more of its first characters; whose key and the key: 'alice 8e03978e'; "
    "or a key"
)


class OperatorCommand(ShellCommand):
    """A command about records, in every store; exit codes: 1 not found or refused, 2 usage."""

    # What is wrong elsewhere must not keep an operator from the records.
    requires_system_checks: ClassVar[list[str]] = []  # type: ignore[misc]
    #: How many records are named, as of `add_argument`: one, or "?" if none may be.
    nargs: ClassVar[str | None] = None
    #: Why stores could not be searched, a line each.
    failures: Sequence[str] = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare how a record is named."""
        parser.add_argument("record", metavar="RECORD", nargs=self.nargs, help=_RECORD)
        parser.add_argument("--scope", help="whose key it is: a scope, a user, a tenant and a user")
        self.add_store_arguments(parser)

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Do all of it in the schema that is meant, if one is."""
        with ExitStack() as stack:
            if (schema := options.get("schema")) is not None:
                for store in chosen_stores(options["store"], schema):
                    try:
                        stack.enter_context(store.in_schema(schema))
                    except StoreError as error:
                        raise CommandError(str(error)) from error
            return super().execute(*args, **options)

    def found(self, options: dict[str, Any]) -> list[tuple[BaseStore, Record]]:
        """Return the records that are meant; one that two aliases share is found once."""
        seen: dict[Any, tuple[BaseStore, Record]] = {}
        partly: list[str] = []
        self.failures = failures = []
        for store in chosen_stores(options["store"], options["schema"]):
            try:
                found = find(store, options["record"], scope=options["scope"])
            except StoreError as error:
                failures.append(f"{store.alias}: {error}")
                continue
            for record in found.records:
                seen.setdefault((record.record_id, record.epoch, record.token), (store, record))
            if found.more:
                partly.append(store.alias)
        for failure in failures:
            self.stderr.write(failure)
        if partly and len(seen) != 1:  # else it is what was asked for
            self.stderr.write(
                f"Of {', '.join(partly)}, only {NEWEST:,} records were searched, the newest ones "
                f"if the store can order. Give --scope, or the whole record id, to search them all."
            )
        if not seen:
            raise CommandError("No record was found.")
        return [*seen.values()]

    def agreed(self, told: Iterable[str], question: str, options: dict[str, Any]) -> None:
        """Return if the operator agrees; a CommandError otherwise."""
        if options["yes"]:
            return
        if not sys.stdin.isatty():
            raise CommandError("There is no terminal to ask on: add --yes.", returncode=2)
        for each in told:
            self.stderr.write(printable(each))
        self.stderr.write(f"{question} [y/N] ", ending="")
        self.stderr.flush()
        try:
            answer = input()
        except (EOFError, KeyboardInterrupt):  # Ctrl-D, Ctrl-C
            self.stderr.write("")
            answer = ""
        if answer.strip().lower() not in ("y", "yes"):
            raise CommandError("Nothing was changed.")


class DecisionCommand(OperatorCommand):
    """A decision about one record: shown, agreed to, and carried out if nothing has changed."""

    action: ClassVar[str]

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare what decisions have in common."""
        super().add_arguments(parser)
        parser.add_argument("--force", action="store_true", help="end a live lease, too")
        parser.add_argument("--reason", default="", help="why; for the log")
        parser.add_argument("--epoch", type=int, help="only if the record still has this epoch")
        parser.add_argument("--noted", type=int, help="only if its steps still have so many bytes")
        parser.add_argument(
            *("-y", "--yes", "--no-input", "--noinput"),
            action="store_true",
            dest="yes",
            help="do not ask",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Decide about the one record that is meant."""
        store, record = self.one(options)
        alias, action, short = store.alias, self.action, keys.short(record.record_id)
        said = {it: options[it] for it in ("epoch", "noted") if options[it] is not None}
        if said.keys() == {"epoch"} and record.steps is not None:
            told = "This record has steps: give --noted, too, which is `bytes` of its `steps`."
            raise CommandError(told, returncode=2)
        seen = replace(Seen.of(record), **said)
        if options["force"] and "noted" not in said:
            seen = seen.to_end(record, action)
        about = self.about(alias, record, options)
        decision = Decision(store, action, seen, record, force=options["force"], **about)
        if (why := decision.obstacle) is not None:
            raise CommandError(f"Record {short} was not changed. {why}")
        given = self.given(alias, record, about, options)
        shown = [*lines(alias, record), f"To {action} it: {decision.consequence}"]
        self.agreed(shown, f"{action.capitalize()} the record?", options)
        try:
            decision.carry_out(who=operator(), reason=options["reason"], **given)
        except NotResolved as error:
            raise CommandError(str(error)) from error
        except StoreError as error:
            raise CommandError(f"{error} It may have been done: look at it again.") from error
        now = None
        with suppress(StoreError):  # the decision stands, whether it can be read or not
            now = store.get(record.record_id)
        if options["json"]:
            records = [] if now is None else [facts(alias, now)]
            said = {"action": action, "steps": decision.of_steps}
            self.write_json({**said, "records": records})
            return
        self.write_lines([f"Record {short} is {action}d. {decision.of_steps}".rstrip()])
        if now is not None:
            self.write_lines([*lines(alias, now)][-1:])

    def about(self, alias: str, record: Record, options: dict[str, Any]) -> dict[str, Any]:
        """Return what a `Decision` takes besides: to resume takes a call."""
        return {}

    def given(
        self, alias: str, record: Record, about: dict[str, Any], options: dict[str, Any]
    ) -> dict[str, Any]:
        """Return what it is carried out with: a result."""
        return {}

    def one(self, options: dict[str, Any]) -> tuple[BaseStore, Record]:
        """Return the one record that is meant, and its store."""
        found = self.found(options)
        if len(found) > 1:
            self.write_lines(line(store.alias, record) for store, record in found)
            raise CommandError(f"{len(found)} records are meant: name one by its id, or its store.")
        if self.failures:  # the record that is meant may be in a store that is down
            raise CommandError("Not every store could be searched: name the record's by --store.")
        return found[0]


def operator() -> str:
    """Return the name of the user of the system, for the log."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container may have none
        return ""
