"""Guard operations of django-ninja: after their authentication, throttles and validation (R14)."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from functools import partial, wraps
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast, overload

from asgiref.sync import iscoroutinefunction
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from django_idempotency.exceptions.base import missing

try:
    from ninja.decorators import decorate_view
    from ninja.operation import Operation
    from ninja.signature.utils import get_typed_signature
except ModuleNotFoundError as error:
    raise missing("This adapter needs", "django-ninja", "ninja") from error

from django_idempotency.conf import DEFAULT_ALIAS
from django_idempotency.contrib.openapi import PROBLEM, describe
from django_idempotency.http import scopes
from django_idempotency.http.atomic_requests import mark
from django_idempotency.http.content import MULTIPART, body_of, parsed_body
from django_idempotency.http.handlers import ViewHandler, outside_answer
from django_idempotency.http.inventory import GuardedView, dotted_name, frameworks
from django_idempotency.http.plans import Declared, declared_on, leave_mark
from django_idempotency.http.problems import PROBLEM_TYPE, problem_of
from django_idempotency.http.spool import declared_length, refuse_part, whole_body
from django_idempotency.http.views import aguarded, guarded
from django_idempotency.policy import UNSAFE_METHODS, HTTPPolicy

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from django_idempotency.options import HTTPPolicyOptions

__all__ = ["idempotent", "user"]

V = TypeVar("V", bound=Callable[..., Any])

#: Where a request says which operation serves it.
_SERVED = "_idempotency_ninja"
#: An error that the API's exception handlers were asked about, and what they raised.
_UNANSWERED = "_idempotency_unanswered"


class _Unanswered(BaseException):
    """Carries an error past `Operation.run`, which would ask the exception handlers once more."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


@overload
def idempotent(view: V, /) -> V: ...
@overload
def idempotent(
    *, store: str = DEFAULT_ALIAS, operation: str = "", **policy: Unpack[HTTPPolicyOptions]
) -> Callable[[V], V]: ...
def idempotent(
    view: Callable[..., Any] | None = None,
    /,
    *,
    store: str = DEFAULT_ALIAS,
    operation: str = "",
    **policy: Unpack[HTTPPolicyOptions],
) -> Any:
    """
    Guard an operation of django-ninja, sync or async: each idempotency key runs once.

    Put it below ``@api.post(...)``. For a router or an API write ``add_decorator(idempotent(...),
    mode="view")``; a guard on the operation itself takes precedence. The keywords are fields of the
    policy and of the HTTP policy. `operation` names what is done: give it before you change the
    URL's name. Raises TypeError where it cannot guard.
    """
    declared = Declared(store, policy, operation=operation, form=False)
    return partial(_decorate, declared) if view is None else _decorate(declared, view)


def user(request: HttpRequest) -> str:
    """
    Return the user whom the operation's authentication found: the scope, unless the policy has one.

    That is ``request.auth``, and ``request.user`` for an operation without ``auth``. Raises
    ImproperlyConfigured where ``request.auth`` is something else, such as a token: only the project
    knows whose it is, and ``request.user`` may be another caller, whom a session cookie names.
    """
    operation = _served(request).operation
    if not operation.auth_callbacks:
        return scopes.user(request)
    found = getattr(request, "auth", None)
    if not hasattr(found, "is_authenticated"):
        raise ImproperlyConfigured(
            f"The authentication of {_name(operation)} gives a {type(found).__name__} as "
            f"request.auth, not a user, so the guard does not know whose idempotency key this is. "
            f"Write idempotent(scope=...), with a callable that takes the request and names its "
            f"caller."
        )
    return scopes.user(SimpleNamespace(user=found))


def _decorate(declared: Declared, view: Any) -> Any:
    operation = _operation_of(view)
    if operation is not None:  # decorate_view, or add_decorator(..., mode="view")
        of_router = operation.api is not None
        if of_router and getattr(operation, "idempotency_nearer", False):
            return view  # the operation's own guard counts
        if of_router and operation.stream_format is not None and not _guards(declared, operation):
            return view  # its result becomes a stream above the guard
        if not any(declared is other for other in declared_on(operation.view_func)):
            operation.view_func = _guarding(declared, operation.view_func)
        return _known(declared, view, of_router=of_router)
    if inspect.isclass(view) or not callable(view) or hasattr(view, "_ninja_operation"):
        raise TypeError(
            f"@idempotent cannot guard {getattr(view, '__name__', repr(view))}. Put it below "
            f"@api.post(...), directly above the function. For a router or an API write "
            f'add_decorator(idempotent(...), mode="view").'
        )
    wrapper: Any = _guarding(declared, view)
    # Ninja looks for the names in annotations in the module of the function that it is given.
    wrapper.__signature__ = get_typed_signature(view)
    # The list of another decorator, which may give `view` itself to a second operation.
    contributed = "_ninja_contribute_to_operation"
    setattr(wrapper, contributed, [*getattr(view, contributed, ())])
    paginated = getattr(view, "_ninja_is_paginated", False)
    return decorate_view(partial(_known, declared, paginated=paginated))(wrapper)


