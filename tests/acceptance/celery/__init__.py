"""Tasks in real workers, on real brokers."""

from __future__ import annotations
