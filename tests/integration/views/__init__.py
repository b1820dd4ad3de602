"""Views whose requests meet on PostgreSQL: waiters, pools, two writers at once."""

from __future__ import annotations
