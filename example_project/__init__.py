"""A small payments shop that shows django-idempotency at work; meant to be copied."""

from __future__ import annotations

from example_project.celery import app as celery_app

__all__ = ["celery_app"]
