"""The proof that the library keeps its rules."""

from __future__ import annotations
