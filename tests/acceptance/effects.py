"""What the guarded work of other processes has left behind."""

from __future__ import annotations

from collections import Counter

from tests.app.models import Effect


def effects() -> Counter[str]:
    """Return how many effects of each name have been committed."""
    return Counter(Effect.objects.values_list("name", flat=True))
