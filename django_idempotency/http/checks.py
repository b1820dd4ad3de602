"""System checks of guarded views, of the middleware, and of CORS."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django.apps import AppConfig, apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.core.exceptions import ImproperlyConfigured
from django.urls import URLPattern, URLResolver, get_resolver
from django.utils.module_loading import import_string

from django_idempotency.conf import http_policy_for, stores
from django_idempotency.http.atomic_requests import is_marked
from django_idempotency.http.middleware import IdempotencyMiddleware
from django_idempotency.http.views import Declared
from django_idempotency.policy import HTTPPolicy

__all__ = ["check_cors", "check_fail_open", "check_middleware", "check_views", "url_callbacks"]

_AUTHENTICATION = "django.contrib.auth.middleware.AuthenticationMiddleware"


@register(Tags.urls)
def check_views(
    *, app_configs: Sequence[AppConfig] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """A decorated view needs a scope, and stands above ``@api_view``."""
    found: list[CheckMessage] = []
    for view in url_callbacks():
        declared = getattr(view, "idempotency", None)
        if isinstance(declared, Declared) and not _has_scope(declared):
            found.append(
                Error(
                    f"{_name(view)} is guarded, and without AuthenticationMiddleware it cannot be "
                    f"told whose idempotency key a request carries.",
                    hint="Add AuthenticationMiddleware, or give idempotent(scope=...).",
                    obj=view,
                    id="django_idempotency.E007",
                )
            )
        if _any_atomic_requests() and _is_below_api_view(view):
            found.append(
                Warning(
                    f"@idempotent stands below @api_view on {_name(view)}: with ATOMIC_REQUESTS "
                    f"its claim is not visible to others, and answers that are raised are not "
                    f"kept.",
                    hint="Put @idempotent directly above @api_view.",
                    obj=view,
                    id="django_idempotency.W004",
                )
            )
    return found


@register("idempotency")
def check_middleware(
    *, app_configs: Sequence[AppConfig] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """The middleware runs the view itself, so nothing that looks at views may stand after it."""
    found: list[CheckMessage] = []
    names = list(settings.MIDDLEWARE)
    for position, name in enumerate(names):
        middleware = _imported(name)
        if not isinstance(middleware, type) or not issubclass(middleware, IdempotencyMiddleware):
            continue
        passed_over = [
            later for later in names[position + 1 :] if hasattr(_imported(later), "process_view")
        ]
        if passed_over:
            found.append(
                Error(
                    f"{name} stands before {', '.join(passed_over)} in MIDDLEWARE, which would "
                    f"not be asked about the views that it guards.",
                    hint="Put it last in MIDDLEWARE.",
                    id="django_idempotency.E008",
                )
            )
        if not _has_scope(Declared(middleware.store)) or (
            _AUTHENTICATION in names[position:] and http_policy_for(middleware.store).scope is None
        ):
            found.append(
                Error(
                    f"{name} does not know whose idempotency key a request carries.",
                    hint="Put it after AuthenticationMiddleware, or set SCOPE.",
                    id="django_idempotency.E009",
                )
            )
    return found


@register("idempotency")
def check_fail_open(
    *, app_configs: Sequence[AppConfig] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """``FAIL_OPEN`` trades the guarantee for availability (R61)."""
    return [
        Warning(
            f"IDEMPOTENCY[{alias!r}] has FAIL_OPEN: while its store is down, retries run again.",
            hint="Leave it out where a second run costs money.",
            id="django_idempotency.W005",
        )
        for alias, http in _http_policies()
        if http.fail_open
    ]


@register("idempotency")
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


def _has_scope(declared: Declared) -> bool:
    try:
        return bool(declared.http_policy().scope) or _AUTHENTICATION in settings.MIDDLEWARE
    except ImproperlyConfigured:
        return True  # the check of the aliases tells


def _http_policies() -> Iterator[tuple[str, HTTPPolicy]]:
    try:
        for alias in stores:
            yield alias, http_policy_for(alias)
    except ImproperlyConfigured:
        return  # the check of the aliases tells


def _any_atomic_requests() -> bool:
    return any(database.get("ATOMIC_REQUESTS") for database in settings.DATABASES.values())


def _is_below_api_view(view: Any) -> bool:
    """Whether ``@api_view`` was put onto one of our views: its methods close over it."""
    view_class = getattr(view, "cls", None)
    for method in getattr(view_class, "http_method_names", ()):
        for cell in getattr(getattr(view_class, method, None), "__closure__", None) or ():
            if is_marked(cell.cell_contents):
                return True
    return False


def _imported(name: str) -> Any:
    try:
        return import_string(name)
    except ImportError:
        return None


def _name(view: Any) -> str:
    return f"{view.__module__}.{getattr(view, '__qualname__', view)}"
