"""The clients of `django_idempotency.client`, and the one in TypeScript."""

from __future__ import annotations
