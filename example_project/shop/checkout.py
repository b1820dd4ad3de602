"""The checkout: a plain HTML form, whose button may be pressed twice."""

from __future__ import annotations

import uuid

from django import forms
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render

from django_idempotency.http import idempotent
from example_project.shop.models import Order

PRICES = {Order.Product.COFFEE: 12_50, Order.Product.TEA: 8_00}  # cents


class CheckoutForm(forms.Form):
    product = forms.ChoiceField(
        choices=[(p.value, f"{p.label}, {price / 100:.2f} EUR") for p, price in PRICES.items()]
    )
    quantity = forms.IntegerField(min_value=1, max_value=10, initial=1)
    note = forms.CharField(max_length=100, required=False)

    def order(self) -> Order:
        """Place the order."""
        data = self.cleaned_data
        total = PRICES[data["product"]] * data["quantity"]
        return Order.objects.create(**data, total=total)


@idempotent(required=True)
def checkout(request: HttpRequest) -> HttpResponse:
    """
    Show the form, and make one order of each form that is shown.

    The template's ``{% idempotency_key %}`` names this showing of the form. Of two clicks the
    second waits for the first, and gets the same redirect. Nobody needs to be logged in: a
    visitor's key belongs to the session, a user's to the user.
    """
    if request.method != "POST":
        return render(request, "shop/checkout.html", {"form": CheckoutForm()})
    form = CheckoutForm(request.POST)
    if not form.is_valid():
        # 400, not 200: a success would be kept, and this was none.
        return render(request, "shop/checkout.html", {"form": form}, status=400)
    return redirect(form.order())


def order_page(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    """Show an order."""
    order = get_object_or_404(Order, pk=pk)
    context = {"order": order, "total": f"{order.total / 100:.2f}"}
    return render(request, "shop/order.html", context)
