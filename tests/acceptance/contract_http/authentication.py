"""Who sends a request, for Django REST framework: whom the middleware says."""

from __future__ import annotations

from typing import Any

from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request


class OfMiddleware(BaseAuthentication):
    """Takes the user from the request of Django."""

    def authenticate(self, request: Request) -> tuple[Any, None] | None:
        user = request._request.user
        return (user, None) if user.is_authenticated else None

    def authenticate_header(self, request: Request) -> str:
        return "Header"
