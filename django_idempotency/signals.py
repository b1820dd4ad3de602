"""
The signals about attempts: no key, no scope, no payload and no answer is in them (R79).

Each is sent with ``send_robust``, and an error of a receiver is logged once: see `observers`. The
sender is the class of the store. The arguments are `alias`, `operation`, `outcome` (the word of the
log), `record_id`, `duration` (seconds since the attempt began) and `error` (the name of an
exception's class, or None).
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter

from django_idempotency.observers import Signal

__all__ = [
    "TERMINAL",
    "claimed",
    "completed",
    "conflicted",
    "failed",
    "lease_lost",
    "mismatched",
    "released",
    "replayed",
    "store_failed",
    "swept",
]

#: An attempt has won its claim, and its work begins; `takeover` tells of a lapsed lease, and
#: `steps` of how many steps earlier attempts have noted.
claimed = Signal()

# The terminal signals: one for each attempt that ends in its process.

#: The record keeps the answer of this attempt's work; sent after the commit.
completed = Signal()
#: The answer came from the record.
replayed = Signal()
#: There is no answer for this attempt: the key is taken.
conflicted = Signal()
#: The key was used for another request.
mismatched = Signal()
#: The work ended without an answer to keep; the same request may use the key again.
failed = Signal()
#: The work ended without an answer to keep; any request may use the key again.
released = Signal()
#: Another attempt took over, and this one was refused.
lease_lost = Signal()
#: The store did not answer, or lost the record.
store_failed = Signal()

#: A sweep of one store has ended: `alias`, `count` of deleted records, `duration`.
swept = Signal()

#: The terminal signals by their names.
TERMINAL: Mapping[str, Signal] = {
    "completed": completed,
    "replayed": replayed,
    "conflicted": conflicted,
    "mismatched": mismatched,
    "failed": failed,
    "released": released,
    "lease_lost": lease_lost,
    "store_failed": store_failed,
}

#: For gauges of this project: an attempt that had claimed has left its block, also where a rollback
#: of the caller's is still possible, after which there is no terminal signal.
left = Signal()

#: Gives the receivers of a signal: ``any(map(receivers, ABOUT_ENDS))`` calls no code of ours.
receivers = attrgetter("receivers")
ABOUT_ENDS = (*TERMINAL.values(), left)
