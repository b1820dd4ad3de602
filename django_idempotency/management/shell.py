"""What the commands share: stores, records and decisions by their options, and the output."""

from __future__ import annotations

import getpass
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import Any, ClassVar

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import translation

from django_idempotency import keys
from django_idempotency.conf import InvalidStore, store_for, stores
from django_idempotency.exceptions import StoreError
from django_idempotency.operators.decisions import Decision, NotResolved, Seen
from django_idempotency.operators.facts import Reading
from django_idempotency.operators.results import given_result
from django_idempotency.operators.search import NEWEST, find
from django_idempotency.stores.base import BaseStore

#: The exit code of a program that SIGPIPE ends, which Python ignores.
_READER_GONE = 141
_SURROGATE = re.compile("[\ud800-\udfff]")
_RECORD = (
    "a record id, or 8 or more of its first characters; whose key and the key: 'alice 8e03978e'; "
    "or a key"
)


class ShellCommand(BaseCommand):
    """A command whose output is read by people and programs alike."""

    def __init__(self, *args: Any, **options: Any) -> None:
        """Write nowhere where the shell has closed the output (``>&-``)."""
        for name in ("stdout", "stderr"):
            if getattr(sys, name) is None:  # and not a file, as its type says
                setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        super().__init__(*args, **options)

    def add_store_arguments(self, parser: CommandParser) -> None:
        """Declare the options of a command about stores."""
        parser.add_argument("--store", help="one alias of IDEMPOTENCY; default: all of them")
        parser.add_argument(
            "--schema", help="the schema of the table (PostgreSQL), of a tenant's say"
        )
        parser.add_argument("--json", action="store_true", help="write JSON")

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Speak English, whatever the project's language: scripts look for these words."""
        #: Why stores could not be asked, a line each.
        self.failures: list[str] = []
        for name, value in options.items():
            if isinstance(value, str) and _SURROGATE.search(value):  # bytes that are not UTF-8
                raise CommandError(f"What is given for {name} is no text.", returncode=2)
        with translation.override(None), self.schema(options):
            return super().execute(*args, **options)

    def schema(self, options: dict[str, Any]) -> AbstractContextManager[Any]:
        """Return the block in which all of it is done."""
        return nullcontext()

    @contextmanager
    def trying(self, store: BaseStore, method: str, then: str = "") -> Iterator[None]:
        """Note that the block fails with a store, and what to do then: others may not."""
        try:
            yield
        except (NotImplementedError, StoreError) as error:
            why = str(error) or f"this store has no {method}()."
            self.failures.append(f"{store.alias}: {why}{then}")

    def end(self) -> None:
        """End the command; a failure is an error, when all else is done."""
        if self.failures:
            raise CommandError("\n".join(self.failures))

    def run_from_argv(self, argv: list[str]) -> None:
        """End as other programs do in ``… | head``; what was done stays done."""
        try:
            try:
                super().run_from_argv(argv)
            finally:
                sys.stdout.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for Python's own flush
            sys.exit(_READER_GONE)

    def write_lines(self, several: Iterable[str]) -> None:
        """Write lines of text, in which a stored character cannot steer the terminal."""
        encoding = getattr(self.stdout, "encoding", None) or "utf-8"  # Latin-1, or of Windows
        for each in several:
            text = printable(each).encode(encoding, "backslashreplace")
            self.stdout.write(text.decode(encoding))

    def write_json(self, value: Any) -> None:
        """Write a value as JSON, of ASCII characters alone."""
        self.stdout.write(json.dumps(value, indent=2))

    @contextmanager
    def progress(self, *, json: bool) -> Iterator[Callable[[str], None]]:
        """Give the block what writes one line of a terminal over and over, but beside JSON."""
        is_shown = self.stdout.isatty() and not json

        def show(text: str) -> None:
            if is_shown:
                self.stdout.write(f"\r{text}", ending="")
                self.stdout.flush()

        try:
            yield show
        finally:
            if is_shown:
                self.stdout.write()


class OperatorCommand(ShellCommand):
    """A command about records, in every store; exit codes: 1 not found or refused, 2 usage."""

    # What is wrong elsewhere must not keep an operator from the records.
    requires_system_checks: ClassVar[list[str]] = []  # type: ignore[misc]
    #: How many records are named, as of `add_argument`: one, or "?" if none may be.
    nargs: ClassVar[str | None] = None

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare how a record is named."""
        parser.add_argument("record", metavar="RECORD", nargs=self.nargs, help=_RECORD)
        parser.add_argument("--scope", help="whose key it is: a scope, a user, a tenant and a user")
        self.add_store_arguments(parser)

    @contextmanager
    def schema(self, options: dict[str, Any]) -> Iterator[None]:
        """Do all of it in the schema that is meant, if one is."""
        with ExitStack() as stack:
            if (schema := options.get("schema")) is not None:
                for store in chosen_stores(options["store"], schema):
                    try:
                        stack.enter_context(store.in_schema(schema))
                    except StoreError as error:
                        raise CommandError(str(error)) from error
            yield

    def found(self, options: dict[str, Any]) -> list[Reading]:
        """Return the records that are meant; one that two aliases share is found once."""
        seen: dict[Any, Reading] = {}
        partly: list[str] = []
        for store in chosen_stores(options["store"], options["schema"]):
            with self.trying(store, "browse"):
                found = find(store, options["record"], scope=options["scope"])
                for record in found.records:
                    same = (record.record_id, record.epoch, record.token)
                    seen.setdefault(same, Reading(store, record))
                if found.more:
                    partly.append(store.alias)
        for failure in self.failures:
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
            told = str(error)
            if isinstance(error, json.JSONDecodeError):
                told = f"It is no JSON: {error}. A text stands in double quotes: '\"L-17\"'."
            raise CommandError(f"This result cannot be kept. {told}", returncode=2) from error

    def one(self, options: dict[str, Any]) -> Reading:
        """Return the one record that is meant."""
        found = self.found(options)
        if len(found) > 1:
            self.write_lines(it.line for it in found)
            raise CommandError(f"{len(found)} records are meant: name one by its id, or its store.")
        if self.failures:  # the record that is meant may be in a store that is down
            raise CommandError("Not every store could be searched: name the record's by --store.")
        return found[0]


def chosen_stores(alias: str | None, schema: str | None = None) -> list[BaseStore]:
    """
    Return the store of an alias, or those of all that have schemas, if one of these is meant.

    An alias that is unknown, and a schema for stores without any, are wrong usage.
    """
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


def printable(text: str) -> str:
    """Return text whose control characters are escapes; lines stay lines (R80)."""
    return "".join(
        each if each.isprintable() or each in "\n\t" else each.encode("unicode_escape").decode()
        for each in text
    )


def operator() -> str:
    """Return the name of the user of the system, for the log."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container may have none
        return ""
