"""The servers that the tests start."""

from __future__ import annotations
