"""What the project guards: its views, the middleware and its tasks, each with its policy."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields
from datetime import timedelta
from http import HTTPStatus
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.http import HttpResponse

from django_idempotency.callables import name_of
from django_idempotency.conf import Plan
from django_idempotency.http.atomic_requests import atomic_aliases
from django_idempotency.http.class_views import class_of
from django_idempotency.http.inventory import guards_of, routes
from django_idempotency.http.middleware import in_settings
from django_idempotency.http.verdicts import verdict_on
from django_idempotency.operators.facts import Reading
from django_idempotency.options import SECRETS
from django_idempotency.policy import HTTPPolicy, Policy

#: The facts that are no line of their own.
_APART = ["kind", "name", "methods", "routes", "store", "backend", "transaction", "policy"]
_APART += ["answers", "operations"]
#: What happens to an answer, and so to its key.
_DONE = {"keep": "replays", "release": "frees key", "fail": "runs again"}


def guarded(*, every: bool = False) -> Iterator[dict[str, Any]]:
    """
    Yield the facts of all that is guarded, as JSON values.

    These are views by their place in the URLconf, then middleware, then tasks. Their policy is what
    differs from the defaults, or all of it. What has no valid policy has its "problem" instead, and
    a view that is only read a "note".
    """
    yield from _merged(_views(every))
    yield from _middleware(every)
    yield from _tasks(every)


def guard_of(about: Reading) -> dict[str, Any] | None:
    """
    Return the facts of the view or task whose operation a record has.

    None if no one of them is known: of a call of `run`, say, or of a view of the middleware.
    """
    operation, alias = about.record.operation, about.store.alias
    found: list[dict[str, Any]] = []
    if about.kind == "http":
        found = [*_merged(_views(False, operation))]
    elif about.kind == "task":
        with suppress(ImportError):  # a module of tasks may need what only workers have
            found = [*_tasks(False)]
    found = [it for it in found if operation in it["operations"] and it.get("store") == alias]
    return found[0] if len(found) == 1 else None


def lines(facts: dict[str, Any]) -> Iterator[str]:
    """Yield what `guarded` says of one view or task, a line each."""
    where = f"{' '.join(facts['methods'])} {', '.join(facts['routes'])}".strip()
    yield f"{facts['kind']} {facts['name']}" + (f": {where}" if where else "")
    if "problem" in facts:
        yield f"  not valid: {facts['problem']}"
        return
    if "note" in facts:
        yield f"  {facts['note']}"
        return
    rows = {"store": f"{facts['store']} ({facts['backend']})", "commits": facts["transaction"]}
    rows |= {name: value for name, value in facts.items() if name not in _APART}
    for name, value in facts["policy"].items():
        if name != "transaction":
            rows[name] = ", ".join(value) if isinstance(value, list) else value
    for verdict, statuses in facts.get("answers", {}).items():
        steps = verdict == "release" and facts["transaction"] == "steps"
        rows[_DONE.get(verdict, verdict)] = f"{statuses}{', before its first step' * steps}"
    width = max(map(len, rows))
    yield from (f"  {name:<{width}}  {value}" for name, value in rows.items())


def _views(every: bool, operation: str | None = None) -> Iterator[dict[str, Any]]:
    """Yield the facts of each guarded view, or of those whose records have this operation."""
    only_read: dict[str, dict[str, Any]] = {}
    written = set()
    for route, name, view in routes():
        for found in guards_of(view):
            facts, plan = _begun("view", found.name, found, routes=[route])
            if plan is None:
                yield facts
            elif methods := found.guarded_methods(plan):
                written.add(found.name)
                facts["methods"] = [*methods]
                facts["operations"] = [f"{it} {plan.operation_name or name}" for it in methods]
                if operation not in (None, *facts["operations"]):
                    continue
                facts["name"] += f".{found.action}" if found.action else ""
                own = {"operation": plan.operation_name, "per request": ", ".join(plan.computed)}
                options = {name: value for name, value in own.items() if value}
                joins = plan.joins and not found.is_coroutine
                yield facts | _facts_of(plan, options, joins=joins, every=every)
            elif class_of(view) is not None:
                # Not of a router of ninja, whose guard is around what is read, too.
                only_read.setdefault(found.name, facts)
    note = "its guard does nothing: it has no method that the guard is for"
    for name, facts in only_read.items():
        if name not in written:
            yield facts | {"note": note}


def _merged(found: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield each view once, with all of its methods and routes."""
    views: dict[str, dict[str, Any]] = {}
    for each in found:
        lists = ("methods", "routes", "operations")
        view = views.setdefault(repr({**each, **dict.fromkeys(lists)}), each)
        for name in lists:
            view[name] = [*dict.fromkeys([*view[name], *each[name]])]
    for view in views.values():  # REST framework has each route twice: once with a format's suffix
        view["routes"] = [it for it in view["routes"] if "<format>" not in it] or view["routes"]
        yield view


