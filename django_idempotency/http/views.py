"""The guard around plain Django views, for the decorators, the mixin and the middleware."""

from __future__ import annotations

from asgiref.sync import sync_to_async
from django.http.response import HttpResponseBase

from django_idempotency.http.atomic_requests import atomic_of, blocks_on, refuse_coroutine
from django_idempotency.http.guard import Guard, is_guarded_already
from django_idempotency.http.handlers import ViewHandler
from django_idempotency.http.plans import ViewPlan


def guarded(plan: ViewPlan, handler: ViewHandler) -> HttpResponseBase:
    """Return the response of a view; its exceptions pass on unchanged."""
    request = handler.subject
    if is_guarded_already(request):
        within: HttpResponseBase = handler.unguarded()
        return within
    request.idempotency = None
    if not plan.guards(request):
        with blocks_on(atomic_of(request)):
            unguarded: HttpResponseBase = handler.unguarded()
        return unguarded
    atomic, keyed = plan.atomic(atomic_of(request)), plan.carries_key(request)
    return Guard(plan, request, handler, atomic=atomic, keyed=keyed).respond()


async def aguarded(plan: ViewPlan, handler: ViewHandler) -> HttpResponseBase:
    """See `guarded`: for a view that is a coroutine."""
    request = handler.subject
    if is_guarded_already(request):
        within: HttpResponseBase = await handler.unguarded()
        return within
    request.idempotency = None
    if not plan.guards(request):
        return await aunguarded(plan, handler)
    keyed = request.META.get(plan.key_field) is not None
    if not keyed:  # to look into a form may take the session, and so the database
        keyed = await sync_to_async(plan.carries_key, thread_sensitive=True)(request)
    atomic = plan.atomic(atomic_of(request))
    return await Guard(plan, request, handler, atomic=atomic, keyed=keyed).arespond()


async def aunguarded(plan: ViewPlan, handler: ViewHandler) -> HttpResponseBase:
    """Await the view in the transaction that the policy gives it for ATOMIC_REQUESTS (R96)."""
    atomic, using = plan.atomic(atomic_of(handler.subject)), plan.store.using
    joins = plan.policy.transaction in ("joined", "single")
    refuse_coroutine(atomic, using if joins else None)
    mode = "joined" if joins and using in atomic else "separate"
    async with plan.engine.aattempt(plan.unrecorded("", transaction=mode)) as attempt:
        attempt.complete(await handler.unguarded())
    response: HttpResponseBase = attempt.result
    return response
