"""What the system checks say of a project."""

from __future__ import annotations

from typing import Any

from django.core import checks
from django.test import override_settings
from django.urls import clear_url_caches, path

__all__ = ["AUTHENTICATION", "CSRF", "OURS", "SESSIONS", "ids", "messages"]

SESSIONS = "django.contrib.sessions.middleware.SessionMiddleware"
AUTHENTICATION = "django.contrib.auth.middleware.AuthenticationMiddleware"
CSRF = "django.middleware.csrf.CsrfViewMiddleware"
OURS = "django_idempotency.http.middleware.IdempotencyMiddleware"


def messages(*views: Any, **settings: Any) -> list[tuple[str, checks.CheckMessage]]:
    """Return what they say of a project with these views and settings, by number."""
    patterns = [path(f"{n}/", v) if callable(v) else v for n, v in enumerate(views)]
    urls = type("Urls", (), {"urlpatterns": patterns})
    settings = {"IDEMPOTENCY": {"default": {}}, **settings}
    with override_settings(ROOT_URLCONF=urls, DEBUG=True, **settings):
        clear_url_caches()
        found = checks.run_checks(tags=["urls", "idempotency"])
    ours = [message for message in found if str(message.id).startswith("django_idempotency.")]
    assert all(message.hint for message in ours)
    for message in ours:
        assert str(message.id)[-4] == ("E" if message.level == checks.ERROR else "W")
    return [(str(message.id).partition(".")[2], message) for message in ours]


def ids(*views: Any, **settings: Any) -> list[str]:
    return [number for number, _ in messages(*views, **settings)]