def _middleware(every: bool) -> Iterator[dict[str, Any]]:
    for name, middleware in in_settings():
        places = ["every plain view without a guard of its own"]
        facts, plan = _begun("middleware", name, middleware.declared(), routes=places)
        if plan is not None:
            facts["methods"] = sorted(plan.methods)
            facts |= _facts_of(plan, {}, joins=plan.joins, every=every)
        yield facts


def _tasks(every: bool) -> Iterator[dict[str, Any]]:
    try:
        from django_idempotency.contrib.celery.guarded import guarded_tasks
    except ImportError:  # Celery is not installed
        return
    for task, guard in guarded_tasks():
        facts, plan = _begun("task", task.name, guard, operations=[guard.operation or task.name])
        if plan is not None:
            key = name_of(guard.key) if callable(guard.key) else str(guard.key or "the task's id")
            names = ("on_duplicate", "on_in_progress", "on_failed")
            options = {"key": key, **{name: str(getattr(guard, name)) for name in names}}
            facts |= _facts_of(plan, options, http=False, every=every)
        yield facts


def _begun(kind: str, name: str, declared: Any, **facts: Any) -> tuple[dict[str, Any], Any]:
    """Return what is known without its plan, and the plan; None, and its problem, without one."""
    facts = {"kind": kind, "name": name, "methods": [], "routes": [], "operations": [], **facts}
    try:
        return facts, declared.plan()
    except (ImproperlyConfigured, TypeError, ValueError) as error:
        return {**facts, "problem": str(error)}, None


def _facts_of(
    plan: Plan, options: dict[str, str], *, http: bool = True, joins: bool = True, every: bool
) -> dict[str, Any]:
    """Return the facts of a plan, and the options of a view or a task that are no policy."""
    joins = joins or plan.store.using in atomic_aliases()
    default = "joined" if plan.store.supports_join and joins else "separate"
    policies: list[tuple[Any, Any]] = [(plan.policy, Policy())]
    if http:
        policies.append((plan.http_policy, HTTPPolicy()))
    facts: dict[str, Any] = {
        "store": plan.alias,
        "backend": type(plan.store).__name__,
        # Where no transaction is open around it.
        "transaction": plan.policy.transaction or default,
        **options,
        "policy": {
            item.name: _shown(item.name, getattr(policy, item.name))
            for policy, usual in policies
            for item in fields(policy)
            if every or getattr(policy, item.name) != getattr(usual, item.name)
        },
    }
    if http:
        facts["answers"] = _answers(plan.http_policy)
    return facts


def _answers(http: HTTPPolicy) -> dict[str, str]:
    """
    Return which statuses of an answer are kept, release the key, or fail the record.

    By `verdict_on` itself; a callable ``keep`` is named.
    """
    if callable(http.keep):
        return {"decided by": name_of(http.keep)}
    said: dict[str, list[str]] = {"keep": [], "release": [], "fail": []}
    statuses = [it.value for it in HTTPStatus if it >= 200]
    for hundred, several in itertools.groupby(statuses, lambda status: status // 100):
        by_verdict: dict[str, list[int]] = {}
        for status in several:
            verdict = verdict_on(http, HttpResponse(status=status))
            by_verdict.setdefault(verdict, []).append(status)
        usual = "keep" if "keep" in by_verdict else next(iter(by_verdict))
        for verdict, found in by_verdict.items():
            if verdict != usual:
                said[verdict] += map(str, found)
            else:
                said[verdict].append(f"{'other ' if len(by_verdict) > 1 else ''}{hundred}xx")
    return {verdict: ", ".join(found) for verdict, found in said.items() if found}


def _shown(name: str, value: Any) -> Any:
    """Return a value of a policy as JSON can have it; secrets by their number."""
    if name in SECRETS:
        return f"{len(value)} of them"
    if isinstance(value, timedelta):
        return f"{value.total_seconds():g} s"
    if callable(value):
        return name_of(value)
    if isinstance(value, (tuple, frozenset)):
        return sorted(map(str, value)) if isinstance(value, frozenset) else [*map(str, value)]
    return value
