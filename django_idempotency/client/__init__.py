"""
For programs that call an API with idempotency keys: one key per request, kept over its retries.

Nothing here imports Django. `client.httpx` and `client.requests` need their package.
"""

from __future__ import annotations

from django_idempotency.client.policy import RetryPolicy
from django_idempotency.client.problems import Problem, problem_of

__all__ = ["Problem", "RetryPolicy", "problem_of"]
