"""The command that sweeps expired records."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_idempotency.conf import InvalidStore, store_for, stores
from django_idempotency.exceptions import StoreError
from django_idempotency.stores.database import DatabaseStore
from django_idempotency.sweep import sweep


class Command(BaseCommand):
    """Delete expired records, in batches, beside running traffic."""

    help = "Deletes expired idempotency records, in batches, beside running traffic."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("--store", help="one alias of IDEMPOTENCY; default: all of them")
        parser.add_argument("--limit", type=int, default=5000, help="records per batch")
        parser.add_argument("--max-seconds", type=float, help="stop after this time")
        parser.add_argument("--dry-run", action="store_true", help="count, and delete nothing")

    def handle(self, *args: Any, **options: Any) -> None:
        """Sweep, and say how many records went."""
        if options["limit"] < 1:
            raise CommandError("--limit must be at least 1.", returncode=2)
        try:
            if options["dry_run"]:
                for alias in [options["store"]] if options["store"] else list(stores):
                    self._count(alias)
                return
            swept = sweep(
                options["store"],
                limit=options["limit"],
                max_seconds=options["max_seconds"],
                progress=self._progress if self.stdout.isatty() else None,
            )
        except (InvalidStore, StoreError) as error:
            raise CommandError(str(error)) from error
        for alias, count in swept.items():
            self.stdout.write(f"{alias}: {count} expired records deleted")

    def _count(self, alias: str) -> None:
        store = store_for(alias)
        if isinstance(store, DatabaseStore):
            self.stdout.write(f"{alias}: {store.count_expired()} expired records")
        elif not store.native_expiry:
            self.stdout.write(f"{alias}: this store cannot count its expired records")

    def _progress(self, alias: str, count: int) -> None:
        self.stdout.write(f"\r{alias}: {count} expired records deleted", ending="")
        self.stdout.flush()
