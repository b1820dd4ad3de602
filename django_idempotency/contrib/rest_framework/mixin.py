"""
Idempotent views of Django REST framework.

`IdempotencyMixin` guards the unsafe methods of an APIView, generic view or ViewSet: each key runs
once. It stands before the view's other bases. Every field of the policy is a class attribute
``idempotency_<field>``, and a keyword of ``@action``; callables are methods. The claim comes after
authentication, permissions and throttles (R14), and the response is finalised and rendered inside
the transaction that does the work.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any, cast

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.datastructures import MultiValueDict
from rest_framework.parsers import FileUploadParser
from rest_framework.renderers import BaseRenderer, BrowsableAPIRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from django_idempotency.callables import signature_problem
from django_idempotency.conf import DEFAULT_ALIAS, http_policy_for, policy_for
from django_idempotency.contrib.rest_framework.browsable import give_keys
from django_idempotency.contrib.rest_framework.objects import object_permissions
from django_idempotency.engine.transactions import may_wait
from django_idempotency.http.atomic_requests import AtomicRequests, answering, exempt, mark
from django_idempotency.http.calls import GuardedCall, is_guarded_already
from django_idempotency.http.content import MULTIPART, body_of, parsed_body, uploads_of
from django_idempotency.http.guard import guard
from django_idempotency.http.spool import read_back, tee
from django_idempotency.http.views import Declared, carries_key, guards, outside_answer
from django_idempotency.policy import (
    CALLED_WITH,
    UNSAFE_METHODS,
    UNSET,
    AnyPolicy,
    HTTPPolicy,
    Policy,
    merge,
    suggestion,
)

__all__ = ["IdempotencyMixin", "object_permissions"]

_PREFIX = "idempotency_"
_POLICY_NAMES = tuple(field.name for field in fields(Policy))
_HTTP_NAMES = tuple(field.name for field in fields(HTTPPolicy))

if TYPE_CHECKING:
    _Base = APIView
else:
    _Base = object


# Has no docstring: tools that describe a view take that of its nearest base that has one, and would
# print ours into the project's own documents.
class IdempotencyMixin(_Base):
    #: The alias of IDEMPOTENCY whose store and policy count.
    idempotency_store: str = DEFAULT_ALIAS
    #: The actions of a ViewSet that are guarded; None for each with an unsafe method.
    idempotency_actions: Collection[str] | None = None

    idempotency_lease: Any = UNSET
    idempotency_retention: Any = UNSET
    idempotency_wait: Any = UNSET
    idempotency_renew: Any = UNSET
    idempotency_max_duration: Any = UNSET
    idempotency_transaction: Any = UNSET
    idempotency_on_stale: Any = UNSET
    idempotency_max_result_bytes: Any = UNSET
    idempotency_deadline: Any = UNSET
    idempotency_fingerprint_secrets: Any = UNSET

    idempotency_header: Any = UNSET
    idempotency_required: Any = UNSET
    idempotency_methods: Any = UNSET
    idempotency_scope: Any = UNSET
    idempotency_scope_endpoint: Any = UNSET
    idempotency_fingerprint: Any = UNSET
    idempotency_fingerprint_exclude: Any = UNSET
    idempotency_fingerprint_headers: Any = UNSET
    idempotency_key_validator: Any = UNSET
    idempotency_key_min_length: Any = UNSET
    idempotency_key_max_length: Any = UNSET
    idempotency_strict_header: Any = UNSET
    idempotency_keep: Any = UNSET
    idempotency_replay_header: Any = UNSET
    idempotency_replay_headers: Any = UNSET
    idempotency_echo_key: Any = UNSET
    idempotency_in_progress_status: Any = UNSET
    idempotency_mismatch_status: Any = UNSET
    idempotency_documentation_url: Any = UNSET
    idempotency_error_renderer: Any = UNSET
    idempotency_fail_open: Any = UNSET
    idempotency_form_field: Any = UNSET
    idempotency_replay_check: Any = UNSET

    # Of the one request that this instance of the view serves.
    _guarded: bool = False
    _given: dict[str, Any]
    _http_policy: HTTPPolicy

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """
        Refuse a base order in which the guard would not be reached, unknown names and signatures.

        A function of a module, ``idempotency_scope = scopes.session``, is taken as it is; what is
        defined in a class is a method.
        """
        super().__init_subclass__(**kwargs)
        bases = cls.__mro__
        if APIView in bases and bases.index(APIView) < bases.index(IdempotencyMixin):
            raise TypeError(
                f"{cls.__name__} must name IdempotencyMixin before its other bases: "
                f"class {cls.__name__}(IdempotencyMixin, ...)."
            )
        known = [name for name in vars(IdempotencyMixin) if name.startswith(_PREFIX)]
        for name, value in list(vars(cls).items()):
            if not name.startswith(_PREFIX):
                continue
            if name not in known:
                raise TypeError(f"{cls.__name__} has {name!r}.{suggestion(name, known)}")
            owner = getattr(value, "__qualname__", "").rpartition(".")[0]
            if isinstance(value, FunctionType) and (not owner or owner.endswith("<locals>")):
                setattr(cls, name, staticmethod(value))
            cls._check_signature(name)

    @classmethod
    def _check_signature(cls, name: str) -> None:
        """Raise TypeError for a callable of the policy that cannot be called as it will be."""
        field, value = name.removeprefix(_PREFIX), getattr(cls, name)
        if field not in CALLED_WITH or not callable(value):
            return
        itself = ("self",) if isinstance(vars(cls)[name], FunctionType) else ()
        if problem := signature_problem(name, value, *itself, *CALLED_WITH[field]):
            raise TypeError(f"{cls.__name__}.{problem}")

    @classmethod
    def as_view(cls, *args: Any, **initkwargs: Any) -> Any:
        """Return the view function, with the transactions of ATOMIC_REQUESTS left to the guard."""
        return mark(super().as_view(*args, **initkwargs))

    def perform_content_negotiation(
        self, request: Request, force: bool = False
    ) -> tuple[BaseRenderer, str]:
        """Return the renderer and its media type; the browsable API's forms get keys (R35)."""
        renderer, media_type = super().perform_content_negotiation(request, force)
        if isinstance(renderer, BrowsableAPIRenderer):
            give_keys(renderer, partial(guarding_policy, self))
        return renderer, media_type

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """
        Dispatch as ever; a request that is not guarded gets its ATOMIC_REQUESTS around all.

        One that a guard around this view has is not guarded by it a second time (R17).
        """
        if not is_guarded_already(request):
            request.idempotency = None  # type: ignore[attr-defined]
            handler = self._action(request) or str(request.method).lower()
            self._given = given_policy(self, vars(self), handler)
            self._http_policy = _merged(http_policy_for(self._given["store"]), self._given)
            self._guarded = self._is_guarded(request)
        if self._guarded:
            return super().dispatch(request, *args, **kwargs)
        with AtomicRequests(without=self._exempt):
            return super().dispatch(request, *args, **kwargs)

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Authenticate, authorise and throttle; then put the guard before the method's handler."""
        if not self._guarded:
            super().initial(request, *args, **kwargs)
            return
        if self._is_keyed(request):
            tee(request._request)  # who authenticates may read the body, too
        with AtomicRequests(without=self._exempt):
            super().initial(request, *args, **kwargs)
        method = str(request.method).lower()
        if method in self.http_method_names and hasattr(self, method):
            setattr(self, method, partial(self._idempotent, getattr(self, method)))

    def handle_exception(self, exc: Exception) -> Response:
        """Answer an exception; what that marks for rollback is a block of ours (R84)."""
        if not self._guarded:
            return super().handle_exception(exc)
        with answering(without=self._exempt):
            return super().handle_exception(exc)

    def _idempotent(
        self,
        method: Callable[..., HttpResponseBase],
        request: Request,
        *args: Any,
        **kwargs: Any,
    ) -> HttpResponseBase:
        """Stand in for the method's handler."""
        return _guarded_call(
            self,
            request,
            partial(method, request, *args, **kwargs),
            partial(_answer, self, request, self._http_policy),
            (args, kwargs),
            store=self._given["store"],
            policy=_merged(policy_for(self._given["store"]), self._given),
            http=self._http_policy,
            body=partial(_body, request, self._http_policy),
            exempt=self._exempt,
            keyed=self._is_keyed(request),
        )

    def _is_keyed(self, request: Request) -> bool:
        return carries_key(self._http_policy, request._request, form=False)

    def _is_guarded(self, request: HttpRequest) -> bool:
        """Whether the action and the method are guarded."""
        actions = self.idempotency_actions
        if actions is not None and self._action(request) not in actions:
            return False
        return guards(self._http_policy, UNSAFE_METHODS, request)

    def _action(self, request: HttpRequest) -> str | None:
        names: dict[str, str] = getattr(self, "action_map", None) or {}
        return names.get(str(request.method).lower())

    @property
    def _exempt(self) -> Collection[str]:
        """The aliases that the project itself exempts, on ``dispatch`` or in the URLconf."""
        match = self.request.resolver_match
        return exempt(type(self).dispatch) | exempt(match.func if match else None)


