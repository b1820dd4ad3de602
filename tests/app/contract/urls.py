"""One URL for each knob: the same work behind every kind of guard."""

from __future__ import annotations

from typing import Any

from django.urls import URLPattern, URLResolver, include, path

from django_idempotency.http import idempotent
from tests.app.contract import views
from tests.app.contract.views import Named, Optional, Versioned, Work


def work(route: str, view: type[Work] = Work, **policy: Any) -> URLPattern:
    attributes = {f"idempotency_{name}": value for name, value in policy.items()}
    url: URLPattern = path(route, view.as_view(**attributes))
    return url


urlpatterns: list[URLPattern | URLResolver] = [
    path("", views.count),
    work("effects/"),
    work("optional/", Optional),
    work("elsewhere/"),
    work("effects/<int:pk>/"),
    work("long/<path:tail>"),
    work("versions/", Versioned),
    path("read-only/", Work.as_view(http_method_names=["get"])),
    work("any/<slug:name>/", Named),
    # The key and the scope.
    work("strict/", strict_header=True),
    work("uuids/", key_validator="uuid"),
    work("echo/", echo_key=True),
    work("only-post/", methods={"POST"}),
    work("by-endpoint/one/", scope_endpoint=True),
    work("by-endpoint/other/", scope_endpoint=True),
    # The fingerprint.
    work("as-bytes/", fingerprint="raw"),
    work("uncompared/", fingerprint=None),
    work("excluding/", fingerprint_exclude=["value.noise"]),
    work("by-version/", fingerprint_headers=["X-Version"]),
    path("form/", idempotent(required=True)(views.form)),
    path("raw/", idempotent(required=True)(views.raw)),
    # The answer.
    work("adorned/", replay_headers=["X-Custom"]),
    work("checked/", replay_check=views.is_allowed),
    work("rendered/", error_renderer=views.as_text),
    work("success/", keep="success"),
    work("stripe/", keep="stripe"),
    # Time. What is to happen within it happens also in a process that stands still for two seconds.
    work("waiting/", wait=30),
    work("lease/", lease=8),
    work("renewed/", lease=4),
    work("lapsing/", lease=2.5, renew=False),
    work("stale/", lease=2.5, renew=False, on_stale="refuse"),
    work("short/", retention=4),
    # Stores that do not work.
    work("incomplete/", store="incomplete"),
    work("incomplete/separate/", store="incomplete", transaction="separate"),
    work("down/", store="down"),
    work("down/open/", store="down", fail_open=True),
    path("coroutine/", idempotent(required=True, transaction="joined")(views.coroutine)),
    # Several guards, and every kind of view.
    path("twice/", idempotent(required=True)(idempotent(views.plain))),
    path("kinds/", include("tests.unit.views.urls")),
]
