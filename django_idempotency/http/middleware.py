"""The middleware: guards the views of a project that have no guard of their own (R17)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, ClassVar

from asgiref.sync import (
    async_to_sync,
    iscoroutinefunction,
    markcoroutinefunction,
    sync_to_async,
)
from django.conf import settings
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.module_loading import import_string

from django_idempotency.conf import DEFAULT_ALIAS
from django_idempotency.http.class_views import (
    behind_partials,
    class_of,
    guarded_as_view,
    has_guard,
    is_wrapped,
    unguarded_as_view,
)
from django_idempotency.http.decorators import guarding
from django_idempotency.http.inventory import operations_behind
from django_idempotency.http.plans import Declared, guards_itself

__all__ = ["IdempotencyMiddleware", "in_settings"]


class IdempotencyMiddleware:
    """
    Guards POST and PATCH of each plain view, by the policy of one alias.

    It works in ``process_view`` and must be last in MIDDLEWARE: Django does not call
    ``process_view`` of later middleware for the views that it guards. It skips a view that has the
    guard's mark, also on the requested method only, and each view of Django REST framework.
    """

    sync_capable: ClassVar[bool] = True
    async_capable: ClassVar[bool] = True

    #: The alias of IDEMPOTENCY; a subclass may name another.
    store: ClassVar[str] = DEFAULT_ALIAS

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        self.process_view: Callable[..., Any] = self._process_view
        self._declared = self.declared()
        #: CsrfViewMiddleware has parsed each form before this middleware, except for exempt views,
        #: which may read the body themselves, for example to verify a signature.
        self._csrf_exempt = replace(self._declared, form=False)
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)
            self.process_view = self._aprocess_view

    @classmethod
    def declared(cls) -> Declared:
        """Return the declaration of the guard: also what the system checks read."""
        return Declared(cls.store, methods=frozenset({"POST", "PATCH"}), joins=False)

    def __call__(self, request: HttpRequest) -> Any:
        """Pass the request on: ``process_view`` does the work."""
        return self.get_response(request)

    def _declared_for(self, view: Callable[..., Any]) -> Declared:
        return self._csrf_exempt if getattr(view, "csrf_exempt", False) else self._declared

    def _concerns(self, request: HttpRequest, declared: Declared) -> bool:
        """Whether the middleware guards this request; Django handles every other one."""
        request.idempotency = None  # type: ignore[attr-defined]
        plan = declared.plan()
        if not plan.guards(request):
            return False
        # A transaction that the project has set is for requests without a key, too (R90).
        if plan.policy.transaction in ("joined", "single"):
            return True
        return plan.carries_key(request)

    def _process_view(
        self,
        request: HttpRequest,
        view: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> HttpResponseBase | None:
        declared = self._declared_for(view)
        if _guards_itself(view, request) or not self._concerns(request, declared):
            return None
        run = _guarding(declared, view)
        if iscoroutinefunction(view):
            run = async_to_sync(run)
        response: HttpResponseBase = run(request, *args, **kwargs)
        return response

    async def _aprocess_view(
        self,
        request: HttpRequest,
        view: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> HttpResponseBase | None:
        declared = self._declared_for(view)
        concerns = sync_to_async(self._concerns, thread_sensitive=True)
        if _guards_itself(view, request) or not await concerns(request, declared):
            return None
        run = _guarding(declared, view)
        if not iscoroutinefunction(view):
            run = sync_to_async(run, thread_sensitive=True)
        response: HttpResponseBase = await run(request, *args, **kwargs)
        return response


def _guarding(declared: Declared, view: Any) -> Any:
    if class_of(view) is None:
        return guarding(declared, view)
    return (unguarded_as_view if is_wrapped(view) else guarded_as_view)(declared, view)


def _guards_itself(view: Callable[..., Any], request: HttpRequest) -> bool:
    view, view_class = behind_partials(view), class_of(view)
    method = getattr(view_class, str(request.method).lower(), None)
    if guards_itself(view) or guards_itself(method):
        return True
    if view_class is not None and has_guard(view_class):
        return True
    if any(request.method in (it.methods or ()) for it in operations_behind(view)):
        return True
    drf = sys.modules.get("rest_framework.views")
    return drf is not None and view_class is not None and issubclass(view_class, drf.APIView)


def in_settings() -> Iterator[tuple[str, type[IdempotencyMiddleware]]]:
    """Yield each guard of MIDDLEWARE, by the name that it has there."""
    for name in settings.MIDDLEWARE:
        middleware = import_string(name)
        if isinstance(middleware, type) and issubclass(middleware, IdempotencyMiddleware):
            yield name, middleware
