"""What a guard adds to a request, for annotations."""

from __future__ import annotations

from django.http import HttpRequest

from django_idempotency.leases import Lease

__all__ = ["IdempotentRequest"]


class IdempotentRequest(HttpRequest):
    """The request of a guarded view: ``def pay(request: IdempotentRequest)``."""

    #: None without a key, and for methods that are not guarded.
    idempotency: Lease | None
