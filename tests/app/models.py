"""Models of the tests."""

from __future__ import annotations
