"""The rules of what a client sees over HTTP, one module per section."""

from __future__ import annotations
