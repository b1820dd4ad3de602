"""The Redis store: what only it has, on real servers."""

from __future__ import annotations
