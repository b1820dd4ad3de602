"""A request without a key, to a guarded method: the same block, the same verdicts (R90)."""

from __future__ import annotations

from collections.abc import Collection
from threading import Event
from typing import NoReturn

from asgiref.sync import sync_to_async
from django.db import connections
from django.http.response import HttpResponseBase

from django_idempotency.engine.operation import RollBack, refuse_rollback
from django_idempotency.engine.transactions import OpenTransactions
from django_idempotency.exceptions.base import SessionLost
from django_idempotency.http.atomic_requests import AtomicRequests
from django_idempotency.http.calls import GuardedCall, served_alone, using
from django_idempotency.http.problems import problem_response
from django_idempotency.http.sessions import RequestState
from django_idempotency.logs import log_store_error
from django_idempotency.stores.database.atomic import is_rolled_back

__all__ = ["ahandle", "handle"]


def handle(call: GuardedCall, *, without: Collection[str] = ()) -> HttpResponseBase:
    """
    Return the handler's response; its exceptions pass on after the work is rolled back.

    Opens no transaction on the aliases `without`.
    """
    joined = _mode(call, coroutine=False) != "separate"
    beside = using(call.plan.store).difference(without) if joined else ()
    requests = AtomicRequests(without={*call.exempt, *without}, beside=beside)
    before, deliberate, begun = RequestState(call.request), False, False
    try:
        with requests, served_alone(call.request):
            begun = True
            response = call.handle()
            _check_verdict(call, response)
            if requests.rolled_back():
                deliberate = requests.rollback_is_deliberate()
                _refuse_rollback(response, deliberate=deliberate)
    except Exception as error:
        if not begun and _opens(call, error):
            return handle(call, without=using(call.plan.store))
        if requests and not requests.committed and not deliberate:
            before.restore()
        return _answer(call, error)
    return response


async def ahandle(call: GuardedCall) -> HttpResponseBase:
    """See `handle`: for a handler that is a coroutine."""
    mode, before = await sync_to_async(_before)(call)
    deliberate: bool | None = None
    committed, begun = Event(), False
    try:
        async with call.plan.engine.alone(mode, committed=committed.set):
            begun = True
            with served_alone(call.request):
                response = await call.ahandle()
            if mode != "separate":
                deliberate = await sync_to_async(_judge)(call, response)
                if deliberate is not None:
                    _refuse_rollback(response, deliberate=deliberate)
    except Exception as error:
        if not begun and _opens(call, error):
            return await call.ahandle()
        if mode != "separate" and not committed.is_set() and not deliberate:
            before.restore()
        return _answer(call, error)
    return response


def _opens(call: GuardedCall, error: Exception) -> bool:
    """Whether the handler runs without a transaction of the store, which is not there (R61)."""
    if not isinstance(error, SessionLost) or not call.opens_for(error):
        return False
    log_store_error(call.plan.alias, call.operation, error)
    return True


def _mode(call: GuardedCall, *, coroutine: bool) -> str:
    return call.mode(OpenTransactions(call.plan.store), coroutine=coroutine)


def _before(call: GuardedCall) -> tuple[str, RequestState]:
    """Return how a coroutine commits, and what its request has: that may be in the database."""
    return _mode(call, coroutine=True), RequestState(call.request)


def _judge(call: GuardedCall, response: HttpResponseBase) -> bool | None:
    """
    Take the verdict on the work of a coroutine, on the thread of its connection.

    Returns None where the work may commit; else whether its rollback is deliberate.
    """
    _check_verdict(call, response)
    store = call.plan.store
    rolled_back = any(is_rolled_back(connections[alias]) for alias in using(store))
    return store.rollback_is_deliberate() if rolled_back else None


def _check_verdict(call: GuardedCall, response: HttpResponseBase) -> None:
    """Raise RollBack where work that returned is rolled back (R57)."""
    verdict = call.verdict(response)
    if not call.commits(response, verdict):
        raise RollBack(verdict, response)


def _refuse_rollback(response: HttpResponseBase, *, deliberate: bool) -> NoReturn:
    """
    End work that returned, but whose transaction can only be rolled back (R91).

    Rolls back on every alias, so that no half of the work stays, and none of its hooks runs.
    """
    succeeded = response.status_code < 400
    refuse_rollback("a request without a key", response, deliberate=deliberate, succeeded=succeeded)


def _answer(call: GuardedCall, error: Exception) -> HttpResponseBase:
    """Return the response to work that was rolled back, or raise its error."""
    if isinstance(error, RollBack):
        response: HttpResponseBase = error.result
        return response
    if isinstance(error, SessionLost):
        log_store_error(call.plan.alias, call.operation, error)
        return problem_response(error, call.request, call.http, call.subject)
    raise error
