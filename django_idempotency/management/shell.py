"""What all commands share: which stores they are about, and an output that a shell can read."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import translation

from django_idempotency.conf import InvalidStore, store_for, stores
from django_idempotency.stores.base import BaseStore

#: The exit code of a program that SIGPIPE ends, which Python ignores.
_READER_GONE = 141


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
        with translation.override(None):
            return super().execute(*args, **options)

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
