"""System checks of guarded views, of the middleware, and of CORS."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.apps import AppConfig, apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning
from django.core.exceptions import ImproperlyConfigured
from django.urls import URLPattern, URLResolver, get_resolver
from django.utils.module_loading import import_string

from django_idempotency.checks import path_problem
from django_idempotency.conf import http_policy_for, policy_for, store_for, stores
from django_idempotency.engine.transactions import must_join
from django_idempotency.http.atomic_requests import atomic_aliases, exempt, is_marked
from django_idempotency.http.calls import using
from django_idempotency.http.middleware import IdempotencyMiddleware
from django_idempotency.http.plans import Declared, declared_on, is_operation, ninja_operations
from django_idempotency.policy import HTTPPolicy, Policy, suggestion

__all__ = [
    "check_cors",
    "check_fail_open",
    "check_middleware",
    "check_views",
    "declarations",
    "guarded_name",
    "policy_problems",
    "url_callbacks",
]

_DECORATORS = "django_idempotency.http.decorators"
_AUTHENTICATION = "django.contrib.auth.middleware.AuthenticationMiddleware"
_EXEMPT = "Give the API's view functions non_atomic_requests, as the guide to django-ninja shows."
_DOTTED_PATHS = ("scope", "error_renderer", "replay_check", "fingerprint")


def check_views(
    *, app_configs: Sequence[AppConfig] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """A decorated view needs a policy and a scope, and stands above ``@api_view``."""
    found: list[CheckMessage] = []
    seen: list[tuple[Declared, str]] = []
    for view in url_callbacks():
        found.extend(_login_below(view))
        for declared, guarded in declarations(view):
            name = guarded_name(guarded)
            names = [other for known, other in seen if known is declared]
            if name in names:
                continue
            seen.append((declared, name))
            problems = policy_problems(name, declared.store, _policies(declared), view)
            if not names:  # one policy for all of a router, or of what a decorator is given to
                found.extend(problems)
            if any(problem.is_serious() for problem in problems) or _is_of_drf(view):
                continue
            found.extend(_loses_atomic_requests(view, declared, name))
            if not _has_scope(declared) and not _authenticates_itself(view):
                found.append(_no_scope(view, name))
        if _any_atomic_requests() and not is_marked(view):
            found.extend(_within_atomic_requests(view))
    return found


def _loses_atomic_requests(view: Any, declared: Declared, name: str) -> Iterator[CheckMessage]:
    """Report a coroutine view on which each request raises RuntimeError (R96)."""
    if not iscoroutinefunction(view):
        return
    store, joins = (
        store_for(declared.store),
        declared.plan().policy.transaction in ("joined", "single"),
    )
    of_ninja = any(ninja_operations(view))  # has no mark: Django refuses it before the guard
    lost = atomic_aliases({*exempt(view), *(using(store) if joins and not of_ninja else ())})
    hint = (
        'Give it idempotent(transaction="joined"), which opens the transaction on the '
        "store's database, or non_atomic_requests, which stands below @idempotent."
    )
    if lost:
        yield Error(
            f"{name} is a coroutine, and cannot have the ATOMIC_REQUESTS of "
            f"{', '.join(map(repr, lost))}.",
            hint=_EXEMPT if of_ninja else hint,
            obj=view,
            id="django_idempotency.E015",
        )


def _coroutines_lose(declared: Declared) -> Iterator[CheckMessage]:
    """Report the coroutine views that the middleware guards, and Django refuses (R96)."""
    for view in dict.fromkeys(url_callbacks()):
        if not (is_marked(view) or _is_of_drf(view) or any(ninja_operations(view))):
            yield from _loses_atomic_requests(view, declared, _name(view))


def _login_below(view: Any) -> Iterator[CheckMessage]:
    """Report decorators below the guard, which refuses callers whom they would let log in."""
    guarded = False
    while view is not None:
        module = getattr(view, "__globals__", {}).get("__name__")
        if guarded and module == "django.contrib.auth.decorators":
            yield Warning(
                f"@login_required, or a decorator like it, stands below @idempotent on "
                f"{_name(view)}: an anonymous caller with a key gets a 400 in place of the login "
                f"page, and a replay does not ask it.",
                hint="Put @idempotent directly above the function, and the others above it.",
                obj=view,
                id="django_idempotency.W014",
            )
            return
        guarded = guarded or module == _DECORATORS
        view = getattr(view, "__wrapped__", None)


def _within_atomic_requests(view: Any) -> Iterator[CheckMessage]:
    """Report marks that Django does not see, so that it opens its transaction around the guard."""
    name, lost = _name(view), "not visible to others, and errors that are raised are not kept"
    if any(map(is_marked, _below_api_view(view))):
        place, hint = "below @api_view on", "Put @idempotent directly above @api_view."
    elif any(map(is_marked, _methods(view))):
        place, hint = "on a method of", "Put it on dispatch, by method_decorator(name='dispatch')."
        if _is_of_drf(view):
            hint = "Put IdempotencyMixin before the view's other bases instead."
    elif any(map(is_marked, _dispatches(view))):
        place, hint = (
            "behind the dispatch of a subclass or a mixin on",
            "Put it on the class itself.",
        )
    elif (operations := [*ninja_operations(view)]) and atomic_aliases(exempt(view)):
        name, place = guarded_name(operations[0]), "on the operation"
        lost, hint = "not visible to others", _EXEMPT
    else:
        return
    yield Warning(
        f"@idempotent stands {place} {name}: with ATOMIC_REQUESTS its claim is {lost}.",
        hint=hint,
        obj=view,
        id="django_idempotency.W004",
    )


def check_middleware(
    *, app_configs: Sequence[AppConfig] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """The middleware runs the view itself, so no ``process_view`` may stand after it."""
    found: list[CheckMessage] = []
    names = list(settings.MIDDLEWARE)
    for position, name in enumerate(names):
        middleware = _imported(name)
        if not isinstance(middleware, type) or not issubclass(middleware, IdempotencyMiddleware):
            continue
        before, after = names[:position], names[position + 1 :]
        passed_over = [later for later in after if hasattr(_imported(later), "process_view")]
        if passed_over:
            found.append(
                Error(
                    f"{name} stands before {', '.join(passed_over)} in MIDDLEWARE: Django does "
                    f"not call their process_view for the views that it guards.",
                    hint="Put it last in MIDDLEWARE.",
                    id="django_idempotency.E008",
                )
            )
        declared = Declared(middleware.store)
        problems = policy_problems(name, middleware.store, _policies(declared))
        found.extend(problems)
        if not problems:
            found.extend(_coroutines_lose(declared))
        if problems or _has_scope(declared, before):
            continue
        if _authenticates(before) is None and not _authenticates(after):
            found.append(_perhaps_no_scope(name))
        else:
            found.append(
                Error(
                    f"{name} does not know whose idempotency key a request carries.",
                    hint="Put it after AuthenticationMiddleware, or set SCOPE.",
                    id="django_idempotency.E009",
                )
            )
    return found


def check_fail_open(
    *, app_configs: Sequence[AppConfig] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """``FAIL_OPEN`` trades the guarantee for availability (R61)."""
    return [
        _fails_open(f"IDEMPOTENCY[{alias!r}] has FAIL_OPEN")
        for alias, http in _http_policies()
        if http.fail_open
    ]


def check_cors(
    *, app_configs: Sequence[AppConfig] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """A browser may send the key and read the mark of a replay only if CORS says so (R82)."""
    if not apps.is_installed("corsheaders"):
        return []
    found: list[CheckMessage] = []
    allowed = {name.lower() for name in getattr(settings, "CORS_ALLOW_HEADERS", ())}
    exposed = {name.lower() for name in getattr(settings, "CORS_EXPOSE_HEADERS", ())}
    for alias, http in _http_policies():
        if http.header.lower() not in allowed:
            found.append(
                Warning(
                    f"Browsers may not send {http.header} across origins (IDEMPOTENCY[{alias!r}]).",
                    hint=f"Add {http.header.lower()!r} to CORS_ALLOW_HEADERS.",
                    id="django_idempotency.W006",
                )
            )
        if http.replay_header and http.replay_header.lower() not in exposed:
            found.append(
                Warning(
                    f"Browsers may not read {http.replay_header} across origins "
                    f"(IDEMPOTENCY[{alias!r}]).",
                    hint=f"Add {http.replay_header!r} to CORS_EXPOSE_HEADERS.",
                    id="django_idempotency.W007",
                )
            )
    return found


def url_callbacks() -> Iterator[Any]:
    """Yield each view function of the URLconf."""
    if getattr(settings, "ROOT_URLCONF", None):
        yield from _callbacks(get_resolver().url_patterns)


def _callbacks(patterns: Sequence[URLPattern | URLResolver]) -> Iterator[Any]:
    for pattern in patterns:
        if isinstance(pattern, URLResolver):
            yield from _callbacks(pattern.url_patterns)
        else:
            yield pattern.callback


def policy_problems(
    name: str, store: str, policies: Callable[[], tuple[Policy, HTTPPolicy]], view: Any = None
) -> list[CheckMessage]:
    """
    Return errors and warnings about the alias and the policy that a view declares.

    Without this check each guarded request would be a 500. Errors in an alias of the setting belong
    to the check of the aliases.
    """
    doubts: list[CheckMessage] = []
    try:
        aliases = list(stores)
        if store not in aliases:
            problems = [f"IDEMPOTENCY has no alias {store!r}.{suggestion(str(store), aliases)}"]
        else:
            given = policies()
            problems = _policy_problems(store, *given)
            doubts.extend(_doubts(name, store, *given, view))
    except ImproperlyConfigured:
        return []
    except (TypeError, ValueError) as error:
        problems = [str(error)]
    return [
        Error(
            f"{name} is guarded, and its policy is not valid: {problem}",
            hint="Correct what the view gives; the settings page lists every field.",
            obj=view,
            id="django_idempotency.E013",
        )
        for problem in problems
    ] or doubts


def _doubts(
    name: str, store: str, policy: Policy, http: HTTPPolicy, view: Any
) -> Iterator[CheckMessage]:
    """Warn about valid values that are probably not meant, unless the alias has them already."""
    alias = policy_for(store)
    if policy.lease > policy.retention and not alias.lease > alias.retention:
        yield Warning(
            f"{name} has a lease that is longer than its retention.",
            hint="A record should answer for longer than one attempt may take.",
            obj=view,
            id="django_idempotency.W012",
        )
    if http.fail_open and not http_policy_for(store).fail_open:
        yield _fails_open(f"{name} has fail_open", view)


def _fails_open(who: str, view: Any = None) -> CheckMessage:
    return Warning(
        f"{who}: while its store is down, retries run again.",
        hint="Leave it out where a second run costs money.",
        obj=view,
        id="django_idempotency.W005",
    )


def _policy_problems(store: str, policy: Policy, http: HTTPPolicy) -> list[str]:
    problems = []
    try:
        must_join(policy, store_for(store))
    except ValueError as error:
        problems.append(str(error))
    for name in _DOTTED_PATHS:
        value = getattr(http, name)
        if not isinstance(value, str) or value in ("json", "raw"):
            continue
        if value == getattr(http_policy_for(store), name):
            continue  # the check of the aliases tells
        if problem := path_problem(name, value):
            problems.append(f"{name} {problem}")
    return problems


def _policies(declared: Declared) -> Callable[[], tuple[Policy, HTTPPolicy]]:
    def policies() -> tuple[Policy, HTTPPolicy]:
        plan = declared.plan()
        return plan.policy, plan.http_policy

    return policies


def declarations(view: Any) -> Iterator[tuple[Declared, Any]]:
    """
    Yield what ``@idempotent`` left on a view, its class's methods, and below ``@api_view``.

    Each with what it guards: the view, or an operation of django-ninja behind it. Nothing for a
    view with the mixin, which makes one policy of all that stands on it.
    """
    view_class = getattr(view, "view_class", getattr(view, "cls", None))
    if hasattr(view_class, "idempotency_store"):
        return
    on_dispatch = declared_on(getattr(view_class, "dispatch", None))
    yield from ((declared, view) for declared in on_dispatch[-1:])
    for place in (view, *_methods(view), *_below_api_view(view)):
        for declared in declared_on(place)[-1:]:
            if not any(declared is other for other in on_dispatch):  # as_view() copies its mark
                yield declared, view
    for operation in ninja_operations(view):
        yield operation.idempotency, operation


def _methods(view: Any) -> Iterable[Any]:
    """Return the attributes of a class view for each method, and for each action."""
    view_class = getattr(view, "view_class", getattr(view, "cls", None))
    names = [*getattr(view_class, "http_method_names", ())]
    if _is_of_drf(view):
        names.extend((getattr(view, "actions", None) or {}).values())
    return [getattr(view_class, name, None) for name in dict.fromkeys(names)]


def _dispatches(view: Any) -> Iterable[Any]:
    """Return the ``dispatch`` of each base of a class view."""
    bases = getattr(getattr(view, "view_class", None), "__mro__", ())
    return [vars(base).get("dispatch") for base in bases]


def _no_scope(view: Any, name: str) -> CheckMessage:
    if _authenticates(settings.MIDDLEWARE) is None:
        return _perhaps_no_scope(name, view)
    return Error(
        f"{name} is guarded, and without AuthenticationMiddleware the guard does not know "
        f"whose idempotency key a request carries.",
        hint="Add AuthenticationMiddleware, or give idempotent(scope=...).",
        obj=view,
        id="django_idempotency.E007",
    )


def _perhaps_no_scope(name: str, view: Any = None) -> CheckMessage:
    return Warning(
        f"{name} is guarded, and has neither a scope nor AuthenticationMiddleware. Unless another "
        f"middleware sets request.user, each key is refused.",
        hint="Give a scope, or silence this if a middleware of yours sets request.user.",
        obj=view,
        id="django_idempotency.W010",
    )


def _has_scope(declared: Declared, middleware: Sequence[str] | None = None) -> bool:
    try:
        if declared.plan().http_policy.scope:
            return True
    except ImproperlyConfigured:
        return True  # the check of the aliases tells
    return _authenticates(settings.MIDDLEWARE if middleware is None else middleware) is True


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


def _any_atomic_requests() -> bool:
    return any(database.get("ATOMIC_REQUESTS") for database in settings.DATABASES.values())


def _is_of_drf(view: Any) -> bool:
    """Whether a view is of Django REST framework, which authenticates by itself."""
    return hasattr(view, "cls")


def _below_api_view(view: Any) -> Iterator[Any]:
    """Yield the function below ``@api_view``: the methods that it has made close over it."""
    view_class = getattr(view, "cls", None)
    for method in getattr(view_class, "http_method_names", ()):
        for cell in getattr(getattr(view_class, method, None), "__closure__", None) or ():
            yield cell.cell_contents


def _authenticates_itself(view: Any) -> bool:
    """Whether django-ninja authenticates all callers of a view's guarded operations."""
    operations = [*ninja_operations(view)]
    return bool(operations) and all(operation.auth_callbacks for operation in operations)


def _imported(name: str) -> Any:
    try:
        return import_string(name)
    except ImportError:
        return None


def guarded_name(guarded: Any) -> str:
    """Return the name of what a declaration guards: a view, or an operation of django-ninja."""
    return _name(guarded.view_func if is_operation(guarded) else guarded)


def _name(view: Any) -> str:
    named = getattr(view, "view_class", getattr(view, "cls", view))
    return f"{named.__module__}.{getattr(named, '__qualname__', named)}"
