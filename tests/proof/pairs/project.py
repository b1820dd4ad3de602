"""The project of a case: one view, guarded or not, whose work leaves something everywhere."""

from __future__ import annotations

import asyncio
import functools
import io
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import ninja
from adrf.decorators import api_view as async_api_view
from adrf.views import APIView as AsyncAPIView
from adrf.viewsets import ViewSet as AsyncViewSet
from asgiref.sync import (
    async_to_sync,
    iscoroutinefunction,
    markcoroutinefunction,
    sync_to_async,
)
from django.contrib import messages
from django.db import OperationalError, transaction
from django.http import (
    FileResponse,
    Http404,
    HttpRequest,
    HttpResponse,
    HttpResponseRedirect,
    JsonResponse,
    StreamingHttpResponse,
)
from django.template import engines
from django.template.response import TemplateResponse
from django.urls import clear_url_caches, path
from django.utils.decorators import method_decorator
from django.utils.functional import cached_property
from django.views import View
from rest_framework import exceptions, status
from rest_framework.decorators import action, api_view
from rest_framework.renderers import TemplateHTMLRenderer
from rest_framework.response import Response
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from django_idempotency.contrib import ninja as guarded_ninja
from django_idempotency.contrib.rest_framework import IdempotencyMixin
from django_idempotency.http import idempotent
from django_idempotency.http.verdicts import verdict_on
from django_idempotency.policy import HTTPPolicy
from tests.app.models import Effect
from tests.proof.pairs.features import RETRYING, Case

__all__ = ["MIDDLEWARE", "Project", "in_atomic", "keep"]

MIDDLEWARE = (
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
)


class Boom(Exception):
    """What the work of a case raises."""


