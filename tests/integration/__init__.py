"""Tests of a store, and of what stands on it, against real servers."""

from __future__ import annotations