def _known(declared: Declared, run: Any, *, of_router: bool = False, paginated: bool = True) -> Any:
    """Return an operation's ``run`` that tells the guard which operation serves the request."""
    operation: Any = _operation_of(run)
    if operation is None:
        raise TypeError(
            "@idempotent does not find its operation below a decorator that decorate_view was "
            "given. Use functools.wraps in that one."
        )
    if getattr(operation.view_func, "_ninja_is_paginated", False) and not paginated:
        raise TypeError(
            f"@paginate stands above @idempotent on {_name(operation)}, and cannot take pages of a "
            f"response. Put it below, or write @decorate_view(idempotent(...))."
        )
    # `_guarded_operations` and a router's guard look for these.
    operation.idempotency, operation.idempotency_nearer = declared, not of_router
    _describe(declared, operation)
    if operation.is_async:

        @wraps(run)
        async def aserve(request: HttpRequest, **values: Any) -> Any:
            _serve(operation, request)
            try:
                return await run(request, **values)
            except _Unanswered as passing:
                unanswered = passing.error
            raise unanswered  # here, so that it keeps the context that it has

        return aserve

    @wraps(run)
    def serve(request: HttpRequest, **values: Any) -> Any:
        _serve(operation, request)
        try:
            return run(request, **values)
        except _Unanswered as passing:
            unanswered = passing.error
        raise unanswered  # here, so that it keeps the context that it has

    return serve


class _Served(NamedTuple):
    operation: Operation
    #: Counts what ninja reads of the body; raises PartialBody at its end if that broke off. None
    #: for a body that others have read, and may have unpacked.
    body: ExitStack | None


def _serve(operation: Operation, request: Any) -> None:
    body = None
    if not hasattr(request, "_body") and hasattr(request, "_stream"):
        body = ExitStack()
        body.enter_context(whole_body(request))
    setattr(request, _SERVED, _Served(operation, body))


def _served(request: HttpRequest) -> _Served:
    served: _Served | None = getattr(request, _SERVED, None)
    if served is None:
        raise TypeError(
            "@idempotent of django_idempotency.contrib.ninja guards operations that django-ninja "
            "calls, and it did not decorate this one. Put it below @api.post(...), use "
            "functools.wraps in the decorators between, and for a router write "
            'add_decorator(idempotent(...), mode="view").'
        )
    return served


def _guarding(declared: Declared, view: Callable[..., Any]) -> Callable[..., Any]:
    """Return a view function of an operation with the guard around it."""
    if iscoroutinefunction(view):

        @wraps(view)
        async def aguarded_operation(request: HttpRequest, *args: Any, **values: Any) -> Any:
            operation = _served(request).operation

            async def respond(*args: Any, **values: Any) -> HttpResponseBase:
                return _response(operation, await view(*args, **values), request, values)

            handler = NinjaHandler(respond, request, args, values)
            with _asked_once(request):
                return await aguarded(declared.plan(), handler)

        return _marked(aguarded_operation, declared)

    @wraps(view)
    def guarded_operation(request: HttpRequest, *args: Any, **values: Any) -> Any:
        operation = _served(request).operation

        def respond(*args: Any, **values: Any) -> HttpResponseBase:
            return _response(operation, view(*args, **values), request, values)

        handler = NinjaHandler(respond, request, args, values)
        with _asked_once(request):
            return guarded(declared.plan(), handler)

    return _marked(guarded_operation, declared)


def _marked(wrapper: Any, declared: Declared) -> Callable[..., Any]:
    leave_mark(wrapper, declared)
    marked: Callable[..., Any] = mark(wrapper)
    return marked


class NinjaHandler(ViewHandler):
    """An operation's view function; ninja has read the body before."""

    default_scope = staticmethod(user)

    def body(self, http: HTTPPolicy) -> bytes:
        """See `ViewHandler.body`."""
        request: Any = self.subject
        counted = _served(request).body
        if hasattr(request, "_body") and counted is not None:
            refuse_part(len(request._body), declared_length(request))
        elif getattr(request, "_read_started", False) and counted is not None:
            counted.close()
        if (request.content_type or "").lower() == MULTIPART and hasattr(request, "_post"):
            return parsed_body(request.POST, request.FILES)
        return body_of(request, http)

    def answer(self, error: Exception, http: HTTPPolicy) -> HttpResponseBase:
        """Let the API's exception handlers answer; Django answers what they raise."""
        request = self.subject
        api = _served(request).operation.api
        try:
            response = api.on_exception(request, error)
        except Exception as unanswered:
            setattr(request, _UNANSWERED, (error, unanswered))
            return outside_answer(request, http, unanswered)
        return cast("HttpResponseBase", response)

    def final(self, response: HttpResponseBase) -> HttpResponseBase:
        """Return the guard's own answer as the API's renderer writes it, unless it writes JSON."""
        api = _served(self.subject).operation.api
        if problem_of(response) is None or "json" in str(api.renderer.media_type):
            return response
        if isinstance(response, HttpResponse) and response["Content-Type"] == PROBLEM_TYPE:
            members, status = json.loads(response.content), response.status_code
            response.content = api.renderer.render(self.subject, members, response_status=status)
            response["Content-Type"] = api.get_content_type()
        return response

    async def afinal(self, response: HttpResponseBase) -> HttpResponseBase:
        """See `ViewHandler.afinal`."""
        return self.final(response)


