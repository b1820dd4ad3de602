"""The example project and the demo."""

from __future__ import annotations
