"""The guard of a view on a real server: sessions that lock, hang up, or take over."""

from __future__ import annotations