def given_policy(view: Any, keywords: Mapping[str, Any], handler: str | None) -> dict[str, Any]:
    """
    Return the store that a view with the mixin gives, and the fields of its policy, or UNSET.

    What stands nearest to the work counts: ``@idempotent`` on the method `handler`, the `keywords`
    of ``as_view()`` and ``@action``, ``@idempotent`` on ``dispatch``, and then the class.
    """
    view_class = view if isinstance(view, type) else type(view)
    given = {name: getattr(view, _PREFIX + name) for name in (*_POLICY_NAMES, *_HTTP_NAMES)}
    given["store"] = view.idempotency_store
    for base in reversed(view_class.__mro__):
        given |= _declared(vars(base).get("dispatch"))
    given |= {name: keywords[_PREFIX + name] for name in given if _PREFIX + name in keywords}
    return given | _declared(getattr(view_class, handler or "", None))


def guarding_policy(view: APIView, method: str) -> HTTPPolicy | None:
    """Return the policy under which a view with the mixin guards `method`; None if it does not."""
    if not isinstance(view, IdempotencyMixin):
        return None
    handler = (getattr(view, "action_map", None) or {}).get(method.lower())
    actions = view.idempotency_actions
    if actions is not None and handler not in actions:
        return None
    given = given_policy(view, vars(view), handler or method.lower())
    http = _merged(http_policy_for(given["store"]), given)
    return http if method in (http.methods or UNSAFE_METHODS) else None


