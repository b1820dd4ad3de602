"""Make the shop ready to start: ``python -m example_project.manage prepare``."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand


class Command(BaseCommand):
    """Does what a release needs, and may be run again at any time."""

    help = "Migrates the database, creates the table of DynamoDB if it is the store, and seeds."

    def handle(self, *args: Any, **options: Any) -> None:
        given = {"verbosity": options["verbosity"], "stdout": self.stdout}
        call_command("migrate", verbosity=options["verbosity"] - 1, stdout=self.stdout)
        if settings.IDEMPOTENCY["default"].get("BACKEND", "").endswith(".DynamoDBStore"):
            call_command("idempotency_table", "--create", **given)
        if getattr(settings, "SEED_KNOWN_PASSWORDS", False):
            call_command("seed", **given)
