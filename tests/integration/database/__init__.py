"""The database store, proven on real databases: PostgreSQL and SQLite."""

from __future__ import annotations
