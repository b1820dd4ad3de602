"""The shop's first page: what there is to click on, and as whom."""

from __future__ import annotations

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from example_project.shop.management.commands.seed import PASSWORDS


def start_page(request: HttpRequest) -> HttpResponse:
    """Show the links and, where `seed` makes them, the users and their known passwords."""
    is_seeded = getattr(settings, "SEED_KNOWN_PASSWORDS", False)
    return render(request, "shop/start.html", {"users": PASSWORDS if is_seeded else {}})
