"""The demo and the example project in every mode, on every store."""

from __future__ import annotations
