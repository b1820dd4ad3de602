"""What only the demo does to the shop: stop a payment half-way, take the guard off."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from django.apps import AppConfig
from django.db.models.signals import post_save

# Names a pipe: while it exists, a payment stops half-way and writes its process id into it.
PAUSE_FILE = "EXAMPLE_PAUSE_FILE"
# Takes the guard off the views, to show that the story notices.
UNGUARDED = "EXAMPLE_UNGUARDED"


class DemoConfig(AppConfig):
    name = "example_project.demo"

    def ready(self) -> None:
        if PAUSE_FILE in os.environ:
            post_save.connect(pause, sender="shop.Payment")
        if os.environ.get(UNGUARDED) == "1":
            take_the_guard_off()


def pause(created: bool, **kwargs: Any) -> None:
    """Wait to be killed: the payment's row is written, its transaction still open."""
    pipe = Path(os.environ[PAUSE_FILE])
    if created and pipe.is_fifo():
        pipe.write_text(f"{os.getpid()}\n")
        time.sleep(60)


def take_the_guard_off() -> None:
    from example_project.shop.views import PaymentViewSet, TransferViewSet

    for view in (PaymentViewSet, TransferViewSet):
        view.idempotency_actions = frozenset()