def _declared(method: Any) -> dict[str, Any]:
    """Return what ``@idempotent`` on a method gives, and nothing where it does not stand."""
    declared = getattr(method, "idempotency", None)
    return declared.given() if isinstance(declared, Declared) else {}


def _merged(policy: AnyPolicy, given: Mapping[str, Any]) -> AnyPolicy:
    """Return the policy of an alias with what a view gives of its fields."""
    return merge(policy, {field.name: given[field.name] for field in fields(policy)})


def is_drf_view(view: Any) -> bool:
    """Return whether a view function was made of an APIView."""
    view_class = getattr(view, "cls", None)
    return isinstance(view_class, type) and issubclass(view_class, APIView)


def guarded_view(view: Any, declared: Declared) -> Callable[..., HttpResponseBase]:
    """
    Return a view of the same class with the mixin: what ``@idempotent`` above ``@api_view`` makes.

    Of a class that has the mixin it changes the policy. Raises TypeError where that would lose
    other decorators.
    """
    actions = (view.actions,) if hasattr(view, "actions") else ()
    has_mixin = issubclass(view.cls, IdempotencyMixin)
    made = "as_view()" if has_mixin else "@api_view"
    if _depth(view) > _depth(view.cls.as_view(*actions, **view.initkwargs)):
        raise TypeError(
            f"Put @idempotent directly above {made} of {view.cls.__name__}, and other decorators "
            f"above it."
        )
    members: dict[str, Any] = {
        _PREFIX + name: staticmethod(value) if callable(value) else value
        for name, value in declared.given().items()
    }
    keywords = {name: value for name, value in view.initkwargs.items() if name not in members}
    members |= {"__module__": view.cls.__module__, "__doc__": view.cls.__doc__}
    bases = (view.cls,) if has_mixin else (IdempotencyMixin, view.cls)
    view_class: Any = type(view.cls.__name__, bases, members)
    view_function: Callable[..., HttpResponseBase] = view_class.as_view(*actions, **keywords)
    return view_function


