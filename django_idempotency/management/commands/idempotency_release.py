"""The command that releases a record, or erases all of a scope."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any, ClassVar

from django.core.management.base import CommandError, CommandParser

from django_idempotency.management.shell import (
    DecisionCommand,
    chosen_stores,
    operator,
    printable,
)
from django_idempotency.operators.erasing import Erasure, erase
from django_idempotency.operators.search import scopes_of
from django_idempotency.stores.base import BaseStore


class Command(DecisionCommand):
    """Release a record: its key may be used again, by anything."""

    help = (
        "Releases an idempotency record, in progress under a lapsed lease or failed: its key may "
        "be used again. With --erase --scope it deletes all records of a person."
    )
    action: ClassVar[str] = "release"
    nargs: ClassVar[str | None] = "?"  # an erasure takes none

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        super().add_arguments(parser)
        parser.add_argument(
            "--erase", action="store_true", help="delete every record of --scope; reads the store"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Release the one record that is meant, or erase."""
        if not options["erase"]:
            if options["record"] is None:
                raise CommandError("Name a record, or give --erase and --scope.", returncode=2)
            super().handle(*args, **options)
            return
        of_one = options["record"] is not None or options["epoch"] is not None
        if of_one or not options["scope"]:
            told = "--erase takes a --scope, and no record or --epoch."
            raise CommandError(told, returncode=2)
        self._erase(options)

    def _erase(self, options: dict[str, Any]) -> None:
        chosen = chosen_stores(options["store"], options["schema"])
        scope = _one_meant(options["scope"])
        told = _told(chosen, scope, force=options["force"])
        self.agreed(told, "Erase these records?", options)
        done: dict[str, Erasure] = {}
        named = {"force": options["force"], "who": operator(), "reason": options["reason"]}
        for store in chosen:
            again = self.trying(store, "erase", " Run the command again.")
            erasures = closing(erase(store, scope, **named))  # tells what is gone when it ends
            with again, self.progress(json=options["json"]) as show, erasures as each_batch:
                for erasure in each_batch:
                    show(_count(store.alias, erasure))
                done[store.alias] = erasure
                if erasure.damaged:
                    self.failures.append(
                        f"{store.alias}: {len(erasure.damaged)} damaged records were left, because "
                        f"nothing tells whose they are: {', '.join(erasure.damaged)}."
                    )
        if options["json"]:
            self.write_json({alias: vars(erasure) for alias, erasure in done.items()})
        else:
            self.write_lines(each for item in done.items() for each in _lines(*item))
        if left := sum(erasure.left.total() for erasure in done.values()):
            self.failures.append(
                f"{left} records were left, because an attempt is running. Run the command again, "
                f"or add --force."
            )
        self.end()


def _one_meant(text: str) -> str:
    """
    Return the one scope that is erased: that of a user of this name, or else the text itself.

    Users choose their names. One who is called as a task is, as a scope of calls, or as another
    tenant's user, must not take along what these have: their retries would run again.
    """
    scope, *users = scopes_of(text)
    if not users or ":" in text:  # a scope as it is shown
        return scope
    if len(users) > 1:
        told = f"--scope may mean {' or '.join(users)}: give one of them."
        raise CommandError(printable(told), returncode=2)
    return users[0]


def _told(chosen: list[BaseStore], scope: str, *, force: bool) -> Iterator[str]:
    """Yield what an erasure does, before it is agreed to."""
    yield f"All records are read of: {', '.join(store.alias for store in chosen)}. Those go that"
    yield "have this scope, alone or within a tenant or an endpoint:"
    yield f"  {scope}"
    yield "An erased record answers no duplicate: a retry of its request runs the work again."
    if force:
        yield "Running attempts lose their leases: joined work rolls back, other work stays done."
    else:
        yield "Records of running attempts are left."


def _count(alias: str, done: Erasure) -> str:
    return f"{alias}: {done.looked_at} records looked at, {done.erased.total()} erased"


def _lines(alias: str, done: Erasure) -> Iterator[str]:
    left = done.left.total()
    yield _count(alias, done) + (f", {left} in progress and left" if left else "")
    yield from (f"  {scope}: {number}" for scope, number in sorted(done.erased.items()))
