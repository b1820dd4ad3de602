"""Adapters for packages that a project may or may not use: one module each."""

from __future__ import annotations

__all__ = ["missing"]


def missing(package: str, extra: str) -> ImportError:
    """Return the error of an adapter whose package is not installed: it names the extra."""
    return ImportError(
        f"This adapter needs {package}: run pip install '.[{extra}]' in a checkout of "
        f"django-idempotency.",
        name=package,
    )
