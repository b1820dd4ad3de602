"""One delivery of a task's message: from the key to the result, or to another try."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

from celery import Task
from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded, TaskPredicate
from celery.signals import task_postrun

from django_idempotency import keys
from django_idempotency.conf import Plan, fingerprint_secrets
from django_idempotency.context import running
from django_idempotency.contrib.celery.codec import NEVER_KEPT, Failed, Ignored
from django_idempotency.contrib.celery.guard import TaskGuard, copied, with_values
from django_idempotency.contrib.celery.messages import (
    is_first_delivery,
    mapping_task,
    seconds_to_stay,
    send_again,
)
from django_idempotency.contrib.celery.parents import noted_retries
from django_idempotency.contrib.celery.waits import DeliveryWaiter
from django_idempotency.engine.attempt import Attempt
from django_idempotency.engine.ending import RollBack
from django_idempotency.engine.operation import OpenTransactions, Operation
from django_idempotency.engine.waiting import Waiter
from django_idempotency.exceptions import (
    IdempotencyError,
    InProgress,
    InvalidKey,
    LeaseLost,
    ResultUnavailable,
    StoreError,
    TaskFailed,
    Uncertain,
)
from django_idempotency.fingerprint import Fingerprint
from django_idempotency.logs import log_refusal
from django_idempotency.observers import logger
from django_idempotency.records import Record, State
from django_idempotency.stores.base import BaseStore
from django_idempotency.stores.database import carried

_KIND = "task"
_DONE = "This task was carried out before."
#: What `Task.replace` raises an Ignore with.
_REPLACED = ("Replaced by new task",)
#: Seconds of a pause before a message goes back to the broker.
_PAUSE = 0.5


class DuplicateTask(IdempotencyError):
    """This task was carried out before under the same idempotency key."""


class KeepMessage(Reject, Ignore):  # type: ignore[misc]  # Celery is not typed
    """The broker must keep this message; an Ignore, so that ``autoretry_for`` does not catch it."""


class Delivery:
    """One delivery of a message, or one call of the task."""

    def __init__(
        self,
        guard: TaskGuard,
        task: Task,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> None:
        self.guard = guard
        self.task = task
        self.request = task.request
        self._scope = task.name if guard.scope is None else guard.scope
        self._arguments = guard.arguments(args, kwargs)
        self._args, self._kwargs = args, dict(kwargs)
        self._retried = False
        self._started = time.monotonic()
        #: Celery's own task that calls this one for each of many arguments, in a worker.
        self._mapping = mapping_task(task)
        if self._mapping is not None:  # whose time limits count from its first call
            vars(self._mapping.request).setdefault("idempotency_started", self._started)
        #: What this message waits with, once it has met another attempt.
        self._waiter: DeliveryWaiter | None = None
        #: The exception of the work.
        self._raised: Exception | None = None

    def carry_out(self) -> Any:
        """Return the task's result, its own or the stored one, or raise its other ending."""
        try:
            key = self._key()
        except InvalidKey as error:
            log_refusal(self.guard.store, self.task.name, error)
            raise
        if key is None:
            return self._work()
        plan = self.guard.plan()
        operation = self._operation_of(plan, key)
        self._operation, self._in_place = operation, self._is_in_place(operation.record_id)
        while True:
            attempt: Attempt | None = None
            try:
                with plan.engine.attempt(operation, self._kept_failure) as attempt:
                    if not attempt.replayed:
                        ending = self._ending()
                        if self._retried or (isinstance(ending, Ignored) and attempt.is_uncertain):
                            raise RollBack("fail", ending)
                        attempt.complete(ending)
            except (InProgress, ResultUnavailable) as refusal:
                if attempt is not None:  # it is the work's
                    raise
                if isinstance(refusal, InProgress):
                    self._make_way(refusal)
                else:
                    self._end_duplicate(refusal)
            except SoftTimeLimitExceeded:
                if attempt is not None or self._waiter is None or self._in_place:
                    raise
                self._send_again(1, "The time limit has ended a wait, and nothing has run.")
            except LeaseLost as lost:
                if not self._is_superseded(attempt, plan.store):
                    raise
                self._make_way(lost)
            else:
                return self._answer(attempt)

    # What is asked for.

    def _operation_of(self, plan: Plan, key: str) -> Operation:
        policy = plan.policy
        name = self.guard.operation or self.task.name
        asked = self.guard.asked(self._arguments)
        fingerprint = Fingerprint.of((name.encode(), asked), fingerprint_secrets(policy))
        open_transactions = OpenTransactions(plan.store)
        self._may_wait = open_transactions.may_wait
        return plan.operation(
            kind=_KIND,
            scope=self._scope,
            key=key,
            name=name,
            fingerprint=fingerprint,
            codec=self.guard.codec_for(self.task),
            mode=open_transactions.mode(policy),
            open_transactions=open_transactions,
            wait=policy.wait if self.guard.on_in_progress == "wait" else timedelta(0),
            closes_connections=not (self.request.called_directly or self.request.is_eager),
            make_waiter=self._wait_with,
        )

    def _key(self) -> str | None:
        """Return the key; None for a call that has neither a key nor an id; raise InvalidKey."""
        make_key = self.guard.key_of
        if make_key is None:
            return self._key_of_its_id()
        return keys.check(make_key(with_values(self._arguments), self.request))

    def _key_of_its_id(self) -> str | None:
        """Return the task's id as its key; None for a call that has no id of its own."""
        request = self.request
        if request.id is None:
            return None
        # A task that replaces itself goes on under its own id; eagerly, inside of itself. One that
        # calls itself as a function finds its own request again.
        around = {(it.request.scope, it.request.key) for it in running()}
        nesting = request.replaced_task_nesting
        scope = keys.bounded(self._scope)
        while (scope, keys.bounded(key := _key_of_id(request.id, nesting))) in around:
            if request.parent_id != request.id:
                return None
            nesting += 1
        return keys.check(key)

    # The work.

    def _work(self) -> Any:
        if self.request.called_directly:
            return self.guard.function(*self._args, **self._kwargs)
        # A retry sends the message's own arguments: what the work does to its own stays there.
        return self.guard.function(*copied(self._args), **copied(self._kwargs))

    def _ending(self) -> Any:
        self._raised = None
        retries: list[str] = []
        before = noted_retries.set(retries)
        try:
            ending = self._work()
        except Ignore as ignored:  # it has done its work, and has no result
            self._raised = ignored
            ending = Ignored()
            if ignored.args == _REPLACED and self.guard.key is not None:
                logger.warning(
                    "The task %s, which has a key, has replaced itself: a duplicate that has "
                    "another id never gets a result.",
                    self.task.name,
                )
        finally:
            noted_retries.reset(before)
            self._retried = self.request.id in retries
        if self._retried:
            logger.warning(
                "The task %s has sent a retry of itself and has gone on to its end: its record "
                "%s is failed, so that the retry runs.",
                self.task.name,
                keys.short(self._operation.record_id),
            )
        return ending

    def _kept_failure(self, error: Exception) -> Failed:
        """Return the stored form of the work's exception; raise RollBack, or the exception (C7)."""
        self._raised = error
        if isinstance(error, Reject):
            raise RollBack("release" if error.requeue else "fail", error=error)
        is_final = not isinstance(error, NEVER_KEPT) and not self._is_retried(error)
        if self.guard.on_failed == "replay" and is_final:
            failed = Failed.of(error)
            limit = self.guard.plan().policy.max_result_bytes
            if len(self.guard.codec_for(self.task).encode(failed)) <= limit:
                return failed
        sent_again = isinstance(error, TaskPredicate) or self._is_retried(error)
        is_told = isinstance(error, Uncertain)  # as an ERROR, with the name of the call
        if not (sent_again or is_told or self.request.called_directly):
            logger.warning(
                "The task %s has failed, and nothing sends it again. Its record %s is failed, so "
                "that the next task with this key runs, or goes on after its noted steps.",
                self.task.name,
                keys.short(self._operation.record_id),
            )
        raise error

    def _is_retried(self, error: Exception) -> bool:
        if self._retried:
            return True
        if self.request.called_directly or not self._is_autoretried(error):
            return False
        task = self.task
        # As `Task.retry`, which autoretry calls outside of us.
        most = getattr(task, "override_max_retries", None)
        if most is None:
            most = getattr(task, "retry_kwargs", {}).get("max_retries")
        if most is None:
            most = task.max_retries
        return most is None or self.request.retries < most

    def _is_autoretried(self, error: Exception) -> bool:
        retried = tuple(getattr(self.task, "autoretry_for", ()))
        excepted = tuple(getattr(self.task, "dont_autoretry_for", ()))
        return isinstance(error, retried) and not isinstance(error, excepted)

    # Another attempt has the key: what returns is tried again.

    def _wait_with(self, operation: Operation) -> Waiter:
        """Return what this message waits with; in place it waits as a call does."""
        policy, mapping = operation.policy, self._mapping
        if self._in_place and mapping is None:
            return Waiter(operation.record_id, operation.wait, policy.on_stale)
        if self._waiter is None:
            task, started = self.task, self._started
            if mapping is not None:
                task, started = mapping, mapping.request.idempotency_started
            self._waiter = DeliveryWaiter(
                operation.record_id,
                policy,
                operation.wait,
                first=is_first_delivery(task.request),
                most=seconds_to_stay(task, started) if self._may_wait else 0,
                finds_out=self.guard.on_in_progress == "retry",
            )
            # A call of a map cannot be sent again by itself, and its error would end the map.
            self._waiter.stays = mapping is not None and self.guard.on_in_progress == "retry"
        return self._waiter

    def _make_way(self, error: InProgress | LeaseLost) -> None:
        """
        End as `on_in_progress` says, or return: another attempt is running, or was faster (C6).

        A message whose owner may be dead ends in no other way than by its work, its result, or by
        being sent again (C8).
        """
        wish = self.guard.on_in_progress
        superseded = isinstance(error, LeaseLost)
        undecided = isinstance(error, InProgress) and error.stale
        known = superseded or undecided or self._waiter is None or self._waiter.alive
        if wish == "ignore" and known:
            raise Ignore(str(error)) from error
        if undecided or self._in_place or (wish != "retry" and known):
            raise error
        if isinstance(error, InProgress):
            self._send_again(_countdown(error.record), "Another attempt is in progress.")

    def _is_in_place(self, record_id: UUID) -> bool:
        """Whether a message sent again would run at once, and again; inside of itself, forever."""
        if self.request.is_eager or self.request.called_directly:
            return True
        return record_id in [attempt.record_id for attempt in running()]

    def _send_again(self, countdown: float, why: str) -> None:
        """Send this message again; it does not count as a retry of the task. Return if it stays."""
        try:
            signature = send_again(self.task, countdown)
        except Exception as unsent:  # whatever it is, the message must not be lost
            text = _reason(unsent)
            if self._waiter is not None and self._waiter.stay():
                logger.warning(
                    "The message of the task %s stays in its delivery, since it cannot be sent "
                    "again: %s",
                    self.task.name,
                    text,
                )
                return
            if not self.task.acks_late:  # the message is gone: show it
                raise
            time.sleep(max(self._started + _PAUSE - time.monotonic(), 0))
            raise KeepMessage(text, requeue=True) from unsent
        raise Retry(why, when=countdown, sig=signature)

    def _is_superseded(self, attempt: Attempt | None, store: BaseStore) -> bool:
        """
        Whether this attempt stalled and another one runs, whose result becomes the task's.

        If no attempt holds the record or has completed it, an operator has ended the lease, or the
        record is gone: to run again would be a second effect (C16). Without renewal, or after
        `max_duration`, this attempt is slow, not stalled: it would take over in its turn.
        """
        if attempt is None:  # nothing has run
            return True
        policy = attempt.operation.policy
        renewed = policy.renew and policy.deadline is None and attempt.lease.renewable
        since = self._started if attempt.notes is None else attempt.notes.noted_at
        ran = time.monotonic() - since
        if not renewed or ran >= policy.max_duration.total_seconds():
            return False
        try:
            record = store.get(self._operation.record_id)
        except StoreError:  # nothing shows another attempt
            return False
        if record is None or record.expired:
            return False
        return record.live or record.state is State.COMPLETED

    def _answer(self, attempt: Attempt) -> Any:
        ending = attempt.result
        if not attempt.replayed:
            if self._raised is not None:
                raise self._raised
            return ending
        self._end_duplicate()
        if isinstance(ending, Ignored):
            raise Ignore(_DONE)
        if isinstance(ending, Failed):
            raise self._final(TaskFailed(ending.kind, ending.arguments))
        return ending

    def _end_duplicate(self, refusal: ResultUnavailable | None = None) -> None:
        """End a duplicate as `on_duplicate` says; return if it gets its result, unless refused."""
        if self.guard.on_duplicate == "ignore":
            raise Ignore(str(refusal or _DONE)) from refusal
        if self.guard.on_duplicate == "raise":
            raise self._final(DuplicateTask()) from refusal
        if refusal is not None:
            raise self._final(refusal)

    def _final(self, error: Exception) -> Exception:
        """Return the error of the record, so that no retry follows: it would get the same error."""
        if self._is_autoretried(error):
            # autoretry calls `Task.retry` outside of us, which raises the error itself for a task
            # that is called as a function.
            self.request.called_directly = True
        return error


def _key_of_id(task_id: str, nesting: int) -> str:
    return f"{task_id}#{nesting}" if nesting else task_id


def _reason(error: BaseException) -> str:
    """Return an error's type and text; of one without a text, as kombu's may be, the cause."""
    name, text = type(error).__name__, str(error)
    if not text and error.__cause__ is not None:
        text = _reason(error.__cause__)
    return f"{name}: {text}" if text else name


def _countdown(record: Record | None) -> float:
    """Return the countdown: the other's running time, within its lease, at least 1 s (C6)."""
    if record is None or record.running_for is None or record.lease_left is None:
        return 1
    return max(min(record.running_for, record.lease_left), 1)


def _forget_sessions(sender: Task, **kwargs: Any) -> None:
    """Let the next task of a worker's thread open its own sessions (R98)."""
    if not sender.request.is_eager:  # or else its caller goes on with them
        carried.forget()


task_postrun.connect(_forget_sessions, dispatch_uid="django_idempotency.sessions", weak=False)
