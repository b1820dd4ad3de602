"""What is to be guarded, and who owns the transaction: the caller, or the attempt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_idempotency import codecs
from django_idempotency.engine.waiting import Waiter
from django_idempotency.exceptions import TransactionOpen
from django_idempotency.fingerprint import Fingerprint
from django_idempotency.policy import Policy
from django_idempotency.stores.base import BaseStore
from django_idempotency.transactions.outer import CommitHooks, OuterTransaction
from django_idempotency.transactions.state import is_open


@dataclass(frozen=True)
class Operation:
    """One call to guard: whose key it is, what it asks for, and how it is to be guarded."""

    record_id: UUID
    scope: str = field(repr=False)
    key: str = field(repr=False)
    name: str
    fingerprint: Fingerprint
    policy: Policy
    codec: codecs.Codec
    #: "single", "joined" or "separate": the policy's choice, or what its absence means here.
    transaction: str = "separate"
    #: The aliases on which the work has transactions of its own, which commit before its record.
    aliases: Sequence[str] = ()
    #: False for work without a key: it has the same block, and no record (R90).
    recorded: bool = True
    #: A result that cannot be stored is no error: the record is completed without it (R62).
    unstorable_ok: bool = False
    #: How long to wait for the answer of an attempt in progress; 0 in a caller's transaction.
    wait: timedelta = timedelta(0)
    #: Whether a wait may close this thread's connections: nobody else uses their sessions.
    closes_connections: bool = False
    #: The transaction around, which must commit before a store that cannot join completes.
    outer: OuterTransaction | None = None
    #: The on_commit hooks of the caller's transactions, for which the attempt is still `current`.
    commit_hooks: CommitHooks | None = None
    #: The adapter decides whether a replay may be seen, and calls `Attempt.tell_replay`.
    checks_replay: bool = False
    #: Makes what the adapter waits with, in place of `wait`.
    make_waiter: Callable[[Operation], Waiter] | None = None
    #: What a line of the log calls it if it has no name.
    label: str = ""

    def waiter(self) -> Waiter:
        """Return what says how long an attempt waits for another."""
        if self.make_waiter is not None:
            return self.make_waiter(self)
        return Waiter(self.record_id, self.wait, self.policy.on_stale)


class OpenTransactions:
    """
    The caller's open transactions, as one look over this thread's connections finds them.

    Those that a TestCase opened do not count.
    """

    def __init__(self, store: BaseStore) -> None:
        self._store = store
        self._open: list[BaseDatabaseWrapper] = []
        #: Whether the store's own writes would be part of one of them.
        self.within = False
        # As `connections.all(initialized_only=True)` finds them, at half its price.
        made = connections._connections  # type: ignore[attr-defined]
        for alias in connections:
            connection = getattr(made, alias, None)
            if connection is None and alias == store.using:
                connection = connections[alias]  # open before its first use without autocommit
            if connection is not None and is_open(connection):
                self._open.append(connection)
                self.within = self.within or alias == store.using
        #: Whether a duplicate may wait: not while it holds a transaction of the caller (R51).
        self.may_wait = not self._open

    def mode(self, policy: Policy, *, joins: bool = True) -> str:
        """
        Return "single", "joined" or "separate": the policy's choice, or the default at this place.

        The default is "joined" where the store can, and "separate" without `joins`: for coroutines,
        say. Work with steps is "separate": what commits with its note are its steps.

        Inside a transaction that the caller opened the default is "single" within it on a database
        store of that alias, and "separate" on any other store, whose completion then waits for the
        commit; "joined", "separate" and "steps" asked for by name raise TransactionOpen
        there, as ``atomic(durable=True)`` does. What the store cannot do raises ValueError.
        """
        chosen = policy.transaction
        check_mode(policy, self._store)
        if self.within and chosen in (None, "single"):
            return "single"
        if self._open:
            if chosen is not None:
                way_out = "Leave the choice out to go with that one, or call outside atomic()."
                if chosen == "steps":  # without the choice there are none
                    way_out = "Call outside atomic()."
                raise TransactionOpen(
                    f"transaction={chosen!r} commits on its own, and a transaction is already open "
                    f"here. {way_out}"
                )
            return "separate"
        if chosen is not None:
            return "separate" if chosen == "steps" else chosen
        return "joined" if self._store.supports_join and joins else "separate"

    def outer(self) -> OuterTransaction | None:
        """
        Return the transactions that must commit before the store may complete.

        None where nothing needs to be waited for: none is open, or the store is part of it. Raises
        TransactionOpen where autocommit is off, so that nothing would tell of the commit.
        """
        if self.within or not self._open:
            return None
        if not all(
            connection.in_atomic_block and connection.commit_on_exit for connection in self._open
        ):
            raise TransactionOpen(
                "Autocommit is off here, so the commit of the work cannot be waited for. Use "
                "atomic() with autocommit on."
            )
        return OuterTransaction(self._open)

    def commit_hooks(self) -> CommitHooks:
        """Return the on_commit hooks of these transactions, those without a block included."""
        return CommitHooks(self._open)


def check_mode(policy: Policy, store: BaseStore) -> None:
    """Raise ValueError where the policy asks for a mode that the store cannot do."""
    has_steps = policy.transaction == "steps"
    if policy.transaction in ("single", "joined") and not store.supports_join:
        raise ValueError(
            f"transaction={policy.transaction!r} needs a database store; {type(store).__name__} "
            f"can only do 'separate'."
        )
    if has_steps and not store.supports_steps:
        raise ValueError(
            f"transaction='steps' needs a store that can note them; {type(store).__name__} cannot."
        )
    if has_steps and store.steps_bytes is not None and policy.max_steps_bytes > store.steps_bytes:
        raise ValueError(
            f"max_steps_bytes={policy.max_steps_bytes} is more than a record of "
            f"{type(store).__name__} holds: {store.steps_bytes} bytes of notes."
        )
