"""What most write first: look the key up, do the work, and store the answer. The demo breaks it."""

from __future__ import annotations

from collections.abc import Callable

from django.core.cache import caches
from django.http import HttpRequest, HttpResponse


class LookUpFirst:
    """Between the lookup and the store nothing holds the key."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        key = request.headers.get("Idempotency-Key")
        if key is None:
            return self._get_response(request)
        cache = caches["naive"]
        kept = cache.get(key)
        if kept is None:
            response = self._get_response(request)
            kept = response.content, response.status_code, response.headers["Content-Type"]
            cache.set(key, kept)
        content, status, content_type = kept
        return HttpResponse(content, status=status, content_type=content_type)
