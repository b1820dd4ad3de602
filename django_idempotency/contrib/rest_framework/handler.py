"""What handles a guarded request to a view of Django REST framework."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from asgiref.sync import sync_to_async
from django.http.response import HttpResponseBase
from django.utils.datastructures import MultiValueDict
from rest_framework.parsers import FileUploadParser
from rest_framework.request import Request
from rest_framework.response import Response

from django_idempotency.http.content import MULTIPART, body_of, parsed_body, uploads_of
from django_idempotency.http.handlers import ViewHandler, outside_answer
from django_idempotency.http.spool import read_back, whole_body
from django_idempotency.policy import HTTPPolicy


@dataclass(eq=False, repr=False)
class RestHandler(ViewHandler):
    """A view's method; all answers of the view are finalised and rendered here."""

    view: Any

    def final(self, response: HttpResponseBase) -> HttpResponseBase:
        """See `ViewHandler.final`; the response is final for DRF's dispatch, too."""
        if isinstance(response, Response) and not response.is_rendered:
            response = self._final(response)  # a problem, as the policy's error_renderer says it
        finalize = self.view.finalize_response
        self.view.finalize_response = partial(_finalized, response, finalize)
        return response

    async def afinal(self, response: HttpResponseBase) -> HttpResponseBase:
        """See `ViewHandler.final`."""
        if isinstance(response, Response) and not response.is_rendered:
            response = await sync_to_async(self._final, thread_sensitive=True)(response)
        return self.final(response)

    def body(self, http: HTTPPolicy) -> bytes:
        """
        See `ViewHandler.body`; by the view's parsers if only they may read it.

        If they refuse the body, the view answers before any claim.
        """
        request: Request = self.subject
        read_back(request._request)
        compared = http.fingerprint in ("json", "raw")
        if not compared or not _needs_parser(request):
            return body_of(request._request, http)
        with whole_body(request._request):
            body = parsed_body(request.data, request.FILES)
        _close_with_request(request)
        return body

    def call(self) -> HttpResponseBase:
        """See `ViewHandler.call`."""
        return self._final(self.called(self.subject, *self.args, **self.kwargs))

    async def acall(self) -> HttpResponseBase:
        """See `ViewHandler.call`."""
        return await sync_to_async(self._final, thread_sensitive=True)(await self.unguarded())

    def answer(self, error: Exception, http: HTTPPolicy) -> HttpResponseBase:
        """Let the view answer; DRF's dispatch must not handle an exception a second time."""
        asked = self.view.handle_exception
        try:
            response = asked(error)
        except Exception as unanswered:
            passed_on = unanswered

            def handle_exception(error: Exception) -> Response:
                if error is passed_on:
                    raise error
                return cast("Response", asked(error))

            self.view.handle_exception = handle_exception
            response = outside_answer(self.subject._request, http, unanswered)
        return self._final(response)

    def _final(self, response: Any) -> HttpResponseBase:
        # `finalize_response` may read what DRF's dispatch sets only after the handler.
        view = self.view
        view.response = view.finalize_response(self.subject, response, *self.args, **self.kwargs)
        if callable(render := getattr(view.response, "render", None)):
            view.response = render()
        return cast("HttpResponseBase", view.response)


def _finalized(
    final: HttpResponseBase,
    finalize: Callable[..., Any],
    /,
    request: Request,
    response: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Finalise a response for DRF's dispatch, which may run again; not `final` once more."""
    return final if response is final else finalize(request, response, *args, **kwargs)


def _needs_parser(request: Request) -> bool:
    """Whether a parser of the view must read the body: it has uploads, or a parser has read it."""
    sent = request._request
    if (sent.content_type or "").lower() == MULTIPART:
        return True
    # A permission, for example, made DRF read the body from its stream.
    if getattr(sent, "_read_started", False) and not hasattr(sent, "_body"):
        return True
    for parser in request.parsers or ():
        if isinstance(parser, FileUploadParser):
            negotiator: Any = request.negotiator
            return isinstance(negotiator.select_parser(request, request.parsers), FileUploadParser)
    return False


def _close_with_request(request: Request) -> None:
    """Have Django close the uploads when the request ends: a replay's view never sees them."""
    if not hasattr(request._request, "_files"):
        files = MultiValueDict[str, Any]()
        for name, upload in uploads_of(request.FILES):
            files.appendlist(name, upload)
        request._request._files = files  # type: ignore[attr-defined]
