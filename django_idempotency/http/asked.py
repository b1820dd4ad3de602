"""What a request asks of its guard: whose key it has, and the operation that is to run once."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from functools import partial

from django.http import HttpRequest

from django_idempotency import keys
from django_idempotency.engine.modes import OpenTransactions
from django_idempotency.engine.operation import Operation
from django_idempotency.exceptions import InvalidKey, KeyRequired, ScopeMissing
from django_idempotency.http import scopes
from django_idempotency.http.atomic_requests import refuse_coroutine
from django_idempotency.http.content import (
    ask,
    endpoint_of,
    fingerprint_of,
    form_key,
    operation_of,
)
from django_idempotency.http.handlers import ViewHandler
from django_idempotency.http.plans import ViewPlan

_KIND = "http"
#: How long the second click on a form's button waits for the page of the first (R89).
_FORM_WAIT = timedelta(seconds=10)
_NO_WAIT = timedelta(0)
_PREFER_WAIT = re.compile(r'(?:^|[,;\s])wait\s*=\s*"?(\d{1,6})', re.IGNORECASE)


class Asked:
    """What one request to a guarded method asks for."""

    key = ""

    def __init__(
        self,
        plan: ViewPlan,
        request: HttpRequest,
        handler: ViewHandler,
        *,
        atomic: Sequence[str],
        keyed: bool,
    ) -> None:
        self.plan = plan
        self.http = plan.http_policy
        self.request = request
        self.handler = handler
        #: The aliases on which ATOMIC_REQUESTS gives the request a transaction.
        self.atomic = atomic
        #: Whether the request carries a key, or must carry one.
        self.keyed = keyed
        #: What is being done (R40).
        self.name = operation_of(request, plan.operation_name)

    def operation(self, *, coroutine: bool) -> Operation:
        """
        Read the request; raise KeyRequired, InvalidKey or ScopeMissing.

        One without a key is an operation without a record: the same block, the same verdicts (R90).
        """
        plan = self.plan
        if not self.keyed:
            mode = self._mode(OpenTransactions(plan.store), coroutine=coroutine)
            return self.unrecorded(joined=mode != "separate")
        from_form = self._read_key()
        scope = self._scope(from_form=from_form)
        handler, http = self.handler, self.http
        fingerprint = fingerprint_of(
            self.request, handler.subject, plan.policy, http, partial(handler.body, http), self.name
        )
        open_transactions = OpenTransactions(plan.store)
        mode = self._mode(open_transactions, coroutine=coroutine)
        wait = plan.policy.wait_or(_FORM_WAIT if from_form else _NO_WAIT)
        return plan.operation(
            kind=_KIND,
            scope=scope,
            key=self.key,
            name=self.name,
            fingerprint=fingerprint,
            codec=plan.codec,
            mode=mode,
            open_transactions=open_transactions,
            aliases=self.aliases(joined=mode != "separate"),
            wait=self._preferred(wait) if wait else wait,
            closes_connections=True,
            unstorable_ok=True,
            checks_replay=http.replay_check is not None,
        )

    def _mode(self, open_transactions: OpenTransactions, *, coroutine: bool) -> str:
        """Return how the work commits; refuse a coroutine that would lose its ATOMIC_REQUESTS."""
        plan = self.plan
        joins = not coroutine and (plan.joins or plan.store.using in self.atomic)
        mode = open_transactions.mode(plan.policy, joins=joins)
        if coroutine:
            refuse_coroutine(self.atomic, plan.store.using if mode != "separate" else None)
        return mode

    def aliases(self, *, joined: bool, without: Collection[str | None] = ()) -> list[str]:
        """Return the aliases of ATOMIC_REQUESTS on which the guard opens transactions."""
        own = self.plan.store.using if joined else None
        return [alias for alias in self.atomic if alias != own and alias not in without]

    def unrecorded(self, *, joined: bool, without: Collection[str | None] = ()) -> Operation:
        """Return the operation without a record, whose work may have the store's transaction."""
        return self.plan.unrecorded(
            self.name,
            transaction="joined" if joined else "separate",
            aliases=self.aliases(joined=joined, without=without),
        )

    def _read_key(self) -> bool:
        """Read the key; return whether it came in a form (R89)."""
        http, request = self.http, self.request
        field: str | None = request.META.get(self.plan.key_field)
        bounds = {"min_length": http.key_min_length, "max_length": http.key_max_length}
        if field is not None:
            self.key = keys.parse(field, strict=http.strict_header, **bounds)
        elif self.plan.form and (value := form_key(request, http)) is not None:
            if not value.isascii():
                raise InvalidKey(
                    "The idempotency key must be ASCII, in a form as in a header.", code="not_ascii"
                )
            self.key = keys.check(value, **bounds)
        else:
            raise KeyRequired
        if http.key_validator is not None:
            _validate(self.key, http.key_validator)
        return field is None

    def _scope(self, *, from_form: bool) -> str:
        """Return whose key it is, by the policy; raise ScopeMissing for an anonymous caller."""
        scope = self.http.scope or (
            scopes.user_or_session if from_form else self.handler.default_scope
        )
        found: str | None = ask("scope", scope, self.handler.subject)
        if found is not None and not isinstance(found, str):
            raise TypeError(f"scope must return a str, not {type(found).__name__}.")
        if not found:  # one bucket for all who name nobody would show them each other's answers
            raise ScopeMissing("The scope of this request is empty.")
        if not self.http.scope_endpoint:
            return found
        endpoint = endpoint_of(self.request, self.plan.operation_name)
        return scopes.of_endpoint(endpoint, found)

    def _preferred(self, wait: timedelta) -> timedelta:
        """Return how long this caller waits: the policy's time, or less if it prefers so (R51)."""
        preferred = _PREFER_WAIT.search(self.request.META.get("HTTP_PREFER") or "")
        return min(wait, timedelta(seconds=int(preferred[1]))) if preferred else wait


def _validate(key: str, validator: Callable[[str], None] | str) -> None:
    """Apply the policy's ``key_validator`` (R10); raise InvalidKey."""
    if callable(validator):
        ask("key_validator", validator, key)
        return
    is_uuid = re.fullmatch(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", key)
    if validator == "uuid" and not is_uuid:
        raise InvalidKey("The idempotency key must be a UUID.", code="not_uuid")
    if validator == "uuid7" and not (is_uuid and uuid.UUID(key).version == 7):
        raise InvalidKey("The idempotency key must be a UUID of version 7.", code="not_uuid7")
