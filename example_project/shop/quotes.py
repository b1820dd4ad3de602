"""An asynchronous view: it waits for somebody else, and holds no transaction meanwhile."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

from django import forms
from django.contrib.auth.decorators import login_required
from django.db.transaction import non_atomic_requests
from django.http import HttpRequest, JsonResponse
from django.views.decorators.http import require_POST

from django_idempotency.http import idempotent
from example_project.shop.models import CURRENCIES, Quote

RATES = {("EUR", "USD"): Decimal("1.0842"), ("USD", "EUR"): Decimal("0.9210")}


async def current_rate(sell: str, buy: str) -> Decimal:
    """Stand in for a call to the exchange."""
    await asyncio.sleep(0.05)
    return RATES[sell, buy]


class QuoteForm(forms.Form):
    sell = forms.ChoiceField(choices=CURRENCIES)
    buy = forms.ChoiceField(choices=CURRENCIES)
    amount = forms.IntegerField(min_value=1, max_value=10**12)

    def clean(self) -> dict[str, Any]:
        data = self.cleaned_data
        if data.get("sell") == data.get("buy"):
            raise forms.ValidationError("Choose two different currencies.")
        return data


@login_required  # above the guard: a key belongs to a user
@require_POST
# "separate" is the default of coroutines. A crash between the quote and its record may cost a
# second quote, which does no harm; where it would, see the library's "downstream" how-to.
@idempotent(required=True, transaction="separate")
@non_atomic_requests  # Django has no transaction for a coroutine, and refuses to leave it out
async def create_quote(request: HttpRequest) -> JsonResponse:
    """Offer a rate. A retry gets the rate that was offered, though it has moved since."""
    form = QuoteForm(request.POST)
    if not form.is_valid():
        return JsonResponse(form.errors, status=400)
    owner = await request.auser()
    assert owner.is_authenticated  # login_required has seen to it
    rate = await current_rate(form.cleaned_data["sell"], form.cleaned_data["buy"])
    quote = await Quote.objects.acreate(owner=owner, rate=rate, **form.cleaned_data)
    answer = {"id": quote.pk, "rate": str(rate), "receives": round(quote.amount * rate)}
    return JsonResponse(answer, status=201)
