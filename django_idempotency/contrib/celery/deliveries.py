"""One delivery of a task's message: from the key to the result, or to another try."""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from inspect import BoundArguments
from typing import Any, NoReturn

from celery import Task
from celery.exceptions import Ignore, Reject, Retry
from django.core.exceptions import ImproperlyConfigured
from kombu.exceptions import OperationalError

from django_idempotency import keys
from django_idempotency.arguments import bind
from django_idempotency.codecs import Codec
from django_idempotency.conf import Declaration, Plan, fingerprint_secrets
from django_idempotency.context import running
from django_idempotency.contrib.celery.codec import (
    NEVER_KEPT,
    Failed,
    Ignored,
    KombuCodec,
    TaskCodec,
    serializer_problem,
)
from django_idempotency.contrib.celery.parents import FromParent, noted_retries
from django_idempotency.engine.attempt import Attempt
from django_idempotency.engine.operation import Operation, RollBack
from django_idempotency.engine.transactions import OpenTransactions
from django_idempotency.exceptions import (
    IdempotencyError,
    InProgress,
    InvalidKey,
    LeaseLost,
    QuotaExceeded,
    ResultUnavailable,
)
from django_idempotency.fingerprint import Fingerprint, canonical_payload, version_1
from django_idempotency.logs import log_refusal
from django_idempotency.observers import logger

__all__ = ["Delivery", "DuplicateTask", "KeepMessage", "TaskGuard"]

_KIND = "task"
#: The longest countdown of a task over its quota: a broker may send what is unacknowledged again.
_LONGEST_PAUSE = 300


class DuplicateTask(IdempotencyError):
    """This task was carried out before under the same idempotency key."""


class KeepMessage(Reject, Ignore):  # type: ignore[misc]  # Celery is not typed
    """The broker must keep this message; an Ignore, so that ``autoretry_for`` does not catch it."""


