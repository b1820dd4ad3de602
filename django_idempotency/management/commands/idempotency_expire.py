"""The command that expires a record."""

from __future__ import annotations

from typing import ClassVar

from django_idempotency.management.shell import DecisionCommand


class Command(DecisionCommand):
    """Expire a record: the next request with its key runs as if it were the first one."""

    help = "Expires an idempotency record: the next request with its key is the first one."
    action: ClassVar[str] = "expire"
