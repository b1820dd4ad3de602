"""System checks of guarded views, of the middleware, and of CORS."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from django_idempotency.checks import path_problems
from django_idempotency.conf import UnknownAlias, http_policy_for, policy_for, stores
from django_idempotency.engine.operation import check_mode
from django_idempotency.http.atomic_requests import atomic_aliases, exempt, is_marked
from django_idempotency.http.attributes import IdempotencyAttributes
from django_idempotency.http.class_views import class_of, has_guard, is_wrapped, what_to_write
from django_idempotency.http.inventory import (
    GuardedView,
    dotted_name,
    guards_of,
    is_of_api_view,
    methods_of,
    operations_behind,
    routes,
)
from django_idempotency.http.middleware import IdempotencyMiddleware
from django_idempotency.http.plans import Declared, ViewPlan, declared_on, guards_itself
from django_idempotency.policy import HTTPPolicy

_AUTHENTICATION = "django.contrib.auth.middleware.AuthenticationMiddleware"
_EXEMPT = "Give the API's view functions non_atomic_requests, as the guide to django-ninja shows."


def _once(check: Callable[[], Iterator[CheckMessage]]) -> Callable[[], list[CheckMessage]]:
    """Leave out what is told already: a view may have several routes, methods and actions."""

    @wraps(check)
    def told() -> list[CheckMessage]:
        found = list(check())
        return [message for number, message in enumerate(found) if message not in found[:number]]

    return told


@_once
def check_views() -> Iterator[CheckMessage]:
    """A guarded view needs a policy and a scope, and the guard stands where it can guard."""
    checked: list[Declared] = []
    for _, _, view in routes():
        for guarded in guards_of(view):
            problems, plan = _policy(guarded.name, guarded.plan, _subject(view))
            # One policy for all of a router, or of what a decorator is given to.
            if not any(guarded.declared is declared for declared in checked):
                yield from problems
            if guarded.declared is not None:
                checked.append(guarded.declared)
            if plan is not None:
                yield from _of_guard(guarded, plan)
        yield from _login_below(view)
        yield from _misplaced(view)


def _of_guard(guarded: GuardedView, plan: ViewPlan) -> Iterator[CheckMessage]:
    """Report what a guard with a valid policy lacks."""
    if not _is_of_drf(guarded.view):
        yield from _loses_atomic_requests(guarded.view, plan, guarded.name)
    if guarded.guarded_methods(plan):
        yield from _no_scope(guarded, plan)
    if not is_marked(guarded.view) and atomic_aliases(exempt(guarded.view)):
        yield from _within_atomic_requests(guarded, has_steps=plan.policy.transaction == "steps")


def _loses_atomic_requests(view: Any, plan: ViewPlan, name: str) -> Iterator[CheckMessage]:
    """Report a coroutine view on which each request raises RuntimeError (R96)."""
    if not iscoroutinefunction(view):
        return
    operations = operations_behind(view)  # have no mark: Django refuses it before the guard
    joins = plan.policy.transaction in ("joined", "single") and not operations
    atomic = atomic_aliases({*exempt(view), *((plan.store.using,) if joins else ())})
    lost = atomic if operations else plan.atomic(atomic)
    hint = (
        'Give it transaction="joined", which opens the transaction on the store\'s database, or '
        "non_atomic_requests, which stands above @idempotent."
    )
    if lost:
        yield Error(
            f"{name} is a coroutine, and cannot have the ATOMIC_REQUESTS of "
            f"{', '.join(map(repr, lost))}.",
            hint=_EXEMPT if operations else hint,
            obj=_subject(view),
            id="django_idempotency.E015",
        )


def _no_scope(guarded: GuardedView, plan: ViewPlan) -> Iterator[CheckMessage]:
    """Report a guard that does not know whose key a request carries (R21)."""
    if plan.http_policy.scope or "scope" in plan.computed:
        return
    view, subject = guarded.view, _subject(guarded.view)
    if _is_of_drf(view):
        given = view.initkwargs.get("authentication_classes", view.cls.authentication_classes)
        if not given:
            yield Error(
                f"{guarded.name} is guarded and has no authentication classes, so the guard does "
                f"not know whose idempotency key a request carries.",
                hint="Set authentication_classes, or a scope: idempotency_scope(self, request) "
                "with the mixin, idempotent(scope=...) without.",
                obj=subject,
                id="django_idempotency.E006",
            )
    elif guarded.authenticates:
        return
    elif (authenticates := _authenticates(settings.MIDDLEWARE)) is None:
        yield _perhaps_no_scope(guarded.name, subject)
    elif not authenticates:
        yield Error(
            f"{guarded.name} is guarded, and without AuthenticationMiddleware the guard does not "
            f"know whose idempotency key a request carries.",
            hint="Add AuthenticationMiddleware, or give idempotent(scope=...).",
            obj=subject,
            id="django_idempotency.E007",
        )


def _perhaps_no_scope(name: str, subject: Any = None) -> CheckMessage:
    return Warning(
        f"{name} is guarded, and has neither a scope nor AuthenticationMiddleware. Unless another "
        f"middleware sets request.user, each key is refused.",
        hint="Give a scope, or silence this if a middleware of yours sets request.user.",
        obj=subject,
        id="django_idempotency.W010",
    )


def _within_atomic_requests(guarded: GuardedView, *, has_steps: bool) -> Iterator[CheckMessage]:
    """Report marks that Django does not see, so that it opens its transaction around the guard."""
    view, view_class = guarded.view, class_of(guarded.view)
    lost = "not visible to others, and errors that are raised are not kept"
    if is_of_api_view(view):
        place, hint = "below @api_view on", "Put @idempotent directly above @api_view."
    elif view_class is not None and has_guard(view_class):
        place = "behind the dispatch of a subclass or a mixin on"
        hint = "Put it on the class itself."
    elif view_class is not None:
        place, hint = "on a method of", "Put it on dispatch, by method_decorator(name='dispatch')."
        if _is_of_drf(view):
            hint = "Put IdempotencyMixin before the view's other bases instead."
    else:
        place, lost, hint = "on the operation", "not visible to others", _EXEMPT
    if has_steps:
        yield Error(
            f"@idempotent stands {place} {guarded.name}: with ATOMIC_REQUESTS each request is a "
            f"TransactionOpen, because its steps commit by themselves.",
            hint=hint,
            obj=_subject(view),
            id="django_idempotency.E017",
        )
        return
    yield Warning(
        f"@idempotent stands {place} {guarded.name}: with ATOMIC_REQUESTS its claim is {lost}.",
        hint=hint,
        obj=_subject(view),
        id="django_idempotency.W004",
    )


def _login_below(view: Any) -> Iterator[CheckMessage]:
    """Report decorators below the guard, which refuses callers whom they would let log in."""
    if class_of(view) is not None:
        return
    below = view
    while declared_on(below) and declared_on(below) == declared_on(view):
        below = getattr(below, "__wrapped__", None)
    # What login_required and similar decorators leave for Django's LoginRequiredMiddleware.
    if declared_on(view) and hasattr(below, "login_url"):
        yield Warning(
            f"@login_required, or a decorator like it, stands below @idempotent on "
            f"{dotted_name(view)}: an anonymous caller with a key gets a 400 in place of the login "
            f"page, and a replay does not ask it.",
            hint="Put @idempotent directly above the function, and the others above it.",
            obj=view,
            id="django_idempotency.W014",
        )


def _misplaced(view: Any) -> Iterator[CheckMessage]:
    """Report decorators on class views where they cannot guard (R14, R17)."""
    view_class = class_of(view)
    if view_class is None or issubclass(view_class, IdempotencyAttributes):
        return
    if _is_of_drf(view) and has_guard(view_class):
        yield Error(
            f"@idempotent stands on dispatch of {dotted_name(view)}: a replay would bypass "
            f"permissions and throttles, so each request is refused.",
            hint=f"Write class {view_class.__name__}(IdempotencyMixin, ...) instead.",
            obj=view_class,
            id="django_idempotency.E012",
        )
    elif is_marked(view) and not has_guard(view_class):
        yield Error(
            f"@idempotent stands around as_view() of {dotted_name(view)}, where it cannot guard.",
            hint=f"{what_to_write(view)} Put the policy on the class.",
            obj=view_class,
            id="django_idempotency.E018",
        )


@_once
def check_middleware() -> Iterator[CheckMessage]:
    """The middleware runs the view itself, so no ``process_view`` may stand after it."""
    names = list(settings.MIDDLEWARE)
    for position, name in enumerate(names):
        middleware = _imported(name)
        if not isinstance(middleware, type) or not issubclass(middleware, IdempotencyMiddleware):
            continue
        before, after = names[:position], names[position + 1 :]
        passed_over = [later for later in after if hasattr(_imported(later), "process_view")]
        if passed_over:
            yield Error(
                f"{name} stands before {', '.join(passed_over)} in MIDDLEWARE: Django does not "
                f"call their process_view for the views that it guards.",
                hint="Put it last in MIDDLEWARE.",
                id="django_idempotency.E008",
            )
        problems, plan = _policy(name, middleware.declared().plan)
        yield from problems
        if plan is None:
            continue
        for _, _, view in routes():
            yield from _left_to_middleware(view, plan)
        yield from _left_alone(name, plan)
        if plan.http_policy.scope or _authenticates(before):
            continue
        if _authenticates(before) is None and not _authenticates(after):
            yield _perhaps_no_scope(name)
        else:
            yield Error(
                f"{name} does not know whose idempotency key a request carries.",
                hint="Put it after AuthenticationMiddleware, or set SCOPE.",
                id="django_idempotency.E009",
            )


def _left_alone(name: str, plan: ViewPlan) -> Iterator[CheckMessage]:
    """Report views of Django REST framework, which the middleware leaves to guards of their own."""
    unguarded = {
        dotted_name(view): None
        for _, _, view in routes()
        if _is_of_drf(view)
        and not has_guard(view.cls)
        and methods_of(view).intersection(plan.methods)
        and not any(guards_of(view))
    }
    if unguarded:
        named, others = [*unguarded][:5], len(unguarded) - 5
        yield Warning(
            f"{name} guards no view of Django REST framework, and these have no guard of their "
            f"own: {', '.join(named)}{f' and {others} others' if others > 0 else ''}.",
            hint="Give them IdempotencyMixin of django_idempotency.contrib.rest_framework, or "
            "@idempotent above @api_view. If no client sends them a key, name this check in "
            "SILENCED_SYSTEM_CHECKS.",
            id="django_idempotency.W018",
        )


def _left_to_middleware(view: Any, plan: ViewPlan) -> Iterator[CheckMessage]:
    """Report views that the middleware is to guard, and cannot."""
    view_class = class_of(view)
    if guards_itself(view) or _is_of_drf(view) or operations_behind(view):
        return
    yield from _loses_atomic_requests(view, plan, dotted_name(view))
    if view_class is None or has_guard(view_class) or not is_wrapped(view):
        return
    methods = {*map(str.lower, plan.methods)} & {*view_class.http_method_names}
    handlers = [getattr(view_class, name, None) for name in methods]
    if any(handler is not None and not guards_itself(handler) for handler in handlers):
        yield Error(
            f"The middleware cannot guard {dotted_name(view)}: decorators stand around its "
            f"as_view().",
            hint=f"{what_to_write(view)} Or put them on dispatch, with method_decorator.",
            obj=view_class,
            id="django_idempotency.E019",
        )


def check_fail_open() -> list[CheckMessage]:
    """``FAIL_OPEN`` trades the guarantee for availability (R61)."""
    return [
        _fails_open(f"IDEMPOTENCY[{alias!r}] has FAIL_OPEN")
        for alias, http in _http_policies()
        if http.fail_open
    ]


def check_cors() -> Iterator[CheckMessage]:
    """A browser may send the key and read the mark of a replay only if CORS says so (R82)."""
    if not apps.is_installed("corsheaders"):
        return
    allowed = {name.lower() for name in getattr(settings, "CORS_ALLOW_HEADERS", ())}
    exposed = {name.lower() for name in getattr(settings, "CORS_EXPOSE_HEADERS", ())}
    for alias, http in _http_policies():
        if http.header.lower() not in allowed:
            yield Warning(
                f"Browsers may not send {http.header} across origins (IDEMPOTENCY[{alias!r}]).",
                hint=f"Add {http.header.lower()!r} to CORS_ALLOW_HEADERS.",
                id="django_idempotency.W006",
            )
        if http.replay_header and http.replay_header.lower() not in exposed:
            yield Warning(
                f"Browsers may not read {http.replay_header} across origins "
                f"(IDEMPOTENCY[{alias!r}]).",
                hint=f"Add {http.replay_header!r} to CORS_EXPOSE_HEADERS.",
                id="django_idempotency.W007",
            )


def _policy(
    name: str, plan_of: Callable[[], ViewPlan], subject: Any = None
) -> tuple[list[CheckMessage], ViewPlan | None]:
    """
    Return errors and warnings about the alias and the policy that a view declares, and its plan.

    Without this check each guarded request would be a 500. Errors in an alias of the setting belong
    to the check of the aliases.
    """
    try:
        plan = plan_of()
        problems = [*_policy_problems(plan)]
    except (TypeError, UnknownAlias, ValueError) as error:
        problems = [str(error)]
    except ImproperlyConfigured:
        return [], None
    if not problems:
        return [*_doubts(name, plan, subject)], plan
    errors: list[CheckMessage] = [
        Error(
            f"{name} is guarded, and its policy is not valid: {problem}",
            hint="Correct what the view gives; the settings page lists every field.",
            obj=subject,
            id="django_idempotency.E013",
        )
        for problem in problems
    ]
    return errors, None


def _policy_problems(plan: ViewPlan) -> Iterator[str]:
    if "store" not in plan.computed:
        check_mode(plan.policy, plan.store)
    of_alias = http_policy_for(plan.alias)
    for field, problem in path_problems(plan.http_policy):
        if getattr(plan.http_policy, field) != getattr(of_alias, field):  # or else it tells
            yield f"{field} {problem}"


def _doubts(name: str, plan: ViewPlan, subject: Any) -> Iterator[CheckMessage]:
    """Warn about valid values that are probably not meant, unless the alias has them already."""
    policy, alias = plan.policy, policy_for(plan.alias)
    if policy.lease > policy.retention and not alias.lease > alias.retention:
        yield Warning(
            f"{name} has a lease that is longer than its retention.",
            hint="A record should answer for longer than one attempt may take.",
            obj=subject,
            id="django_idempotency.W012",
        )
    if plan.http_policy.fail_open and not http_policy_for(plan.alias).fail_open:
        yield _fails_open(f"{name} has fail_open", subject)


def _fails_open(who: str, subject: Any = None) -> CheckMessage:
    return Warning(
        f"{who}: while its store is down, retries run again.",
        hint="Leave it out where a second run costs money.",
        obj=subject,
        id="django_idempotency.W005",
    )


def _authenticates(names: Sequence[str]) -> bool | None:
    """Whether one of these middlewares sets request.user; None if one of them may (R21)."""
    found = [_imported(name) for name in names]
    ancestors = [base for item in found for base in getattr(item, "__mro__", ())]
    # By name: the module cannot be imported where django.contrib.auth is not installed.
    if any(f"{base.__module__}.{base.__qualname__}" == _AUTHENTICATION for base in ancestors):
        return True
    packages = {item.__module__.partition(".")[0] for item in found if item is not None}
    return False if packages <= {"django", "django_idempotency"} else None


def _http_policies() -> Iterator[tuple[str, HTTPPolicy]]:
    try:
        for alias in stores:
            yield alias, http_policy_for(alias)
    except ImproperlyConfigured:
        return  # the check of the aliases tells


def _is_of_drf(view: Any) -> bool:
    """Whether a view is of Django REST framework, which authenticates by itself."""
    return hasattr(view, "cls")


def _subject(view: Any) -> Any:
    """Return what a message is about: the class of a view, or its function."""
    return class_of(view) or view


def _imported(name: str) -> Any:
    try:
        return import_string(name)
    except ImportError:
        return None
