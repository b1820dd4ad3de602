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
from django_idempotency.operators.facts import Reading
from django_idempotency.operators.results import given_result
from django_idempotency.operators.search import NEWEST, find

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

    def found(self, options: dict[str, Any]) -> list[Reading]:
        """Return the records that are meant; one that two aliases share is found once."""
        seen: dict[Any, Reading] = {}
        partly: list[str] = []
        self.failures = failures = []
        for store in chosen_stores(options["store"], options["schema"]):
            try:
                found = find(store, options["record"], scope=options["scope"])
            except StoreError as error:
                failures.append(f"{store.alias}: {error}")
                continue
            for record in found.records:
                same = (record.record_id, record.epoch, record.token)
                seen.setdefault(same, Reading(store, record))
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
        found = self.one(options)
        store, record, action = found.store, found.record, self.action
        short = keys.short(record.record_id)
        said = {it: options[it] for it in ("epoch", "noted") if options[it] is not None}
        if said.keys() == {"epoch"} and record.steps is not None:
            told = "This record has steps: give --noted, too, which is `bytes` of its `steps`."
            raise CommandError(told, returncode=2)
        seen = replace(Seen.of(record), **said)
        if options["force"] and "noted" not in said:
            seen = seen.to_end(record, action)
        decision = Decision(store, action, seen, found, options["force"])
        if (why := decision.obstacle) is None:
            decision = self.with_options(decision, found, options)
            why = decision.obstacle
        if why is not None:
            raise CommandError(f"Record {short} was not changed. {why}")
        shown = [*found.lines(), f"To {action} it: {decision.consequence}"]
        self.agreed(shown, f"{action.capitalize()} the record?", options)
        try:
            decision.carry_out(who=operator(), reason=options["reason"])
        except NotResolved as error:
            raise CommandError(str(error)) from error
        except StoreError as error:
            raise CommandError(f"{error} It may have been done: look at it again.") from error
        now = None
        with suppress(StoreError):  # the decision stands, whether it can be read or not
            now = store.get(record.record_id)
        records = [] if now is None else [Reading(store, now)]
        if options["json"]:
            said = {"action": action, "steps": decision.of_steps}
            self.write_json({**said, "records": [it.facts() for it in records]})
            return
        self.write_lines([f"Record {short} is {action}d. {decision.of_steps}".rstrip()])
        self.write_lines(f"A duplicate sent now: {it.told}" for it in records)

    def with_options(self, decision: Decision, found: Reading, options: dict[str, Any]) -> Decision:
        """Return the decision with what the options of its command say besides."""
        return decision

    def given(self, found: Reading, options: dict[str, Any], **given: Any) -> bytes:
        """Return a result that is given, in the form of the record's adapter."""
        try:
            return given_result(found, is_chosen=options["store"] is not None, **given)
        except ValueError as error:
            raise CommandError(f"This result cannot be kept. {error}", returncode=2) from error

    def one(self, options: dict[str, Any]) -> Reading:
        """Return the one record that is meant."""
        found = self.found(options)
        if len(found) > 1:
            self.write_lines(it.line for it in found)
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
