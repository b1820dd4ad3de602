"""The commands that docs/howto/commands.md shows write what it says."""

from __future__ import annotations

import io
import re
import shlex
import sys
from datetime import timedelta
from types import ModuleType
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.http import HttpResponse
from django.urls import path
from django.utils import timezone

import django_idempotency as idempotency
from django_idempotency.http import idempotent
from django_idempotency.models import IdempotencyRecord
from tests.pages import BLOCKS, DOCS

PAGE = DOCS / "howto" / "commands.md"
#: What differs from one run to another, and what it is in both.
MASKS = (
    (r"[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}", "RECORD"),
    (r"\b[0-9a-f]{8}-[0-9a-f]{3}\b", "SHORT"),
    (r"\b[0-9a-f]{64}\b", "FINGERPRINT"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d\d:\d\d", "TIME"),
    (r"\(in [^)]+\)|\([^)]+ ago\)", "(SPAN)"),
    (r"\d+ min \d+ s old", "OLD"),
    (r"\d+ min \d+ s ago", "AGO"),
    (r"\b\d{16}\b", "EPOCH"),
)


def masked(text: str) -> str:
    for pattern, name in MASKS:
        text = re.sub(pattern, name, text)
    return text.strip()


@pytest.fixture
def shop(db: None, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The records and the view of the page."""
    settings.IDEMPOTENCY = {"default": {}}
    views, urls = ModuleType("shop.views"), ModuleType("shop.urls")

    def pay(request: Any) -> HttpResponse:
        return HttpResponse()

    pay.__module__, pay.__qualname__ = "shop.views", "pay"
    view = idempotent(required=True, lease=120)(pay)
    urls.urlpatterns = [path("pay/", view)]  # type: ignore[attr-defined]
    for module in (ModuleType("shop"), views, urls):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    settings.ROOT_URLCONF = "shop.urls"
    alice = User.objects.create_user("alice", pk=7)
    for number, scope in enumerate(("billing", "refunds", f"user:auth.user:{alice.pk}")):
        idempotency.run(
            lambda lease: {"charge": "ch_1"},
            key="order-17",
            scope=scope,
            operation="charge",
            retention=timedelta(hours=24, seconds=number),
        )
    for number in (18, 19):
        retention = timedelta(hours=24, seconds=number)  # SQLite's clock has milliseconds
        begun = idempotency.attempt(key=f"order-{number}", scope="billing", retention=retention)
        with pytest.raises(KeyboardInterrupt), begun:
            raise KeyboardInterrupt

    def half(lease: Any) -> None:
        lease.step("order", lambda: {"id": 17})
        lease.step("charge", lambda: {"status": "declined"})
        raise TimeoutError

    with pytest.raises(TimeoutError):
        idempotency.run(
            half, key="order-20", scope="shop", operation="checkout", transaction="steps"
        )

    def uncertain(lease: Any) -> None:
        lease.step("order", lambda: {"id": 17})
        lease.external("charge", lambda key: 1 / 0, uncertain="refuse")

    with pytest.raises(ZeroDivisionError):
        idempotency.run(
            uncertain, key="order-21", scope="shop", operation="checkout", transaction="steps"
        )
    past = timezone.now() - timedelta(minutes=3, seconds=20)
    IdempotencyRecord.objects.update(created_at=past, updated_at=past)
    stale = IdempotencyRecord.objects.filter(key__in=["order-18", "order-19"])
    assert stale.update(state="IN_PROGRESS", lease_until=past) == 2


def outputs() -> list[str]:
    """Run the page's commands in their order; return each with what it has written."""
    found = []
    for block in BLOCKS:
        if block.page != PAGE or block.language != "console":
            continue
        command = block.text.splitlines()[0]
        _, _, name, *words = shlex.split(command.removeprefix("$ "))
        written = io.StringIO()
        call_command(name, *words, stdout=written, stderr=written)
        found.append(f"{command}\n{written.getvalue().rstrip()}")
    return found


def test_commands_write_what_the_page_shows(shop: None) -> None:
    shown = [block.text for block in BLOCKS if block.page == PAGE and block.language == "console"]
    told = outputs()
    assert len(told) == 11
    assert [masked(text) for text in told] == [masked(text) for text in shown]
