"""The command that sweeps expired records."""

from __future__ import annotations

from typing import Any, ClassVar

from django.core.management.base import CommandError, CommandParser

from django_idempotency.exceptions import StoreError
from django_idempotency.management.shell import ShellCommand, chosen_stores
from django_idempotency.stores.base import BaseStore
from django_idempotency.sweep import sweep, there

#: How many records there were per alias; None for a store that needs no sweep, or cannot count.
Counts = dict[str, int | None]


class Command(ShellCommand):
    """Delete expired records, in batches, beside running traffic."""

    # A mistake in a view or a task must not let the table grow, nor a warning come with each run.
    requires_system_checks: ClassVar[list[str]] = []  # type: ignore[misc]
    help = "Deletes expired idempotency records, in batches, beside running traffic."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        self.add_store_arguments(parser)
        parser.add_argument("--limit", type=int, default=5000, help="records per batch")
        parser.add_argument("--max-seconds", type=float, help="stop after this time")
        parser.add_argument("--dry-run", action="store_true", help="count, and delete nothing")

    def handle(self, *args: Any, **options: Any) -> None:
        """Sweep, and say how many records went; exit code 1 if a store cannot be reached."""
        if options["limit"] < 1:
            raise CommandError("--limit must be at least 1.", returncode=2)
        if options["max_seconds"] is not None and not options["max_seconds"] >= 0:
            raise CommandError("--max-seconds must be at least 0.", returncode=2)
        chosen = {it.alias: it for it in chosen_stores(options["store"], options["schema"])}
        do, done = (self._count, "") if options["dry_run"] else (self._sweep, " deleted")
        counts = do(chosen, options)
        if options["json"]:
            self.write_json(counts)
        else:
            for alias, count in counts.items():
                said = "this store cannot count its" if count is None else count
                said = f"{said} expired records{done}"
                if chosen[alias].native_expiry:
                    said = "nothing to sweep, this store deletes its expired records by itself"
                self.stdout.write(f"{alias}: {said}")
        self.end()

    def _sweep(self, chosen: dict[str, BaseStore], options: dict[str, Any]) -> Counts:
        """Sweep; return the numbers of the stores that were reached."""
        swept: dict[str, int] = {}
        with self.progress(json=options["json"]) as show:

            def progress(alias: str, count: int) -> None:
                swept[alias] = count
                # The line only grows, so that each one covers the one before it on a terminal.
                counts = ", ".join(f"{alias}: {count}" for alias, count in swept.items())
                show(f"{counts} expired records deleted")

            named = {name: options[name] for name in ("schema", "limit", "max_seconds")}
            try:
                swept |= sweep(options["store"], **named, progress=progress)
            except StoreError as error:
                self.failures.append(str(error))
        reached = [alias for alias, it in chosen.items() if it.native_expiry or alias in swept]
        return {alias: swept.get(alias) for alias in reached}

    def _count(self, chosen: dict[str, BaseStore], options: dict[str, Any]) -> Counts:
        """Return what a sweep would delete, of the stores that are reached."""
        counts: Counts = {}
        for alias, store in chosen.items():
            with self.trying(store, "count_expired"), there(store, options["schema"]):
                counts[alias] = None if store.native_expiry else store.count_expired()
        return counts