@dataclass(kw_only=True)
class TaskGuard(Declaration[Plan]):
    """How a task is guarded: the arguments of `idempotent_task`, and the function below it."""

    function: Callable[..., Any]
    signature: inspect.Signature
    key: str | Callable[..., str] | FromParent | None
    #: Makes the key from the bound arguments and the request; None for the id of the task.
    key_of: Callable[[BoundArguments, Any], str] | None
    scope: str | None
    #: Makes the payload to compare from the bound arguments.
    payload_of: Callable[[BoundArguments], Any]
    #: The operation; empty for the task's name.
    operation: str
    on_duplicate: str
    on_in_progress: str
    on_failed: str
    codec: Codec | str | None

    def _plan(self, alias: Plan) -> Plan:
        return alias.with_fields(self.overrides)

    def serializer(self, task: Task) -> str | None:
        """Return the name of the serializer of its results; None with a codec of its own."""
        if self.codec is None:
            return str(task.serializer)
        return self.codec if isinstance(self.codec, str) else None

    def codec_for(self, task: Task) -> TaskCodec:
        """Return the codec of its results; raise ImproperlyConfigured for pickle."""
        if self.codec is not None and not isinstance(self.codec, str):
            return TaskCodec(self.codec)
        serializer = self.serializer(task) or ""
        if problem := serializer_problem(serializer):
            raise ImproperlyConfigured(f"Results of {task.name} cannot be kept: {problem}")
        return TaskCodec(KombuCodec(serializer, lambda: task.app.conf.accept_content))

    def arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> BoundArguments:
        """Return the arguments of a call, without the task itself; raise TypeError."""
        itself = bool(args) and isinstance(args[0], Task)
        return bind(self.signature, args, kwargs, own_first=itself)

    def asked(self, arguments: BoundArguments) -> bytes:
        """Return the canonical bytes of the payload (C3); raise TypeError."""
        return canonical_payload(_as_sent(self.payload_of(arguments)))


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
        if not self.request.called_directly:
            # A retry sends the message's own arguments: what the work does to its own stays there.
            args, kwargs = _copy(args), _copy(dict(kwargs))
        self._work = partial(guard.function, *args, **kwargs)
        self._retried = False
        self._started = time.monotonic()
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
        operation = self._operation(plan, key)
        self._record_id = operation.record_id
        attempt: Attempt | None = None
        try:
            with plan.engine.attempt(operation, self._kept_failure) as attempt:
                if not attempt.replayed:
                    ending = self._ending()
                    if self._retried:
                        raise RollBack("fail", ending)
                    attempt.complete(ending)
        except (InProgress, QuotaExceeded, ResultUnavailable) as refusal:
            if attempt is not None:  # it is the work's
                raise
            self._give_up(refusal)
        except LeaseLost as lost:
            if self._is_superseded(attempt, lost):
                self._make_way(lost)
            raise
        return self._answer(attempt)

    # What is asked for.

    def _operation(self, plan: Plan, key: str) -> Operation:
        policy = plan.policy
        name = self.guard.operation or self.task.name
        asked = self.guard.asked(self._arguments)
        fingerprint = Fingerprint.of(
            (name.encode(), asked),
            fingerprint_secrets(policy),
            version_1=lambda: version_1((_KIND.encode(), asked), policy.fingerprint_secrets),
        )
        open_transactions = OpenTransactions(plan.store)
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
        )

    def _key(self) -> str | None:
        """Return the key; None for a call that has neither a key nor an id; raise InvalidKey."""
        if self.guard.key_of is None:
            return self._key_of_its_id()
        return keys.check(self.guard.key_of(self._arguments, self.request))

    def _key_of_its_id(self) -> str | None:
        """Return the task's id as its key; None for a call that has no id of its own."""
        request = self.request
        if request.id is None:
            return None
        # A task that replaces itself goes on under its own id; eagerly, inside of itself. One that
        # calls itself as a function finds its own request again.
        around = {(attempt.scope, attempt.key) for attempt in running()}
        nesting = request.replaced_task_nesting
        while (self._scope, key := _key_of_id(request.id, nesting)) in around:
            if request.parent_id != request.id:
                return None
            nesting += 1
        return keys.check(key)

    # The work.

    def _ending(self) -> Any:
        retries: list[str] = []
        before = noted_retries.set(retries)
        try:
            ending = self._work()
        except Ignore as ignored:  # it has done its work, and has no result
            self._raised = ignored
            ending = Ignored()
        finally:
            noted_retries.reset(before)
            self._retried = self.request.id in retries
        if self._retried:
            logger.warning(
                "The task %s has sent a retry of itself and has gone on to its end: its record "
                "%s is failed, so that the retry runs.",
                self.task.name,
                keys.short(self._record_id),
            )
        return ending

    def _kept_failure(self, error: Exception) -> Failed:
        """Return the stored form of the work's exception; raise RollBack, or the exception (C7)."""
        self._raised = error
        if isinstance(error, Reject):
            raise RollBack("release" if error.requeue else "fail", error=error)
        if self.guard.on_failed == "replay" and self._is_final(error):
            failed = Failed.of(error)
            limit = self.guard.plan().policy.max_result_bytes
            if len(self.guard.codec_for(self.task).encode(failed)) <= limit:
                return failed
        raise error

    def _is_final(self, error: Exception) -> bool:
        """Whether nothing runs this task again: no retry, and no better luck either."""
        if isinstance(error, NEVER_KEPT):
            return False
        if self._retried:
            return False
        if self.request.called_directly or not self._is_autoretried(error):
            return True
        task = self.task
        # As `Task.retry`, which autoretry calls outside of us.
        most = getattr(task, "override_max_retries", None)
        if most is None:
            most = getattr(task, "retry_kwargs", {}).get("max_retries")
        if most is None:
            most = task.max_retries
        return most is not None and self.request.retries >= most

    def _is_autoretried(self, error: Exception) -> bool:
        retried = tuple(getattr(self.task, "autoretry_for", ()))
        excepted = tuple(getattr(self.task, "dont_autoretry_for", ()))
        return isinstance(error, retried) and not isinstance(error, excepted)

    # Its replacement.

    def _give_up(self, refusal: InProgress | QuotaExceeded | ResultUnavailable) -> NoReturn:
        """End without the work: another attempt has the key, or the scope has used its quota."""
        if isinstance(refusal, InProgress):
            self._make_way(refusal)
        if isinstance(refusal, QuotaExceeded):
            if self._is_in_place():
                raise refusal
            self._send_again(min(refusal.retry_after, _LONGEST_PAUSE), str(refusal))
        if self.guard.on_duplicate == "ignore":
            raise Ignore(str(refusal)) from refusal
        if self.guard.on_duplicate == "raise":
            raise self._final(DuplicateTask()) from refusal
        raise self._final(refusal)

    def _make_way(self, error: InProgress | LeaseLost) -> NoReturn:
        """End as `on_in_progress` says: another attempt is running, or was faster (C6)."""
        wish = self.guard.on_in_progress
        if wish == "ignore":
            raise Ignore(str(error)) from error
        undecided = isinstance(error, InProgress) and error.stale
        if wish == "retry" and not self._is_in_place() and not undecided:
            self._send_again(_countdown(error), "Another attempt is in progress.")
        raise error

    def _is_in_place(self) -> bool:
        """Whether a message sent again would run at once, and again; inside of itself, forever."""
        if self.request.is_eager or self.request.called_directly:
            return True
        return self._record_id in [attempt.record_id for attempt in running()]

    def _send_again(self, countdown: float, why: str) -> NoReturn:
        """Send this message again; it does not count as a retry of the task."""
        task = self.task
        signature = task.signature_from_request(self.request, countdown=countdown)
        try:
            # Bypasses the task's own `apply_async`: one that drops messages would lose this one,
            # which was sent already.
            Task.apply_async(task, signature.args, signature.kwargs, **signature.options)
        except OperationalError as error:
            if not task.acks_late:  # the message is gone: show it
                raise
            raise KeepMessage(error, requeue=True) from error
        raise Retry(why, when=countdown, sig=signature)

    def _is_superseded(self, attempt: Attempt | None, lost: LeaseLost) -> bool:
        """
        Whether this attempt stalled and another one runs, whose result becomes the task's.

        If the record is gone there is no other attempt, and to give way would lose the task.
        Without renewal, or after `max_duration`, this attempt is slow, not stalled: sent again, it
        would take over in its turn.
        """
        if lost.gone:
            return False
        if attempt is None:  # nothing has run
            return True
        lease, policy = attempt.lease, attempt.operation.policy
        ours = lost is not self._raised or lease.lost
        renewed = policy.renew and policy.deadline is None and lease.renewable
        ran = time.monotonic() - self._started
        return ours and renewed and ran < policy.max_duration.total_seconds()

    def _answer(self, attempt: Attempt) -> Any:
        ending = attempt.result
        if not attempt.replayed:
            if self._raised is not None:
                raise self._raised
            return ending
        if self.guard.on_duplicate == "raise":
            raise self._final(DuplicateTask())
        if self.guard.on_duplicate == "ignore" or isinstance(ending, Ignored):
            raise Ignore("This task was carried out before.")
        if isinstance(ending, Failed):
            raise self._final(ending.exception())
        return ending

    def _final(self, error: Exception) -> Exception:
        """Return the error of the record, so that no retry follows: it would get the same error."""
        if self._is_autoretried(error):
            # autoretry calls `Task.retry` outside of us, which raises the error itself for a task
            # that is called as a function.
            self.request.called_directly = True
        return error


