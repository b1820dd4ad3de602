"""Tasks whose workers are killed hundreds of times."""

from __future__ import annotations
