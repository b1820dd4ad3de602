"""
The payment provider's webhooks: an event counts once, however often it is delivered.

A provider that has not seen our 2xx in time delivers the event again, under the same id. That id is
the idempotency key.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections.abc import Callable
from datetime import timedelta
from functools import wraps

from django import forms
from django.conf import settings
from django.core.exceptions import PermissionDenied
from django.db.models import F
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from django_idempotency.http import idempotent
from example_project.shop.models import Order

View = Callable[[HttpRequest, str], HttpResponse]

#: Seconds that a signature may be old: what somebody has recorded cannot be sent again later.
MAX_AGE = 300


def signature(secret: str, event_id: str, timestamp: str, body: bytes) -> str:
    """
    Return what the provider signs an event with.

    The id is signed, too: else a recorded event would count again under a new one. A line break is
    in no header field, so it is clear where each part ends.
    """
    signed = b"\n".join([event_id.encode(), timestamp.encode(), body])
    return hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


def signed_by_provider(view: View) -> View:
    """Answer 403 to what the provider that the URL names has not signed."""

    @wraps(view)
    def checked(request: HttpRequest, provider: str) -> HttpResponse:
        if not _is_signed(request, getattr(settings, "WEBHOOK_SECRETS", {}).get(provider)):
            raise PermissionDenied
        return view(request, provider)

    return checked


def _is_signed(request: HttpRequest, secret: str | None) -> bool:
    event_id, timestamp, given = (
        request.headers.get(name, "")
        for name in ("Webhook-Id", "Webhook-Timestamp", "Webhook-Signature")
    )
    try:
        age = abs(time.time() - float(timestamp))
    except ValueError:
        return False
    if not secret or age > MAX_AGE:  # with an empty secret everybody could sign
        return False
    expected = signature(secret, event_id, timestamp, request.body)
    return hmac.compare_digest(given.encode(), expected.encode())


class PaymentForm(forms.Form):
    order = forms.UUIDField()
    amount = forms.IntegerField(min_value=1, max_value=10**12)


@csrf_exempt  # the signature says who it is, not a cookie
@require_POST
@signed_by_provider  # above the guard: a stranger claims no key, and sees no answer
@idempotent(
    header="Webhook-Id",
    required=True,
    # Ids of two providers never meet.
    scope=lambda request: f"provider:{request.resolver_match.kwargs['provider']}",
    # Longer than the provider goes on delivering.
    retention=timedelta(days=7),
)
def payment_received(request: HttpRequest, provider: str) -> HttpResponse:
    """Add a payment to its order."""
    try:
        form = PaymentForm(dict(json.loads(request.body)))
    except (TypeError, ValueError):
        return HttpResponse("Not a JSON object.", status=400, content_type="text/plain")
    if not form.is_valid():
        return JsonResponse(form.errors, status=400)
    order = Order.objects.filter(pk=form.cleaned_data["order"])
    if not order.update(paid=F("paid") + form.cleaned_data["amount"]):
        # A 404 is not kept: delivered again, the event is looked at again.
        raise Http404("There is no such order.")
    return HttpResponse(status=204)
