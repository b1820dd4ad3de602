"""Middleware: who sends a request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.contrib.auth.models import AnonymousUser, User
from django.http import HttpRequest
from django.utils.functional import SimpleLazyObject


class HeaderUsers:
    """``X-User: alice`` is alice; looked up when first asked for, as Django's own does."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Any:
        request.user = SimpleLazyObject(lambda: _user(request))  # type: ignore[assignment]
        return self.get_response(request)


def _user(request: HttpRequest) -> User | AnonymousUser:
    name = request.headers.get("X-User")
    return User.objects.get_or_create(username=name)[0] if name else AnonymousUser()
