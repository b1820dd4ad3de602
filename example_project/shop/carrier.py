"""
A stand-in for the client of a carrier.

It knows no idempotency keys, and cannot be asked: each call books one more parcel.
"""

from __future__ import annotations

import secrets

__all__ = ["book"]


def book(order: str) -> str:
    """Book a parcel for an order, and return its number; after a TimeoutError it may be booked."""
    return f"par_{secrets.token_hex(6)}"
