"""Fill the shop: ``python -m example_project.manage seed``."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError
from django.db import transaction

from example_project.shop.models import Account

PASSWORDS = {"alice": "alice-demo", "bob": "bob-demo", "admin": "admin-demo"}
ACCOUNTS = [
    ("alice", "everyday", "EUR", 500_00),
    ("alice", "savings", "EUR", 2_000_00),
    ("alice", "travel", "USD", 300_00),
    ("bob", "everyday", "EUR", 500_00),
]


class Command(BaseCommand):
    """Adds what is missing and changes nothing that is there, balances included."""

    help = "Creates the users alice, bob and admin, with known passwords, and their accounts."

    @transaction.atomic
    def handle(self, *args: Any, **options: Any) -> None:
        if not getattr(settings, "SEED_KNOWN_PASSWORDS", False):
            raise CommandError("Known passwords are for EXAMPLE_DEBUG=1 and the demo.")
        users = {}
        for name, password in PASSWORDS.items():
            staff = name == "admin"
            user, created = User.objects.get_or_create(
                username=name, defaults={"is_staff": staff, "is_superuser": staff}
            )
            if created:
                user.set_password(password)
                user.save(update_fields=["password"])
            self._report(created, f"user {name}, password {password}", options)
            users[name] = user
        for owner, name, currency, balance in ACCOUNTS:
            account, created = Account.objects.get_or_create(
                owner=users[owner], name=name, defaults={"currency": currency, "balance": balance}
            )
            text = f"account {account.pk} ({account}): {account.balance / 100:.2f} {currency}"
            self._report(created, text, options)

    def _report(self, created: bool, what: str, options: dict[str, Any]) -> None:
        if options["verbosity"]:
            self.stdout.write(f"{'added' if created else 'there'}: {what}")
