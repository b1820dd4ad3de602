"""Guarded views behind a real ASGI server, and its clients that hang up."""

from __future__ import annotations
