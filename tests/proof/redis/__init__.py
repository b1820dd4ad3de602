"""What takes long to prove of the Redis store."""

from __future__ import annotations
