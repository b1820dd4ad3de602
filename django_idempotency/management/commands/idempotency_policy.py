"""The command that shows what is guarded, and by which policy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, ClassVar

from django.core.management.base import CommandError, CommandParser

from django_idempotency.management.operating import printable
from django_idempotency.management.shell import ShellCommand
from django_idempotency.operators.guarded import Guarded, answers, effective, guarded

__all__ = ["Command"]


class Command(ShellCommand):
    """Show each guarded view and task, its effective policy, and what becomes of each status."""

    help = (
        "Shows each guarded view and task, its effective policy, and what happens to each status "
        "of an answer."
    )
    # A view whose policy is not valid is shown, with its problem.
    requires_system_checks: ClassVar[list[str]] = []  # type: ignore[misc]

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("names", nargs="*", metavar="NAME", help="part of a name or a route")
        parser.add_argument("--all", action="store_true", help="defaults of the policy, too")
        parser.add_argument("--json", action="store_true", help="write JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        """Show what is guarded; exit code 1 for a name that nothing has."""
        every = [*guarded()]
        chosen = [each for each in every if _is_meant(each, options["names"])]
        if options["names"] and not chosen:
            raise CommandError("Nothing that is guarded has such a name or route.")
        if options["json"]:
            found = [_facts(each, every=options["all"]) for each in chosen]
            self.stdout.write(json.dumps({"guarded": found}, indent=2))
            return
        for each in chosen:
            for text in _lines(each, every=options["all"]):
                self.stdout.write(printable(text))
        if not chosen:
            self.stdout.write("Nothing is guarded.")


def _is_meant(each: Guarded, names: list[str]) -> bool:
    return not names or any(name in text for name in names for text in (each.name, *each.routes))


def _facts(each: Guarded, *, every: bool) -> dict[str, Any]:
    facts: dict[str, Any] = {"kind": each.kind, "name": each.name}
    facts |= {"methods": list(each.methods), "routes": list(each.routes)}
    if (plan := each.plan) is None:
        return {**facts, "problem": each.problem}
    http = each.kind != "task"
    facts |= {"store": plan.alias, "backend": type(plan.store).__name__}
    facts |= {"transaction": each.transaction, **dict(each.options)}
    facts["policy"] = effective(plan, http=http, every=every)
    if http:
        facts["answers"] = answers(plan.http_policy)
    return facts


def _lines(each: Guarded, *, every: bool) -> Iterator[str]:
    facts = _facts(each, every=every)
    where = f"{' '.join(each.methods)} {', '.join(each.routes)}".strip()
    yield f"{each.kind} {each.name}" + (f": {where}" if where else "")
    if each.problem:
        yield f"  not valid: {each.problem}"
        return
    rows = {"store": f"{facts['store']} ({facts['backend']})", "commits": facts["transaction"]}
    rows |= dict(each.options)
    for name, value in facts["policy"].items():
        if name != "transaction":
            rows[name] = ", ".join(value) if isinstance(value, list) else value
    for verdict, statuses in facts.get("answers", {}).items():
        rows[_DONE.get(verdict, verdict)] = statuses
    width = max(map(len, rows))
    yield from (f"  {name:<{width}}  {value}" for name, value in rows.items())


#: What happens to an answer, and so to its key.
_DONE = {"keep": "replays", "release": "frees key", "fail": "runs again"}