def guarded_function(
    declared: Declared, function: Callable[..., Any], request: Request, *args: Any, **kwargs: Any
) -> HttpResponseBase:
    """
    Answer for a function below ``@api_view``.

    With ATOMIC_REQUESTS Django's own transaction is open around it: claim, work and completion are
    part of it then, and an answer that was raised is not kept.
    """
    request._request.idempotency = None  # type: ignore[attr-defined]
    view: Any = (request.parser_context or {})["view"]
    http = declared.http_policy()
    method = partial(function, request, *args, **kwargs)
    match = request._request.resolver_match
    if not guards(http, declared.methods, request._request):
        return cast("HttpResponseBase", method())

    outside = may_wait()

    def answer(error: Exception) -> HttpResponseBase:
        if outside:
            return _answer(view, request, http, error)
        raise error  # out of Django's transaction, which DRF marks for rollback

    return _guarded_call(
        view,
        request,
        method,
        answer,
        (args, kwargs),
        store=declared.store,
        policy=declared.policy(),
        http=http,
        body=partial(_body, request, http),
        exempt=exempt(match.func if match else None),
        keyed=carries_key(http, request._request, form=False),
    )


def _guarded_call(
    view: Any,
    request: Request,
    method: Callable[[], Any],
    answer: Callable[[Exception], HttpResponseBase],
    arguments: tuple[Any, Any],
    **described: Any,
) -> HttpResponseBase:
    """Return the guard's response, with all that view and `answer` give finalised and rendered."""
    finalize = view.finalize_response
    args, kwargs = arguments

    def final(response: Any) -> HttpResponseBase:
        # `finalize_response` may read what DRF's dispatch sets only after the handler.
        view.response = finalize(request, response, *args, **kwargs)
        if callable(render := getattr(view.response, "render", None)):
            render()
        return cast("HttpResponseBase", view.response)

    response = guard(
        GuardedCall(
            request=request._request,
            subject=request,
            handle=lambda: final(method()),
            on_exception=lambda error: final(answer(error)),
            form=False,
            **described,
        )
    )
    if isinstance(response, Response) and not response.is_rendered:
        response = final(response)  # a problem, as the policy's error_renderer says it
    # It is final: DRF's dispatch must not finalise it a second time.
    view.finalize_response = lambda request, response, *args, **kwargs: response
    return response


def _answer(view: Any, request: Request, http: HTTPPolicy, error: Exception) -> HttpResponseBase:
    """Let the view answer an exception; what it passes on, DRF's dispatch is not to ask again."""
    asked = view.handle_exception
    try:
        return cast("HttpResponseBase", asked(error))
    except Exception as unanswered:
        passed_on = unanswered

        def handle_exception(error: Exception) -> Response:
            if error is passed_on:
                raise error
            return cast("Response", asked(error))

        view.handle_exception = handle_exception
        return outside_answer(request._request, http, unanswered)


def _body(request: Request, http: HTTPPolicy) -> bytes:
    """
    Return what of the body counts, with the view's own parsers where they alone may read it.

    What they refuse is answered before any claim.
    """
    read_back(request._request)
    compared = http.fingerprint in ("json", "raw")
    if not compared or not (_is_parsed(request) or _is_consumed(request._request)):
        return body_of(request._request, http)
    body = parsed_body(request.data, request.FILES)
    _close_with_request(request)
    return body


def _is_parsed(request: Request) -> bool:
    """Whether a parser of the view has to read the body: it has uploads."""
    kind = (request._request.content_type or "").lower()
    negotiator: Any = request.negotiator
    parser = negotiator.select_parser(request, request.parsers)
    return kind == MULTIPART or isinstance(parser, FileUploadParser)


def _is_consumed(request: HttpRequest) -> bool:
    """Whether somebody, a permission say, has had DRF read the body from its stream."""
    return getattr(request, "_read_started", False) and not hasattr(request, "_body")


def _depth(view: Any) -> int:
    depth = 0
    while hasattr(view, "__wrapped__"):
        view, depth = view.__wrapped__, depth + 1
    return depth


def _close_with_request(request: Request) -> None:
    """Have Django close the uploads when the request ends: a replay's view never sees them."""
    if not hasattr(request._request, "_files"):
        files = MultiValueDict[str, Any]()
        for name, upload in uploads_of(request.FILES):
            files.appendlist(name, upload)
        request._request._files = files  # type: ignore[attr-defined]
