"""The Redis store: what only it has, on real servers; the store contract is in tests/contract."""

from __future__ import annotations
