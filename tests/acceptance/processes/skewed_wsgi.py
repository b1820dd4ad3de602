"""The tests' Django on a node whose clock is off by the minutes in ``X-Skew``; see `wsgi`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from django_idempotency.testing.skewed import skew

skew(0)  # before anything takes Python's clocks as its own

from django.utils import timezone  # noqa: E402

from tests.acceptance.processes.wsgi import application as wsgi_application  # noqa: E402


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Serve, and say in ``X-Clock`` what time it is here."""
    skew(60 * float(environ.get("HTTP_X_SKEW", 0)))

    def start(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
        return start_response(status, [*headers, ("X-Clock", timezone.now().isoformat())], *rest)

    return wsgi_application(environ, start)