@contextmanager
def _asked_once(request: HttpRequest) -> Iterator[None]:
    """Raise _Unanswered if the API's exception handlers were asked about an error already."""
    try:
        yield
    except Exception as error:
        asked, unanswered = vars(request).pop(_UNANSWERED, (None, None))
        if unanswered is not None and (error is asked or error is unanswered):
            raise _Unanswered(unanswered) from None
        raise


def _response(
    operation: Operation, result: Any, request: HttpRequest, values: dict[str, Any]
) -> HttpResponseBase:
    """Return the response that ninja makes of a result: inside the transaction of the work."""
    name = operation.signature.response_arg
    temporal = values.get(name) if name else None
    if temporal is None:
        temporal = operation.api.create_temporal_response(request)
    response: HttpResponseBase = operation._result_to_response(request, result, temporal)
    return response


def _guards(declared: Declared, operation: Operation) -> bool:
    """Whether a guard guards a method of an operation."""
    try:
        methods = declared.plan().methods
    except (ImproperlyConfigured, TypeError, ValueError):  # the system checks tell
        methods = UNSAFE_METHODS
    return any(method in methods for method in operation.methods)


def _describe(declared: Declared, operation: Any) -> None:
    """Describe the key and the guard's answers in the API's schema; refuse what cannot be kept."""
    if operation.stream_format is not None:
        raise TypeError(
            f"@idempotent cannot guard {_name(operation)}: a stream is sent after its guard has "
            f"ended, and cannot be kept."
        )
    try:
        plan = declared.plan()
    except (ImproperlyConfigured, TypeError, ValueError):
        return  # the system checks tell, and each request raises
    if not _guards(declared, operation):
        return
    if not hasattr(operation, "idempotency_extra"):  # the project's own, for a nearer guard, too
        operation.idempotency_extra = operation.openapi_extra
    given = deepcopy(operation.idempotency_extra or {})
    responses: dict[Any, Any] = {str(status): {} for status in operation.response_models}
    # Ninja describes them itself, and a document must not have a parameter twice.
    models = [it for it in operation.models if it.__ninja_param_source__ == "header"]
    own = [{"in": "header", "name": name} for it in models for name in it.__ninja_flatten_map__]
    described = {"parameters": own + given.pop("parameters", []), "responses": responses}
    describe(described, plan.policy, plan.http_policy, partial(deepcopy, PROBLEM))
    del described["parameters"][: len(own)]
    for status, response in responses.items():
        if status in map(str, operation.response_models):
            response.pop("description", None)  # the project's
    extra = given.pop("responses", {})
    merged = {_status(status): response for status, response in responses.items() if response}
    merged |= {_status(s): {**merged.get(_status(s), {}), **extra[s]} for s in extra}
    operation.openapi_extra = {**described, "responses": merged, **given}


def _status(status: Any) -> Any:
    """Return a status as ninja writes it, so that both are one."""
    return int(status) if str(status).isdigit() else status


def _operation_of(run: Any) -> Operation | None:
    """Return the operation whose ``run`` this is, also below decorators."""
    operation = getattr(inspect.unwrap(run), "__self__", None) if callable(run) else None
    return operation if isinstance(operation, Operation) else None


def _guarded_operations(view: Any) -> Iterator[GuardedView]:
    """Yield the guarded operations of a view of the URLconf: ninja's view closes over them."""
    if getattr(view, "__module__", "") != "ninja.operation":
        return
    for cell in getattr(inspect.unwrap(view), "__closure__", None) or ():
        for operation in getattr(cell.cell_contents, "operations", ()):
            if hasattr(operation, "idempotency"):
                yield GuardedView(
                    view,
                    _name(operation),
                    operation.idempotency.plan,
                    operation.is_async,
                    frozenset(operation.methods),
                    declared=operation.idempotency,
                    authenticates=bool(operation.auth_callbacks),
                )


frameworks.append(_guarded_operations)


def _name(operation: Operation) -> str:
    return dotted_name(operation.view_func)