@dataclass
class Project:
    """The view of a case, and what has been seen of its work."""

    case: Case
    guarded: bool
    runs: int = 0
    bodies: list[Any] = field(default_factory=list)
    hooks: list[str] = field(default_factory=list)
    #: The APIs of django-ninja.
    apis: list[Any] = field(default_factory=list)
    #: Set for a request that is to stay in its work until the test lets it go.
    entered: threading.Event | None = None
    leave: threading.Event | None = None
    #: Called in the call of the other service, which it may end.
    in_call: Callable[[], object] = bool

    # The work: the same for each kind of view.

    def work(self, request: Any) -> Any:
        """Leave a row, a hook, a session and messages behind, and answer as the case says."""
        self._begin(request)
        if self._in_steps:
            request.idempotency.step("row", self._leave_row)
            request.idempotency.external("call", self._call, uncertain=self.case.uncertain)
        else:
            self._leave_row()
            self._call()
        return self._end(request)

    async def awork(self, request: Any) -> Any:
        """Do the same, and stay until the other coroutine has written its row."""
        try:
            await sync_to_async(self._begin)(request)
            if self._in_steps:
                await request.idempotency.astep("row", self._leave_row)
                lease, uncertain = request.idempotency, self.case.uncertain
                await lease.aexternal("call", self._acall, uncertain=uncertain)
            else:
                await sync_to_async(self._leave_row)()
                self._call()
            return await sync_to_async(self._end)(request)
        finally:
            if (neighbor := getattr(request, "neighbor", None)) is not None:
                neighbor.worked.set()
                await neighbor.written.wait()

    @property
    def _in_steps(self) -> bool:
        return self.guarded and self.case.mode == "steps"

    def _begin(self, request: Any) -> None:
        body = (read_rest if self.case.is_rest else read)(self.case, request)
        self.runs += 1
        self.bodies.append(body)
        if self.case.middleware in RETRYING and self.runs == 1:
            raise OperationalError("deadlock detected")

    def _leave_row(self) -> None:
        case = self.case
        own = {"own_atomic": transaction.atomic(), "durable": transaction.atomic(durable=True)}
        with own.get(case.transactions, nullcontext()):
            if case.autocommit == "off":
                transaction.set_autocommit(False)
            Effect.objects.create(name=f"run {self.runs}")
            if case.autocommit == "off":
                transaction.commit()
            else:
                transaction.on_commit(lambda: self.hooks.append("hook"))

    def _call(self, key: str = "") -> None:
        """Call another service."""
        if self.case.mode == "steps":
            self.hooks.append("call")
            self.in_call()

    async def _acall(self, key: str) -> None:
        self._call()

    def _end(self, request: Any) -> Any:
        self._use_session(request)
        if self.case.middleware == "messages":
            messages.success(getattr(request, "_request", request), "done")
        if self.entered is not None and self.leave is not None:
            self.entered.set()
            assert self.leave.wait(20)
        return self._answer(request)

    def _use_session(self, request: Any) -> None:
        session = request.session
        match self.case.session:
            case "read":
                session.get("count")
            case "write":
                session["count"] = session.get("count", 0) + 1
            case "nested":
                session.setdefault("list", []).append("run")
                session.modified = True
            case "rotate":
                session["count"] = 1
                session.cycle_key()
            case "flush":
                session.flush()

    def _answer(self, request: Any) -> Any:
        case = self.case
        match case.answer:
            case "json" if case.is_rest:
                return Response({"paid": True}, status=201, headers={"X-Receipt": str(self.runs)})
            case "json" if "ninja" in case.view:
                return {"paid": True, "receipt": self.runs}
            case "json":
                response = JsonResponse({"paid": True}, status=201)
                response["X-Receipt"] = str(self.runs)
                return response
            case "template" if case.is_rest:
                return Response({"number": 1})
            case "template":
                template = engines["django"].from_string("paid: {{ number }}")
                return TemplateResponse(request, template, {"number": 1})
            case "file":
                return FileResponse(
                    io.BytesIO(b"%PDF-1.7" + b"a receipt" * 100), filename="receipt.pdf"
                )
            case "stream":
                return StreamingHttpResponse(_stream(case.server == "asgi"))
            case "redirect":
                return HttpResponseRedirect("/elsewhere/")
            case "refused":
                return JsonResponse({"error": "declined"}, status=402)
            case "error":
                return JsonResponse({"error": "later"}, status=503)
            case "raised" if case.is_rest:
                raise _Declined
            case "raised":
                raise Http404
        raise Boom

    # The view.

    @cached_property
    def view(self) -> Callable[..., Any]:
        """The view as the URLconf has it."""
        view = getattr(self, f"_{self.case.view}")()
        if self.case.middleware == "retrying":
            view = _retrying(view)
        if self.case.server == "async_to_sync":
            view = _entered(view, has_neighbor=self.case.has_neighbor)
        if self.case.transactions == "caller" and self.case.guard != "middleware":
            view = in_atomic(view)
        return view

    @property
    def _decorates(self) -> bool:
        return self.guarded and self.case.guard == "decorator"

    def _guard(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return idempotent(**self._options)(function) if self._decorates else function

    @property
    def _options(self) -> Any:
        return {"transaction": "steps"} if self.case.mode == "steps" else {}

    def _function(self) -> Callable[..., Any]:
        def view(request: HttpRequest) -> Any:
            return self.work(request)

        return self._guard(view)

    def _async_function(self) -> Callable[..., Any]:
        async def view(request: HttpRequest) -> Any:
            return await self.awork(request)

        return self._guard(view)

    def _class(self) -> Callable[..., Any]:
        class Paying(View):
            def post(this, request: HttpRequest) -> Any:
                return self.work(request)

        return self._class_view(Paying)

    def _async_class(self) -> Callable[..., Any]:
        class Paying(View):
            async def post(this, request: HttpRequest) -> Any:
                return await self.awork(request)

        return self._class_view(Paying)

    def _class_view(self, view: Any) -> Callable[..., Any]:
        if self._decorates:
            view = method_decorator(idempotent(**self._options), name="dispatch")(view)
        as_view: Callable[..., Any] = view.as_view()
        return as_view

    def _drf_function(self) -> Callable[..., Any]:
        def paying(request: Any) -> Any:
            return self.work(request)

        return self._guard(api_view(["POST"])(self._rendered(paying)))

    def _async_drf_function(self) -> Callable[..., Any]:
        async def paying(request: Any) -> Any:
            return await self.awork(request)

        return self._guard(async_api_view(["POST"])(self._rendered(paying)))

    def _rendered(self, view: Any) -> Any:
        """Let a view of REST framework render its answers by a template, if those are such."""
        if self.case.answer == "template":
            view.renderer_classes = [_TemplateRenderer]
        return view

    def _drf(self) -> Callable[..., Any]:
        class Paying(*self._bases(APIView)):  # type: ignore[misc]
            def post(this, request: Any) -> Any:
                return self.work(request)

        as_view: Callable[..., Any] = self._rendered(Paying).as_view()
        return as_view

    def _async_drf(self) -> Callable[..., Any]:
        class Paying(*self._bases(AsyncAPIView)):  # type: ignore[misc]
            async def post(this, request: Any) -> Any:
                return await self.awork(request)

        as_view: Callable[..., Any] = self._rendered(Paying).as_view()
        return as_view

    def _viewset(self) -> Callable[..., Any]:
        class Paying(*self._bases(ViewSet)):  # type: ignore[misc]
            @action(detail=False, methods=["post"])
            def pay(this, request: Any) -> Any:
                return self.work(request)

        as_view: Callable[..., Any] = self._rendered(Paying).as_view({"post": "pay"})
        return as_view

    def _async_viewset(self) -> Callable[..., Any]:
        class Paying(*self._bases(AsyncViewSet)):  # type: ignore[misc]
            @action(detail=False, methods=["post"])
            async def pay(this, request: Any) -> Any:
                return await self.awork(request)

        as_view: Callable[..., Any] = self._rendered(Paying).as_view({"post": "pay"})
        return as_view

    def _bases(self, base: type) -> tuple[type, ...]:
        again = (_Again,) if self.case.middleware == "redispatching" else ()
        mixin = _StepsMixin if self.case.mode == "steps" else IdempotencyMixin
        guard = (mixin,) if self.guarded and self.case.guard == "mixin" else ()
        return (*again, *guard, base)

    def _ninja(self) -> Callable[..., Any]:
        def pay(request: HttpRequest) -> Any:
            return self.work(request)

        return self._operation(pay)

    def _async_ninja(self) -> Callable[..., Any]:
        async def pay(request: HttpRequest) -> Any:
            return await self.awork(request)

        return self._operation(pay)

    def _operation(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if self._decorates:
            function = guarded_ninja.idempotent(**self._options)(function)
        api = ninja.NinjaAPI(urls_namespace=f"pairs-{id(self)}", docs_url=None, openapi_url=None)
        api.post("/")(function)
        self.apis.append(api)
        [pattern, *_] = api.urls[0]
        view: Callable[..., Any] = pattern.callback
        return view

    @cached_property
    def urlconf(self) -> ModuleType:
        """A module of URLs with the view at /pay/."""
        module = ModuleType(f"pairs_urls_{id(self)}")
        module.urlpatterns = [path("pay/", self.view, name="pay")]  # type: ignore[attr-defined]
        return module

    def rename_url(self) -> None:
        """Give the URL another name, as a deployment may."""
        self.urlconf.urlpatterns = [path("pay/", self.view, name="payments")]
        clear_url_caches()


def keep(response: Any, error: BaseException | None) -> str:
    """Decide as the default does, after a look into the database."""
    Effect.objects.exists()
    return verdict_on(HTTPPolicy(), response, error)


class _StepsMixin(IdempotencyMixin):
    idempotency_transaction = "steps"


class _Again:
    """Dispatches once more after a deadlock."""

    def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        dispatch = super().dispatch  # type: ignore[misc]
        try:
            return dispatch(request, *args, **kwargs)
        except OperationalError:
            return dispatch(request, *args, **kwargs)


class _TemplateRenderer(TemplateHTMLRenderer):
    def get_template_names(self, response: Any, view: Any) -> list[str]:
        return ["paid: {{ number }}"]

    def resolve_template(self, template_names: list[str]) -> Any:
        return engines["django"].from_string(template_names[0])


class _Declined(exceptions.APIException):
    status_code = status.HTTP_409_CONFLICT


def _stream(is_async: bool) -> Any:
    def parts() -> Iterator[bytes]:
        yield b"a"
        yield b"b"

    async def async_parts() -> Any:
        yield b"a"
        yield b"b"

    return async_parts() if is_async else parts()


def read(case: Case, request: Any) -> Any:
    """Return what a plain view makes of the body."""
    if case.body == "chunked_large":
        return b"".join(iter(lambda: request.read(7), b""))
    if "form" in case.body or case.body == "multipart":
        files = {name: whole(file) for name, file in request.FILES.items()}
        fields = {name: value for name, value in request.POST.items() if "key" not in name}
        return fields, files
    return request.body


def whole(file: Any) -> bytes:
    """Return what an upload holds, whoever has read it before."""
    file.seek(0)
    return bytes(file.read())


def read_rest(case: Case, request: Any) -> Any:
    """Return what a view of REST framework makes of the body."""
    if case.body == "raw":
        return request.body
    data = {}
    for name, value in request.data.items():
        if "key" not in name:
            data[name] = whole(value) if hasattr(value, "read") else value
    return data


class _Neighbor:
    """Another coroutine of a request, which writes a row of its own as soon as the work is done."""

    def __init__(self) -> None:
        self.worked, self.written = asyncio.Event(), asyncio.Event()

    async def write(self) -> None:
        try:
            await self.worked.wait()
            await sync_to_async(Effect.objects.create)(name="of the neighbor")
        finally:
            self.written.set()


def _entered(view: Callable[..., Any], *, has_neighbor: bool) -> Callable[..., Any]:
    """Call a coroutine from a function, beside another coroutine."""

    async def beside(request: Any) -> Any:
        request.neighbor = neighbor = _Neighbor()
        writing = asyncio.create_task(neighbor.write())
        try:
            return await view(request)
        finally:
            writing.cancel()  # a replay has not worked
            await asyncio.wait([writing])

    def enter(request: HttpRequest) -> Any:
        return async_to_sync(beside if has_neighbor else view)(request)

    return enter


def in_atomic(call: Callable[..., Any]) -> Callable[..., Any]:
    """Call a view, or the rest of the middleware, in a transaction of the caller's."""

    def calling(request: HttpRequest) -> Any:
        with transaction.atomic():
            return call(request)

    return calling


def _retrying(view: Callable[..., Any]) -> Callable[..., Any]:
    """Call the view once more after a deadlock, as projects do."""
    if iscoroutinefunction(view):

        @functools.wraps(view)
        async def atwice(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            try:
                return await view(request, *args, **kwargs)
            except OperationalError:
                return await view(request, *args, **kwargs)

        return markcoroutinefunction(atwice)

    @functools.wraps(view)
    def twice(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        try:
            return view(request, *args, **kwargs)
        except OperationalError:
            return view(request, *args, **kwargs)

    return twice