def _key_of_id(task_id: str, nesting: int) -> str:
    return f"{task_id}#{nesting}" if nesting else task_id


def _countdown(error: InProgress | LeaseLost) -> float:
    """Return the countdown: the other's running time, within its lease, at least 1 s (C6)."""
    record = error.record if isinstance(error, InProgress) else None
    if record is None or record.running_for is None or record.lease_left is None:
        return 1
    return max(min(record.running_for, record.lease_left), 1)


def _copy(value: Any) -> Any:
    """Return a copy of `value` with new containers, of the kinds that messages have."""
    if type(value) in (list, tuple):
        return type(value)(_copy(item) for item in value)
    if type(value) is dict:
        return {name: _copy(item) for name, item in value.items()}
    return set(value) if type(value) is set else value


def _as_sent(value: Any) -> Any:
    """
    Return `value` with the names of members that JSON gives them: ``{1: …}`` becomes ``{"1": …}``.

    So a direct call and a message from the broker have the same payload.
    """
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, (dict, Mapping)):
        return {_name_as_sent(name): _as_sent(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_sent(item) for item in value]
    return value


def _name_as_sent(name: Any) -> Any:
    if isinstance(name, (bool, int, float)) or name is None:
        [name] = json.loads(json.dumps({name: None}))
    return name
