"""The parent of a task: the header that names the work that sent it, and keys derived from it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from inspect import BoundArguments
from typing import Any
from uuid import UUID

from celery import current_task
from celery.app.task import Context
from celery.signals import before_task_publish

from django_idempotency import keys
from django_idempotency.arguments import key_maker
from django_idempotency.context import current
from django_idempotency.exceptions import InvalidKey

#: The header of a message with what its children's keys are made of: the seed of the work that sent
#: it. Version 1 sent the record id; its workers make the same keys of either.
HEADER = "idempotency_parent"
#: The header with the record id of that work, for people who look for it.
RECORD_HEADER = "idempotency_parent_record"

#: Set while the work of a task runs: takes the ids of the tasks that send a retry of themselves.
noted_retries: ContextVar[list[str] | None] = ContextVar("idempotency_retries", default=None)


@dataclass(frozen=True)
class from_parent:
    """
    A key for `idempotent_task` that is derived from the guarded work that starts the task.

    So a parent that is replayed, or that runs again, starts no second child. `name` distinguishes
    the children of one parent. It may be a template over the arguments, ``"receipt-{order_id}"``.
    Raises TypeError for other values than text.
    """

    name: str

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise TypeError(f"from_parent() takes the name of a child, not {self.name!r}.")

    def maker(self, signature: inspect.Signature) -> Callable[[BoundArguments, Context], str]:
        """Return the function that makes a call's key; TypeError for a name that does not fit."""
        templated = key_maker(self.name, signature) if "{" in self.name else None

        def make_key(arguments: BoundArguments, request: Context) -> str:
            parent = parent_of(request)
            if parent is None:
                raise InvalidKey(
                    f"from_parent({self.name!r}) needs a parent: start this task inside guarded "
                    f"work."
                )
            return str(keys.derive(parent, templated(arguments) if templated else self.name))

        return make_key


def parent_of(request: Context) -> UUID | None:
    """Return the seed of the guarded work that started the task; None if there is none."""
    given = (request.headers or {}).get(HEADER)
    if given is None:  # eager, or called as a function: then its parent is around it
        lease = current()
        return None if lease is None else lease.seed
    try:
        return UUID(given)
    except (AttributeError, TypeError, ValueError):
        raise InvalidKey(f"The header {HEADER} of this message is not a UUID.") from None


def _name_parent(
    sender: str | None = None,
    headers: dict[str, Any] | None = None,
    body: Any = None,
    **kwargs: Any,
) -> None:
    """
    Write the seed and the record id of the guarded work that a message comes from into its headers.

    What a task sends outside of guarded work (the next step of its chain, its links, the body of
    its chord) comes from the work that the task itself comes from.
    """
    if headers is None:
        return
    described = headers if "id" in headers else body  # protocol 2, protocol 1
    task = current_task._get_current_object()
    itself = task is not None and (described["id"], sender) == (task.request.id, task.name)
    noted = noted_retries.get()
    if itself and noted is not None and described["retries"] > task.request.retries:
        noted.append(described["id"])
    if HEADER in headers:
        return
    lease = current()
    if lease is not None and not itself:  # a task's own retry is not its child
        headers[HEADER] = str(lease.seed)
        headers[RECORD_HEADER] = str(lease.record_id)
    elif lease is None and task is not None:
        given = task.request.headers or {}
        headers.update({name: given[name] for name in (HEADER, RECORD_HEADER) if name in given})


before_task_publish.connect(_name_parent, dispatch_uid="django_idempotency.parent", weak=False)
