"""What the project guards: its views, the middleware and its tasks, each with its policy."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from http import HTTPStatus
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.conf import settings
from django.contrib.admindocs.views import simplify_regex
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpResponse
from django.urls import URLPattern, URLResolver, get_resolver
from django.utils.module_loading import import_string

from django_idempotency.callables import name_of
from django_idempotency.conf import Plan
from django_idempotency.http.atomic_requests import atomic_aliases
from django_idempotency.http.calls import using, verdict_for
from django_idempotency.http.checks import declarations, guarded_name
from django_idempotency.http.middleware import IdempotencyMiddleware
from django_idempotency.http.plans import Declared, ViewPlan, declared_on, is_operation
from django_idempotency.options import SECRETS
from django_idempotency.policy import HTTPPolicy, Policy

__all__ = ["Guarded", "answers", "effective", "guarded"]

_VERDICTS = ("keep", "release", "fail")


@dataclass
class Guarded:
    """A guarded view, task or middleware."""

    #: "view", "middleware" or "task".
    kind: str
    name: str
    plan: Plan | None
    #: How its work commits.
    transaction: str = ""
    methods: tuple[str, ...] = ()
    routes: tuple[str, ...] = ()
    #: What a view or a task declares besides its policy.
    options: tuple[tuple[str, str], ...] = ()
    #: Why there is no plan.
    problem: str = ""


def guarded() -> Iterator[Guarded]:
    """Yield all that is guarded: views by their place in the URLconf, then middleware, tasks."""
    yield from _merged(_views())
    yield from _middleware()
    yield from _tasks()


def effective(plan: Plan, *, http: bool, every: bool = False) -> dict[str, Any]:
    """Return the fields of a plan's policies that differ from the defaults, or all of them."""
    both: list[tuple[Policy | HTTPPolicy, Policy | HTTPPolicy]] = [(plan.policy, Policy())]
    if http:
        both.append((plan.http_policy, HTTPPolicy()))
    return {
        item.name: _shown(item.name, getattr(policy, item.name))
        for policy, default in both
        for item in fields(policy)
        if every or getattr(policy, item.name) != getattr(default, item.name)
    }


