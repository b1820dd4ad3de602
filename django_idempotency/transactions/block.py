"""The transactions of the work: that of its record, which knows whose it is, and all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any
from uuid import UUID

from django.db import (
    Error,
    InterfaceError,
    InternalError,
    OperationalError,
    connections,
    transaction,
)
from django.db.backends.base.base import BaseDatabaseWrapper

from django_idempotency.context import Running, running
from django_idempotency.exceptions import StoreError, TransactionOpen
from django_idempotency.leases import Lease
from django_idempotency.transactions.aliases import AtomicBlocks
from django_idempotency.transactions.errors import is_connection_failure
from django_idempotency.transactions.state import RollbackWatch, is_open, not_begun

#: The savepoint of the work in `single`, where the claim sets it.
SAVEPOINT = "idempotency"


class Block(transaction.Atomic):
    """
    An ``atomic()`` of the store, which knows whose it is.

    Coroutines that share a thread share its connection: the transaction of one must not take in
    the statements of another. Django's own block is entered and left once, also where neither is
    to send a statement: packages wrap its two methods to know of each block.
    """

    using: str

    def __init__(self, using: str, committed: Callable[[], None] | None = None) -> None:
        super().__init__(using, savepoint=True, durable=False)
        self._tell = committed
        #: The transaction is known to have committed: what fails now is a hook's own affair.
        self.committed = False
        #: The lease whose lock this block's transaction took.
        self.held: Lease | None = None
        #: The claim has set SAVEPOINT for the work, and nothing was done since.
        self.has_savepoint = False
        self.outer: Block | None = None
        #: The attempt that this block is part of, and whether that is a coroutine's.
        attempts = running()
        self.owner: Running | None = attempts[-1] if attempts else None
        self.of_coroutine = self.owner is not None and self.owner.of_coroutine
        #: The block is a transaction, which it ends itself.
        self.commits = False
        #: The block is a savepoint, and all of the transaction's work: the COMMIT releases it.
        self.ends_with_commit = False
        #: Its COMMIT may go out with the completion.
        self.may_close = False
        #: What the server has said against that COMMIT.
        self.refusal: Exception | None = None
        #: A block around it has ended, and has taken all of it along.
        self.is_cut = False
        #: Open from the first statement of the block to its last.
        self.watch: RollbackWatch

    @staticmethod
    def on(connection: BaseDatabaseWrapper) -> Block | None:
        """Return the innermost open block on this connection."""
        for block in reversed(connection.atomic_blocks):
            if isinstance(block, Block):
                return block
        return None

    @staticmethod
    def closing(connection: BaseDatabaseWrapper, token: UUID) -> Block | None:
        """
        Return the transaction of an attempt whose own completion, under `token`, ends it.

        So it does where no other block is around the work or within it.
        """
        if not connection.atomic_blocks:
            return None
        first, *inner = connection.atomic_blocks
        if not (isinstance(first, Block) and first.may_close and first.owner is not None):
            return None
        attempt = first.owner
        if not attempt.is_completing or attempt.request.token != token:
            return None
        # `single` alone has a block within its transaction, that of the work.
        most = 1 if attempt.request.transaction == "single" else 0
        ends = all(isinstance(block, Block) and block.ends_with_commit for block in inner)
        return first if ends and len(inner) <= most else None

    @staticmethod
    def is_foreign(connection: BaseDatabaseWrapper) -> bool:
        """Return whether the connection is in the transaction of another attempt."""
        for block in reversed(connection.atomic_blocks):
            if isinstance(block, Block):
                return block.owner is not None and block.owner not in running()
        return False

    @classmethod
    def is_own(cls, connection: BaseDatabaseWrapper) -> bool:
        """Return whether one of the open blocks is part of an attempt of the code that asks."""
        attempts = running()
        return any(
            isinstance(block, Block) and block.owner in attempts
            for block in connection.atomic_blocks
        )

    @staticmethod
    def open_error() -> TransactionOpen:
        """Return the error of an attempt that would interleave with another one."""
        return TransactionOpen(
            "Another attempt's transaction is open on this thread's connection. Await that attempt "
            "before the next statement, and before the work around it ends."
        )

    def leases(self, record_id: UUID) -> Iterator[Lease]:
        """Yield the leases on `record_id` whose locks this block and those around it hold."""
        if self.held is not None and self.held.record_id == record_id:
            yield self.held
        if self.outer is not None:
            yield from self.outer.leases(record_id)

    def __enter__(self) -> None:
        self._connection = connection = connections[self.using]
        begins = not connection.in_atomic_block
        self.outer = outer = None if begins else self.on(connection)
        if not begins and self.is_foreign(connection):
            raise self.open_error()
        is_within = self.of_coroutine and not begins and is_open(connection)
        if outer is not None and outer.commits and connection.atomic_blocks[-1] is outer:
            self.ends_with_commit = True
            self.savepoint, outer.has_savepoint = not outer.has_savepoint, False
        try:
            super().__enter__()
        except Error as error:
            raise not_begun(connection, error) from error
        if not self.savepoint and not connection.needs_rollback:
            connection.savepoint_ids[-1] = SAVEPOINT
        self.watch = RollbackWatch(connection)
        if is_within and (outer is None or outer.owner is not self.owner):
            # The first: where a project leaves a wrapper of its own, Django takes the last one.
            connection.execute_wrappers.insert(0, self._keep_out)
        if begins and connection.commit_on_exit:
            # It is this block that commits, or does not. With autocommit off its end does neither.
            self.commits = self.may_close = True
            connection.on_commit(self._note_commit)

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        connection: Any = self._connection
        if self.of_coroutine and self._keep_out in connection.execute_wrappers:
            connection.execute_wrappers.remove(self._keep_out)
        if self.is_cut:
            if exc_type is None:
                raise self.open_error()
            return
        if self.of_coroutine:
            self._cut_inner(connection)
        self.watch.end()
        stands = exc_type is None and not connection.needs_rollback
        if self.ends_with_commit and stands and connection.savepoint_ids:
            connection.savepoint_ids[-1] = None  # no RELEASE: the COMMIT follows
        try:
            if exc_type is None and self.refusal is not None:
                self._refuse(self.refusal)
            else:
                super().__exit__(exc_type, exc_value, traceback)
        except (InterfaceError, InternalError, OperationalError) as error:
            # psycopg's is an InternalError where PgBouncer, too, says that the session was lost.
            if self.committed or not is_connection_failure(error):
                raise
            if exc_type is None:
                raise StoreError("The connection was lost at the COMMIT.") from error
            return  # the session is gone, and all of it is undone: what was raised passes on
        if self.is_cut and exc_type is None:
            raise self.open_error()

    def _refuse(self, refusal: Exception) -> None:
        """Leave as Django does after a COMMIT that has failed: what the server said passes on."""
        try:
            with self._connection.wrap_database_errors:
                raise refusal
        except Error as error:
            super().__exit__(type(error), error, error.__traceback__)
            raise

    def _cut_inner(self, connection: Any) -> None:
        """
        Take along the blocks of a coroutine that has not ended: Django would leave those in place.

        So all that was done since this block began is rolled back.
        """
        if self not in connection.atomic_blocks:
            return
        while (inner := connection.atomic_blocks[-1]) is not self:
            connection.atomic_blocks.pop()
            connection.savepoint_ids.pop()
            connection.needs_rollback = self.is_cut = True
            if isinstance(inner, Block):
                inner.is_cut = True
                inner.watch.end()

    def _keep_out(
        self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any
    ) -> Any:
        """Refuse a statement of others; and its own, once a block around it has ended."""
        if (self.owner in running()) is self.is_cut:
            raise self.open_error()
        return execute(sql, params, many, context)

    def _note_commit(self) -> None:
        self.committed = True
        if self._tell is not None:
            self._tell()


#: In the place of the transactions of work that has none on other aliases.
NO_ALIASES = AtomicBlocks(())


@dataclass
class WorkBlocks:
    """The transactions of the work, and what is known of their end."""

    #: Those on other aliases.
    beside: AtomicBlocks
    #: `single`: the transaction of claim, work and record, once it is open.
    whole: ExitStack = field(default_factory=ExitStack)
    #: The block in which the work and its record commit together, once it is open.
    work: ExitStack = field(default_factory=ExitStack)
    #: Whether the transaction of work and completion is known to have committed.
    committed: bool = False
    #: What a hook raised after those on other aliases had committed.
    raised_by_hook: Exception | None = None

    def note_commit(self) -> None:
        """Note that the transaction of work and completion has committed."""
        self.committed = True
