"""What the commands of operators share: finding records, asking before a decision, output."""

from __future__ import annotations

import getpass
import json
import sys
from argparse import ArgumentParser
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, ClassVar

from django.core.management.base import CommandError, CommandParser

from django_idempotency.conf import InvalidStore, store_for, stores
from django_idempotency.exceptions import StoreError
from django_idempotency.keys import short
from django_idempotency.management.shell import ShellCommand
from django_idempotency.operators.facts import facts, line, lines
from django_idempotency.operators.resolving import NotResolved, consequence, obstacle, resolve
from django_idempotency.operators.search import NEWEST, find
from django_idempotency.records import Record
from django_idempotency.stores.base import BaseStore

__all__ = ["DecisionCommand", "OperatorCommand", "Seen", "add_schema", "chosen_stores"]

_RECORD = (
    "a record id, or 8 or more of its first characters; whose key and the key: 'alice 8e03978e'; "
    "or a key"
)
_DONE = {"release": "released", "complete": "completed", "expire": "expired"}


@dataclass(frozen=True)
class Seen:
    """A record as the operator saw it, and the store that has it."""

    store: BaseStore
    record: Record

    @property
    def alias(self) -> str:
        """The alias of the store."""
        return self.store.alias


class OperatorCommand(ShellCommand):
    """A command about records, in every store; exit codes: 1 not found or refused, 2 usage."""

    # What is wrong elsewhere must not keep an operator from the records.
    requires_system_checks: ClassVar[list[str]] = []  # type: ignore[misc]
    #: The schema whose records are meant; None for that of the connection.
    schema: str | None = None
    #: Why stores could not be searched, a line each.
    failures: Sequence[str] = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare how a record is named."""
        self.add_record(parser)
        parser.add_argument("--scope", help="whose key it is: a scope, a user, a tenant and a user")
        parser.add_argument("--store", help="one alias of IDEMPOTENCY; default: all of them")
        add_schema(parser)
        parser.add_argument("--json", action="store_true", help="write JSON")

    def add_record(self, parser: ArgumentParser) -> None:
        """Declare the argument that names the record."""
        parser.add_argument("record", metavar="RECORD", help=_RECORD)

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Do all of it in the schema that is meant, if one is."""
        self.schema = options.get("schema")
        with ExitStack() as stack:
            if self.schema is not None:
                for store in self.chosen_stores(options["store"]):
                    try:
                        stack.enter_context(store.in_schema(self.schema))
                    except StoreError as error:
                        raise CommandError(str(error)) from error
            return super().execute(*args, **options)

    def chosen_stores(self, alias: str | None) -> list[BaseStore]:
        """Return the store of an alias, or those of all; an unknown alias is wrong usage."""
        return chosen_stores(alias, self.schema)

    def found(self, options: dict[str, Any]) -> list[Seen]:
        """Return the records that are meant; one that two aliases share is found once."""
        seen: dict[Any, Seen] = {}
        partly: list[str] = []
        self.failures = failures = []
        for store in self.chosen_stores(options["store"]):
            try:
                found = find(store, options["record"], scope=options["scope"])
            except StoreError as error:
                failures.append(f"{store.alias}: {error}")
                continue
            for record in found.records:
                seen.setdefault((record.record_id, record.epoch, record.token), Seen(store, record))
            if found.more:
                partly.append(store.alias)
        for failure in failures:
            self.stderr.write(failure)
        if partly:
            self.stderr.write(
                f"Of {', '.join(partly)}, only {NEWEST} records were searched, the newest ones if "
                f"the store can order. Give --scope, or the whole record id, to search them all."
            )
        if not seen:
            raise CommandError("No record was found.")
        return [*seen.values()]

    def write_lines(self, several: Iterable[str]) -> None:
        """Write lines of text, in which a stored character cannot steer the terminal."""
        encoding = getattr(self.stdout, "encoding", None) or "utf-8"  # Latin-1, or of Windows
        for each in several:
            text = printable(each).encode(encoding, "backslashreplace")
            self.stdout.write(text.decode(encoding))

    def write_json(self, value: Any) -> None:
        """Write a value as JSON, of ASCII characters alone."""
        self.stdout.write(json.dumps(value, indent=2))

    def agreed(self, told: Iterator[str], question: str, options: dict[str, Any]) -> None:
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
        parser.add_argument(
            *("-y", "--yes", "--no-input", "--noinput"),
            action="store_true",
            dest="yes",
            help="do not ask",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Decide about the one record that is meant."""
        seen = self.one(options)
        given = self.given(seen, options)
        record, action = seen.record, self.action
        told = [*lines(seen.alias, record), f"To {action} it: {consequence(record, action)}"]
        self.agreed(iter(told), f"{action.capitalize()} the record?", options)
        try:
            resolve(
                seen.store,
                record,
                action,
                force=options["force"],
                who=operator(),
                reason=options["reason"],
                **given,
            )
        except NotResolved as error:
            raise CommandError(str(error)) from error
        except StoreError as error:
            raise CommandError(f"{error} It may have been done: look at it again.") from error
        now = None
        with suppress(StoreError):  # the decision stands, whether it can be read or not
            now = seen.store.get(record.record_id)
        if options["json"]:
            records = [] if now is None else [facts(seen.alias, now)]
            self.write_json({"action": action, "records": records})
            return
        self.write_lines([f"Record {short(record.record_id)} is {_DONE[action]}."])
        if now is not None:
            self.write_lines([*lines(seen.alias, now)][-1:])

    def given(self, seen: Seen, options: dict[str, Any]) -> dict[str, Any]:
        """Return what an action takes besides: a completion takes a result."""
        return {}

    def one(self, options: dict[str, Any]) -> Seen:
        """Return the one record that is meant, about which can be decided."""
        found = self.found(options)
        if len(found) > 1:
            self.write_lines(line(seen.alias, seen.record) for seen in found)
            raise CommandError(f"{len(found)} records are meant: name one by its id, or its store.")
        if self.failures:  # the record that is meant may be in a store that is down
            raise CommandError("Not every store could be searched: name the record's by --store.")
        [seen] = found
        epoch = options["epoch"]
        if epoch is not None and epoch != seen.record.epoch:
            raise CommandError(
                f"Record {short(seen.record.record_id)} has changed since you saw it: its epoch is "
                f"{seen.record.epoch} now. Look at it again."
            )
        if (why := obstacle(seen.record, self.action, force=options["force"])) is not None:
            raise CommandError(f"Record {short(seen.record.record_id)} was not changed. {why}")
        return seen


def add_schema(parser: ArgumentParser) -> None:
    """Declare the option that names a schema."""
    parser.add_argument("--schema", help="the schema of the table (PostgreSQL), of a tenant's say")


def chosen_stores(alias: str | None, schema: str | None) -> list[BaseStore]:
    """Return the store of an alias, or those of all that have schemas, if one of these is meant."""
    try:
        found = [store_for(name) for name in (stores if alias is None else [alias])]
    except InvalidStore as error:
        raise CommandError(str(error), returncode=2) from error
    if schema is None:
        return found
    if chosen := [store for store in found if store.has_schemas]:
        return chosen
    told = "--schema is for a database store on PostgreSQL: no store that is meant has schemas."
    raise CommandError(told, returncode=2)


def operator() -> str:
    """Return the name of the user of the system, for the log."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container may have none
        return ""


def printable(text: str) -> str:
    """Return text whose control characters are escapes; lines stay lines (R80)."""
    return "".join(
        each if each.isprintable() or each in "\n\t" else each.encode("unicode_escape").decode()
        for each in text
    )
