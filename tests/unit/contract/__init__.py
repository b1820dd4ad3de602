"""The store contract, on each store and on defective ones."""

from __future__ import annotations
