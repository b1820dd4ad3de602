"""
A stand-in for the client of a payment gateway.

It knows idempotency keys, as most of them do: the second call with a key gets the answer of the
first. So it needs no memory here: what it answers is made of the key.
"""

from __future__ import annotations

import hashlib

from django.dispatch import Signal

__all__ = ["DECLINED", "called", "charge"]

#: A card that is declined.
DECLINED = "4000000000000002"
#: A call has come in; it has the `reference` and the `key`.
called = Signal()


def charge(amount: int, card: str, *, reference: str, idempotency_key: str) -> dict[str, str]:
    """Charge a card once per key; return the id of the charge, and "paid" or "declined"."""
    called.send(charge, reference=reference, key=idempotency_key)
    number = hashlib.sha256(idempotency_key.encode()).hexdigest()[:12]
    return {"id": f"ch_{number}", "status": "declined" if card == DECLINED else "paid"}
