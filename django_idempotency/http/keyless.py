"""A request without a key, to a guarded method: the same block, the same verdicts (R90)."""

from __future__ import annotations

from collections.abc import Callable

from django.db import connections
from django.http.response import HttpResponseBase

from django_idempotency.attempts import Unkept, check_rolled_back
from django_idempotency.conf import engine_for
from django_idempotency.exceptions import SessionLost
from django_idempotency.http.atomic_requests import AtomicRequests
from django_idempotency.http.calls import GuardedCall, served_alone, using
from django_idempotency.http.content import operation_of
from django_idempotency.http.problems import problem_response
from django_idempotency.http.sessions import RequestState
from django_idempotency.logs import log_store_error
from django_idempotency.stores.blocks import is_rolled_back

__all__ = ["ahandle", "handle"]


def handle(call: GuardedCall, *, joins: bool = True) -> HttpResponseBase:
    """Return the handler's response; what it raises passes on, when the work is rolled back."""
    store = engine_for(call.store).store
    joined = joins and call.mode(store, coroutine=False) != "separate"
    requests = AtomicRequests(without=call.exempt, beside=using(store) if joined else ())
    before = RequestState(call.request)
    try:
        with requests, served_alone(call.request):
            response: HttpResponseBase = call.handle()
            _check_verdict(call, response)
            _check_rollback(response, requests.rolled_back, requests.rollback_wished)
    except Exception as error:
        if requests and not requests.committed:
            before.restore()
        return _answer(call, error)
    return response


async def ahandle(call: GuardedCall) -> HttpResponseBase:
    """See `handle`: for a handler that is a coroutine."""
    engine = engine_for(call.store)
    store = engine.store
    mode = await store.in_thread(call.mode, store, coroutine=True)
    before = RequestState(call.request)
    try:
        async with engine.alone(mode):
            with served_alone(call.request):
                response: HttpResponseBase = await call.handle()
            if mode != "separate":
                _check_verdict(call, response)
                await store.in_thread(
                    _check_rollback,
                    response,
                    lambda: any(is_rolled_back(connections[alias]) for alias in using(store)),
                    store.rollback_wished,
                )
    except Exception as error:
        if mode != "separate":
            before.restore()
        return _answer(call, error)
    return response


def _check_verdict(call: GuardedCall, response: HttpResponseBase) -> None:
    """Raise Unkept where work that returned is rolled back (R57)."""
    verdict = call.verdict(response)
    if not call.commits(response, verdict):
        raise Unkept(verdict, response)


def _check_rollback(
    response: HttpResponseBase, rolled_back: Callable[[], bool], wished: Callable[[], bool]
) -> None:
    """Raise WorkRolledBack for a success that can only be rolled back (R91)."""
    if rolled_back():
        succeeded = response.status_code < 400
        check_rolled_back("a request without a key", wished=wished(), succeeded=succeeded)


def _answer(call: GuardedCall, error: Exception) -> HttpResponseBase:
    """Return the response to work that was rolled back; raise what passes on."""
    if isinstance(error, Unkept):
        response: HttpResponseBase = error.result
        return response
    if isinstance(error, SessionLost):
        log_store_error(call.store, operation_of(call.request), error)
        return problem_response(error, call.request, call.http, call.subject)
    raise error
