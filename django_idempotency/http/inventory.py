"""
What is guarded: the one walk of the URLconf, and the guards of each view that it leads to.

What ``@idempotent`` declares it leaves on the view as a mark, which decorators and ``as_view()``
copy; the mixins are on the class. The system checks, `idempotency_policy` and the OpenAPI documents
read it here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.urls import URLPattern, URLResolver, get_resolver

from django_idempotency.http.atomic_requests import is_marked
from django_idempotency.http.attributes import IdempotencyAttributes, is_property, plan_of_class
from django_idempotency.http.class_views import class_of, has_guard, what_to_write
from django_idempotency.http.plans import Declared, ViewPlan, declared_on


@dataclass(frozen=True)
class GuardedView:
    """What one guard guards of a view: a function, methods of a class, an operation."""

    #: The view function to which the URLconf leads.
    view: Any
    #: The dotted name of the view, or of the operation's function.
    name: str
    #: Returns the plan; raises ImproperlyConfigured, TypeError or ValueError.
    plan: Callable[[], ViewPlan]
    #: Whether the work is a coroutine.
    is_coroutine: bool
    #: The methods that there are, guarded or not; None for a function, which takes any.
    methods: frozenset[str] | None = None
    #: The action of a ViewSet with the mixin.
    action: str = ""
    #: What a decorator declares; None for a class with a mixin.
    declared: Declared | None = None
    #: Whether the framework that calls an operation finds out who the caller is.
    authenticates: bool = False

    def guarded_methods(self, plan: ViewPlan) -> tuple[str, ...]:
        """Return the methods of the view that its plan guards."""
        methods = {*plan.methods}
        return tuple(sorted(methods if self.methods is None else methods & self.methods))


#: What functions declare, by module and name: ``@api_view`` drops their marks.
_functions: dict[tuple[str, str], Declared] = {}
#: Each yields what is guarded behind the one view of several operations; `contrib.ninja` has one.
frameworks: list[Callable[[Any], Iterator[GuardedView]]] = []


def register(function: Callable[..., Any], declared: Declared) -> None:
    """Note what a function declares."""
    _functions[getattr(function, "__module__", ""), getattr(function, "__name__", "")] = declared


def operations_behind(view: Any) -> list[GuardedView]:
    """Return the guarded operations of a framework behind a view of the URLconf."""
    return [operation for operations in frameworks for operation in operations(view)]


def routes() -> Iterator[tuple[str, str, Any]]:
    """Yield the route of each view of the URLconf, how records name it (R40), and the function."""
    from django.contrib.admindocs.views import simplify_regex  # no request needs it

    if getattr(settings, "ROOT_URLCONF", None):
        for route, name, view in _routes(get_resolver().url_patterns, "", ""):
            yield simplify_regex(route), name, view


def _routes(
    patterns: Sequence[URLPattern | URLResolver], before: str, namespace: str
) -> Iterator[tuple[str, str, Any]]:
    for pattern in patterns:
        own = str(pattern.pattern)
        route = before + (own.removeprefix("^") if before else own)  # as ResolverMatch.route
        if isinstance(pattern, URLResolver):
            inner = f"{namespace}{pattern.namespace}:" if pattern.namespace else namespace
            yield from _routes(pattern.url_patterns, route, inner)
        else:
            name = f"{namespace}{pattern.name}" if pattern.name else route or "/"
            yield route, name, pattern.callback


def guards_of(view: Any) -> Iterator[GuardedView]:
    """Yield what is guarded of a view of the URLconf."""
    view_class = class_of(view)
    if view_class is None:
        for declared in declared_on(view)[-1:]:
            yield _declared(declared, view)
    elif issubclass(view_class, IdempotencyAttributes):
        yield from _of_mixin(view, view_class)
    elif is_marked(view) and not has_guard(view_class):  # around as_view()
        yield GuardedView(view, dotted_name(view), partial(_refuse, view), is_coroutine=False)
    else:
        yield from _of_class(view, view_class)
    yield from operations_behind(view)


def _declared(declared: Declared, view: Any, methods: frozenset[str] | None = None) -> GuardedView:
    name, is_coroutine = dotted_name(view), iscoroutinefunction(view)
    return GuardedView(view, name, declared.plan, is_coroutine, methods, declared=declared)


def _refuse(view: Any) -> ViewPlan:
    raise ImproperlyConfigured(f"@idempotent stands around its as_view(). {what_to_write(view)}")


def _of_class(view: Any, view_class: Any) -> Iterator[GuardedView]:
    """Yield the guards by decorator: that on ``dispatch`` is around those on methods."""
    on_dispatch = [
        declared
        for base in view_class.__mro__
        for declared in declared_on(vars(base).get("dispatch"))[-1:]
    ]
    key = view_class.__module__, view_class.__name__
    below = [_functions[key]] if is_of_api_view(view) and key in _functions else []
    found: dict[int, tuple[Declared, set[str]]] = {}
    for method, handler in _handlers(view, view_class).items():
        on_method = declared_on(getattr(view_class, handler))[-1:]
        outermost = [*on_dispatch, *on_method, *below][:1]
        for declared in outermost:
            found.setdefault(id(declared), (declared, set()))[1].add(method.upper())
    for declared, methods in found.values():
        yield _declared(declared, view, frozenset(methods))


def _of_mixin(view: Any, view_class: type[IdempotencyAttributes]) -> Iterator[GuardedView]:
    keywords = getattr(view, "initkwargs", getattr(view, "view_initkwargs", {}))
    actions = getattr(view_class, "idempotency_actions", None)
    for method, handler in _handlers(view, view_class).items():
        if actions is not None and not is_property(actions) and handler not in actions:
            continue
        yield GuardedView(
            view,
            dotted_name(view),
            partial(plan_of_class, view_class, keywords, handler),
            iscoroutinefunction(view),
            methods=frozenset([method.upper()]),
            action=handler if handler != method else "",
        )


def _handlers(view: Any, view_class: Any) -> dict[str, str]:
    """Return the methods of a class view, and what handles each."""
    names = view_class.http_method_names
    return getattr(view, "actions", None) or {it: it for it in names if hasattr(view_class, it)}


def methods_of(view: Any) -> frozenset[str]:
    """Return the methods for which a class view has a handler."""
    view_class: Any = class_of(view)
    names = {*_handlers(view, view_class)} & {*view_class.http_method_names}
    return frozenset(map(str.upper, names))


def is_of_api_view(view: Any) -> bool:
    """Whether ``@api_view`` has made the class of a view, of a function."""
    return getattr(class_of(view), "__qualname__", "") == "WrappedAPIView"


def dotted_name(view: Any) -> str:
    """Return the name of a view: that of its class, or of the function."""
    named: Any = class_of(view) or view
    name = named.__name__ if is_of_api_view(view) else getattr(named, "__qualname__", named)
    return f"{named.__module__}.{name}"
