"""Plain Django views behind the guard: what the decorator and the middleware share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from asgiref.sync import sync_to_async
from django.core.exceptions import BadRequest, PermissionDenied, SuspiciousOperation
from django.core.handlers.base import BaseHandler
from django.core.handlers.exception import response_for_exception
from django.http import Http404, HttpRequest
from django.http.multipartparser import MultiPartParserError
from django.http.response import HttpResponseBase

from django_idempotency.conf import DEFAULT_ALIAS, engine_for, http_policy_for, policy_for
from django_idempotency.engine.attempt import Unkept
from django_idempotency.http.atomic_requests import (
    AtomicRequests,
    atomic_aliases,
    exempt,
    refuse_coroutine,
)
from django_idempotency.http.calls import GuardedCall, is_guarded_already, using
from django_idempotency.http.content import body_of, form_key
from django_idempotency.http.guard import aguard, answered_outside, guard
from django_idempotency.policy import (
    UNSAFE_METHODS,
    HTTPPolicy,
    Policy,
    UnknownField,
    merge,
    signature_problems,
    suggestion,
)

__all__ = [
    "Declared",
    "aguarded",
    "aunguarded",
    "carries_key",
    "exempt_of",
    "guarded",
    "guards",
    "outside_answer",
]

_POLICY_NAMES = frozenset(item.name for item in fields(Policy))
_HTTP_NAMES = frozenset(item.name for item in fields(HTTPPolicy))
#: Django answers these with a 4xx: nothing was executed, so the key is free again (R15, R55).
_REFUSALS = (
    BadRequest,
    Http404,
    MultiPartParserError,
    PermissionDenied,
    SuspiciousOperation,
)


@dataclass(frozen=True)
class Declared:
    """What a view declares of its guard."""

    store: str = DEFAULT_ALIAS
    overrides: Mapping[str, Any] = field(default_factory=dict)
    #: The methods that are guarded if the policy names none.
    methods: Collection[str] = UNSAFE_METHODS
    #: Whether the work commits in the store's transaction unless the policy says otherwise.
    joins: bool = True
    #: Whether the key may come in a form's hidden field.
    form: bool = True

    def __post_init__(self) -> None:
        known = _POLICY_NAMES | _HTTP_NAMES
        for name in self.overrides:
            if name not in known:
                raise UnknownField(f"idempotent() has no {name!r}.{suggestion(name, known)}")
        if problems := signature_problems(self.overrides):
            raise TypeError(" ".join(problems))

    def policy(self) -> Policy:
        """Return the policy of the alias with what this view gives."""
        return merge(policy_for(self.store), self._given(_POLICY_NAMES))

    def http_policy(self) -> HTTPPolicy:
        """Return the HTTP policy of the alias with what this view gives."""
        return merge(http_policy_for(self.store), self._given(_HTTP_NAMES))

    def given(self) -> dict[str, Any]:
        """Return the fields that this view gives, and its store if that is not the default."""
        store = {} if self.store == DEFAULT_ALIAS else {"store": self.store}
        return {**self.overrides, **store}

    def _given(self, names: Collection[str]) -> dict[str, Any]:
        return {name: value for name, value in self.overrides.items() if name in names}


def guarded(
    declared: Declared, request: HttpRequest, handle: Callable[[], HttpResponseBase]
) -> HttpResponseBase:
    """Return the response to a request to a view; what it raises passes on unchanged."""
    if is_guarded_already(request):
        return handle()
    request.idempotency = None  # type: ignore[attr-defined]
    http = declared.http_policy()
    if not guards(http, declared.methods, request):
        with AtomicRequests(without=exempt_of(request)):
            return handle()
    keyed = carries_key(http, request, form=declared.form)
    call = _call(declared, http, request, lambda: _rendered(_given(request, handle())), keyed=keyed)
    return guard(call)


async def aguarded(
    declared: Declared, request: HttpRequest, handle: Callable[[], Any]
) -> HttpResponseBase:
    """See `guarded`: for a view that is a coroutine."""
    if is_guarded_already(request):
        within: HttpResponseBase = await handle()
        return within
    request.idempotency = None  # type: ignore[attr-defined]
    http = declared.http_policy()
    if not guards(http, declared.methods, request):
        return await aunguarded(declared, request, handle)

    async def rendered() -> HttpResponseBase:
        response = _given(request, await handle())
        if callable(getattr(response, "render", None)):
            response = await sync_to_async(_rendered, thread_sensitive=True)(response)
        final: HttpResponseBase = response
        return final

    in_thread = sync_to_async(carries_key, thread_sensitive=True)
    keyed = await in_thread(http, request, form=declared.form)
    return await aguard(_call(declared, http, request, rendered, keyed=keyed))


async def aunguarded(
    declared: Declared, request: HttpRequest, handle: Callable[[], Any]
) -> HttpResponseBase:
    """Await the view in the transaction that the policy gives it for ATOMIC_REQUESTS (R96)."""
    engine, aliases = engine_for(declared.store), atomic_aliases(exempt_of(request))
    joined = declared.policy().transaction in ("joined", "single")
    own = using(engine.store) if joined else set()
    refuse_coroutine({*exempt_of(request), *own})
    async with engine.alone("joined" if own & {*aliases} else "separate"):
        response: HttpResponseBase = await handle()
    return response


def _call(
    declared: Declared,
    http: HTTPPolicy,
    request: HttpRequest,
    handle: Callable[[], Any],
    *,
    keyed: bool,
) -> GuardedCall:
    return GuardedCall(
        request=request,
        subject=request,
        store=declared.store,
        policy=declared.policy(),
        http=http,
        body=lambda: body_of(request, http),
        handle=handle,
        on_exception=lambda error: outside_answer(request, http, error),
        exempt=exempt_of(request),
        keyed=keyed,
        joins=declared.joins,
        form=declared.form,
    )


def outside_answer(request: HttpRequest, http: HTTPPolicy, error: Exception) -> HttpResponseBase:
    """
    Return the answer that Django would give to an exception outside of the view, if it may be kept.

    Raises Unkept with the error, to be passed on, where the preset keeps none.
    """
    if http.keep in ("default", "success"):
        refused = http.keep == "default" and isinstance(error, _REFUSALS)
        raise Unkept("release" if refused else "fail", error=error)
    return answered_outside(_rendered(response_for_exception(request, error)))


def guards(http: HTTPPolicy, methods: Collection[str], request: HttpRequest) -> bool:
    """Whether the request's method is guarded; `methods` count if the policy names none."""
    return request.method in (http.methods or methods)


def carries_key(http: HTTPPolicy, request: HttpRequest, *, form: bool = True) -> bool:
    """
    Whether a request carries a key, or has to.

    With `form` a form's hidden field is looked at, for which Django has to parse the body of each
    form without a header field.
    """
    if http.required or http.header in request.headers:
        return True
    return form and form_key(request, http) is not None


def exempt_of(request: HttpRequest) -> set[str]:
    """Return the aliases that the project itself exempts, on the view that the URLconf names."""
    match = request.resolver_match
    return exempt(match.func if match else None)


def _given(request: HttpRequest, response: Any) -> Any:
    """Return what a view has given, or raise what Django tells of a view that gives nothing."""
    match = request.resolver_match
    view: Any = match.func if match else None
    BaseHandler().check_response(response, view, name=None if match else "The view")
    return response


def _rendered(response: Any) -> HttpResponseBase:
    if callable(render := getattr(response, "render", None)):
        render()
    final: HttpResponseBase = response
    return final
