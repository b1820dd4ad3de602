"""What the mutants are made of."""

from __future__ import annotations

import inspect
import threading
from copy import copy
from dataclasses import replace

from django_idempotency.claims import Decision, decide, placeholder
from django_idempotency.exceptions import StoreError
from django_idempotency.leases import Lease, Proof
from django_idempotency.stores.memory import MemoryRecords, MemoryStore

__all__ = ["GAP", "AbsentRecords", "Mutant", "SoundStore", "mutant", "placeholder"]

#: Seconds between two steps that belong together: enough for another thread to come in between.
GAP = 0.002


class AbsentRecords(MemoryRecords):
    """Records of which a damaged one is not there."""

    def get(self, record_id):
        try:
            return super().get(record_id)
        except StoreError:
            return None


def _written(name):
    def write(self, *arguments, **more):
        self.between()
        try:
            return getattr(super(SoundStore, self), name)(*arguments, **more)
        finally:
            if self.losing:
                self.losing = False
                raise StoreError("The answer is lost.")

    return write


class SoundStore(MemoryStore):
    """
    A store without a defect: the memory store, which moreover can lose answers.

    It has moments before its writes, and records can be damaged and deleted behind its back.
    """

    def __init__(self, **options):
        super().__init__(**options)
        #: Whether the next write is done, and its answer lost.
        self.losing = False
        #: What happens before the next write.
        self.callback = None

    def between(self):
        """Between a read and the write that it decides: let others do what they will."""
        callback, self.callback = self.callback, None
        if callback is not None:
            callback()

    claim, complete, fail, release = map(_written, ("claim", "complete", "fail", "release"))
    renew, resolve, sweep = map(_written, ("renew", "resolve", "sweep"))

    def damage(self, record_id):
        """Leave a record whose state is none."""
        with self._mutex:
            damaged = copy(self._records[record_id])
            object.__setattr__(damaged, "state", "NO STATE")  # which no Record lets in
            self._records[record_id] = damaged

    def put_back(self, record):
        """Undo whatever has happened to a record."""
        with self._mutex:
            self._records[record.record_id] = record

    def drop(self, record_ids):
        """Delete records behind everybody's back; return how many were there."""
        return sum(self._records.pop(record_id, None) is not None for record_id in record_ids)

    def change(self, record_id, **changes):
        """Change a record behind everybody's back."""
        with self._mutex:
            self._records[record_id] = replace(self._records[record_id], **changes)


class Mutant(SoundStore):
    """A store that breaks one rule; its docstring says which."""

    #: The rule that is meant to notice.
    rule = ""
    #: Attributes that the contract has for it.
    contract = {}

    def __init__(self, **options):
        super().__init__(**options)
        self.busy = threading.Lock()

    def is_won(self, seen, request):
        """Whether a claim that saw this record is to be won."""
        return seen is None or decide(seen, request) is Decision.CLAIM_AGAIN

    def owners(self, lease):
        """Return the lease of whoever is the owner by now."""
        record = self.get(lease.record_id)
        if record is None:
            return lease
        return Lease(Proof(record.record_id, record.epoch, record.token), lease.request)

    def with_epoch(self, lease, epoch):
        """Give a lease, and its record, another epoch."""
        self.change(lease.record_id, epoch=epoch)
        times = {name: getattr(lease, name) for name in ("lease_until", "claimed_at", "takeover")}
        return Lease(replace(lease.proof, epoch=epoch), lease.request, **times)


def mutant(rule, **contract):
    """
    Make a mutant of a function ``defect(store, operation, …)``, which stands for the operation.

    It is named as its second parameter, which is the sound one. For a last positional parameter
    `seen` it gets the record as it is before; where there is none, the sound one is called.
    """

    def make(defect):
        spec = inspect.getfullargspec(defect)
        name, sees = spec.args[1], spec.args[-1] == "seen"

        def operation(self, *arguments, **more):
            sound = getattr(super(made, self), name)
            if sees:
                seen = self.get(getattr(arguments[0], "record_id", arguments[0]))
                if seen is None:
                    return sound(*arguments, **more)
                arguments = (*arguments, seen)
            return defect(self, sound, *arguments, **more)

        names = {"__doc__": defect.__doc__, "__module__": defect.__module__, "rule": rule}
        names["contract"] = contract
        made = type(defect.__name__, (Mutant,), {**names, name: operation})
        return made

    return make