def answers(http: HTTPPolicy) -> dict[str, str]:
    """
    Return which statuses of an answer are kept, release the key, or fail the record.

    By `verdict_for` itself; a callable ``keep`` is named.
    """
    if callable(http.keep):
        return {"decided by": name_of(http.keep)}
    said: dict[str, list[str]] = {verdict: [] for verdict in _VERDICTS}
    statuses = [it.value for it in HTTPStatus if it >= 200]
    for hundred, several in itertools.groupby(statuses, lambda status: status // 100):
        by_verdict: dict[str, list[int]] = {}
        for status in several:
            verdict = verdict_for(http, HttpResponse(status=status), None)
            by_verdict.setdefault(verdict, []).append(status)
        usual = "keep" if "keep" in by_verdict else next(iter(by_verdict))
        for verdict, found in by_verdict.items():
            if verdict != usual:
                said[verdict] += map(str, found)
            else:
                said[verdict].append(f"{'other ' if len(by_verdict) > 1 else ''}{hundred}xx")
    return {verdict: ", ".join(found) for verdict, found in said.items() if found}


def _views() -> Iterator[Guarded]:
    if not getattr(settings, "ROOT_URLCONF", None):
        return
    for route, view in _routes(get_resolver().url_patterns, ""):
        if hasattr(getattr(view, "cls", None), "idempotency_store"):
            yield from _of_mixin(route, view)
            continue
        for declared, place in declarations(view):
            found = _planned("view", guarded_name(place), declared)
            if isinstance(found.plan, ViewPlan):
                # Ninja's view is a coroutine if one operation of its path is.
                coroutine = place.is_async if is_operation(place) else iscoroutinefunction(view)
                joins = found.plan.joins and not coroutine
                found.transaction = _mode(found.plan, joins=joins)
                found.methods = _methods(place, declared, found.plan)
                found.options = _options(found.plan)
                if is_operation(place) and not found.methods:
                    continue  # a router's guard knows each operation, and leaves those of GET alone
            found.routes = (route,)
            yield found


def _of_mixin(route: str, view: Any) -> Iterator[Guarded]:
    """Yield the guarded methods of a view with the mixin; one entry for those of one policy."""
    from django_idempotency.contrib.rest_framework.mixin import plan_of

    for method, handler in _handlers(view).items():
        name, upper = _name(view), method.upper()
        if handler != method:
            name = f"{name}.{handler}"
        try:
            instance = view.cls(**getattr(view, "initkwargs", {}))
            plan = plan_of(instance, handler)
        except (AttributeError, ImproperlyConfigured, TypeError, ValueError) as error:
            yield Guarded("view", name, None, routes=(route,), problem=str(error))
            return
        actions = view.cls.idempotency_actions
        if upper not in plan.methods or (actions is not None and handler not in actions):
            continue
        yield Guarded("view", name, plan, _mode(plan), (upper,), (route,), _options(plan))


def _merged(found: Iterator[Guarded]) -> Iterator[Guarded]:
    """Yield each view once, with all of its methods and routes."""
    views: list[Guarded] = []
    for each in found:
        for view in views:
            if _facts_of(view) == _facts_of(each):
                view.methods = tuple(dict.fromkeys([*view.methods, *each.methods]))
                view.routes = tuple(dict.fromkeys([*view.routes, *each.routes]))
                break
        else:
            views.append(each)
    for view in views:  # REST framework has each route twice: once with the suffix of a format
        view.routes = tuple(it for it in view.routes if "<format>" not in it) or view.routes
        yield view


def _facts_of(view: Guarded) -> Any:
    """Return what two entries of one view have in common; methods of the view are named."""
    plan = view.plan
    policy = None if plan is None else (plan.alias, effective(plan, http=True, every=True))
    return view.name, view.problem, view.transaction, view.options, policy


def _options(plan: ViewPlan) -> tuple[tuple[str, str], ...]:
    return (("operation", plan.operation_name),) if plan.operation_name else ()


def _middleware() -> Iterator[Guarded]:
    for name in settings.MIDDLEWARE:
        middleware = import_string(name)
        if not isinstance(middleware, type) or not issubclass(middleware, IdempotencyMiddleware):
            continue
        methods = frozenset({"POST", "PATCH"})
        found = _planned("middleware", name, Declared(middleware.store, methods=methods))
        if isinstance(found.plan, ViewPlan):
            found.transaction = _mode(found.plan, joins=False)
            found.methods = tuple(sorted(found.plan.methods))
        found.routes = ("every plain view without a guard of its own",)
        yield found


def _tasks() -> Iterator[Guarded]:
    try:
        from django_idempotency.contrib.celery.guarded import guarded_tasks
    except ImportError:  # Celery is not installed
        return
    for task, guard in guarded_tasks():
        found = _planned("task", task.name, guard)
        if found.plan is not None:
            found.transaction = _mode(found.plan)
        key = name_of(guard.key) if callable(guard.key) else str(guard.key or "the task's id")
        names = ("on_duplicate", "on_in_progress", "on_failed")
        found.options = (("key", key), *((name, str(getattr(guard, name))) for name in names))
        yield found


def _planned(kind: str, name: str, declared: Any) -> Guarded:
    try:
        return Guarded(kind, name, declared.plan())
    except (ImproperlyConfigured, TypeError, ValueError) as error:
        return Guarded(kind, name, None, problem=str(error))


def _routes(patterns: Sequence[URLPattern | URLResolver], before: str) -> Iterator[tuple[str, Any]]:
    for pattern in patterns:
        route = before + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            yield from _routes(pattern.url_patterns, route)
        else:
            yield simplify_regex(route), pattern.callback


def _methods(view: Any, declared: Declared, plan: ViewPlan) -> tuple[str, ...]:
    """Return the methods that one guard stands around: of a class those that it has."""
    found = {*plan.methods}
    if is_operation(view):
        return tuple(sorted(found & {*view.methods}))
    view_class = getattr(view, "view_class", getattr(view, "cls", None))
    if view_class is not None:
        handlers = _handlers(view)
        own = [
            method
            for method, handler in handlers.items()
            if any(declared is it for it in declared_on(getattr(view_class, handler, None)))
        ]
        found &= {method.upper() for method in own or handlers}
    return tuple(sorted(found))


def _handlers(view: Any) -> dict[str, str]:
    """Return the methods of a class view, and what handles each."""
    view_class = getattr(view, "view_class", getattr(view, "cls", None))
    names = getattr(view_class, "http_method_names", ())
    return getattr(view, "actions", None) or {it: it for it in names if hasattr(view_class, it)}


def _mode(plan: Plan, *, joins: bool = True) -> str:
    """Return how the work commits where no transaction is open around it."""
    joins = joins or bool(using(plan.store) & {*atomic_aliases(())})
    default = "joined" if plan.store.supports_join and joins else "separate"
    return plan.policy.transaction or default


def _name(view: Any) -> str:
    named = getattr(view, "view_class", getattr(view, "cls", view))
    return f"{named.__module__}.{getattr(named, '__qualname__', named)}"


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
