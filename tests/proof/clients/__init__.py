"""Each client pays in the shop, whose answers get lost and whose server dies."""

from __future__ import annotations
