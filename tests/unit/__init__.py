"""Tests that need no server: the memory store, SQLite in a file, the code itself."""

from __future__ import annotations
