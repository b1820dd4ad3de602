"""The command that sweeps expired records."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import CommandError, CommandParser

from django_idempotency.exceptions import StoreError
from django_idempotency.management.operating import add_schema, chosen_stores
from django_idempotency.management.shell import ShellCommand
from django_idempotency.stores.base import BaseStore
from django_idempotency.sweep import sweep, there

_BY_ITSELF = "nothing to sweep, this store deletes its expired records by itself"


class Command(ShellCommand):
    """Delete expired records, in batches, beside running traffic."""

    help = "Deletes expired idempotency records, in batches, beside running traffic."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("--store", help="one alias of IDEMPOTENCY; default: all of them")
        add_schema(parser)
        parser.add_argument("--limit", type=int, default=5000, help="records per batch")
        parser.add_argument("--max-seconds", type=float, help="stop after this time")
        parser.add_argument("--dry-run", action="store_true", help="count, and delete nothing")
        parser.add_argument("--json", action="store_true", help="write JSON: a number per alias")

    def handle(self, *args: Any, **options: Any) -> None:
        """Sweep, and say how many records went; exit code 1 if a store cannot be reached."""
        if options["limit"] < 1:
            raise CommandError("--limit must be at least 1.", returncode=2)
        if options["max_seconds"] is not None and not options["max_seconds"] >= 0:
            raise CommandError("--max-seconds must be at least 0.", returncode=2)
        only, self._schema = options["store"], options["schema"]
        found = {store.alias: store for store in chosen_stores(only, self._schema)}
        self._json = options["json"]
        if options["dry_run"]:
            self._count(found)
        else:
            self._sweep(found, only, options["limit"], options["max_seconds"])

    def _sweep(
        self,
        found: dict[str, BaseStore],
        only: str | None,
        limit: int,
        max_seconds: float | None,
    ) -> None:
        swept: dict[str, int] = {}
        terminal = self.stdout.isatty() and not self._json

        def progress(alias: str, count: int) -> None:
            swept[alias] = count
            if terminal:
                self.stdout.write(f"\r{_counts(swept)}", ending="")
                self.stdout.flush()

        failure: StoreError | None = None
        try:
            swept |= sweep(
                only,
                schema=self._schema,
                limit=limit,
                max_seconds=max_seconds,
                progress=progress,
            )
        except StoreError as error:
            failure = error
        if terminal:
            self.stdout.write()
        if self._json:
            done = [alias for alias in found if alias in swept or failure is None]
            self._write_json({alias: swept.get(alias) for alias in done})
        else:
            for alias, count in swept.items():
                self.stdout.write(f"{alias}: {count} expired records deleted")
            for alias in found:
                if failure is None and alias not in swept:
                    self.stdout.write(f"{alias}: {_BY_ITSELF}")
        if failure is not None:
            raise CommandError(str(failure)) from failure

    def _write_json(self, counts: dict[str, int | None]) -> None:
        """Write how many records there were per alias; null for a store that needs no sweep."""
        self.stdout.write(json.dumps(counts, indent=2))

    def _count(self, found: dict[str, BaseStore]) -> None:
        failures: list[str] = []
        counts: dict[str, int | None] = {}
        for alias, store in found.items():
            try:
                with there(store, self._schema):
                    counts[alias] = None if store.native_expiry else store.count_expired()
            except StoreError as error:
                failures.append(f"{alias}: {error}")
                continue
            if self._json:
                continue
            if store.native_expiry:
                self.stdout.write(f"{alias}: {_BY_ITSELF}")
                continue
            said = "this store cannot count its" if counts[alias] is None else counts[alias]
            self.stdout.write(f"{alias}: {said} expired records")
        if self._json:
            self._write_json(counts)
        if failures:
            raise CommandError("\n".join(failures))


def _counts(swept: dict[str, int]) -> str:
    """Return a line that only grows, so that each one covers the one before it on a terminal."""
    counts = ", ".join(f"{alias}: {count}" for alias, count in swept.items())
    return f"{counts} expired records deleted"
