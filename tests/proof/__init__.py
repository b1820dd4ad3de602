"""What takes longer than `make test` may: `make proof` runs it."""

from __future__ import annotations
