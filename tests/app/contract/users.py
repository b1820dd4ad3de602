"""Middleware: who sends a request; a program, whose requests nobody can forge."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest

from tests.unit.views.users import HeaderUsers


class Programs(HeaderUsers):
    """``X-User: alice`` is alice, and has no need of a CSRF token."""

    def __call__(self, request: HttpRequest) -> Any:
        request._dont_enforce_csrf_checks = True  # type: ignore[attr-defined]
        return super().__call__(request)
