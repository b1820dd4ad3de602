"""The command about the table of the DynamoDB store."""

from __future__ import annotations

from typing import Any

from django.core.checks import ERROR
from django.core.management.base import CommandError, CommandParser

from django_idempotency.exceptions import StoreError
from django_idempotency.management.shell import ShellCommand, chosen_stores
from django_idempotency.stores.dynamodb import DynamoDBStore
from django_idempotency.stores.dynamodb import schema as dynamodb_schema
from django_idempotency.stores.dynamodb.templates import FORMATS


class Command(ShellCommand):
    """Print, create or check the table that the DynamoDB store needs."""

    help = (
        "Prints the table that the DynamoDB store needs, as CloudFormation, CDK or Terraform; "
        "creates it; or compares a live one with it."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("--store", help="the alias of IDEMPOTENCY; default: the only one")
        what = parser.add_mutually_exclusive_group()
        what.add_argument(
            "--format",
            choices=list(FORMATS),
            default="cloudformation",
            help="what to print (default: cloudformation)",
        )
        what.add_argument("--create", action="store_true", help="create the table")
        what.add_argument("--check", action="store_true", help="compare the live table")

    def handle(self, *args: Any, **options: Any) -> None:
        """Do what was asked for; exit code 1 for a table that is not as it should be."""
        store = self._store(options["store"])
        if options["check"]:
            self._check(store)
        elif options["create"]:
            self._create(store)
        else:
            self.stdout.write(FORMATS[options["format"]](store))

    def _store(self, alias: str | None) -> DynamoDBStore:
        ours = [it for it in chosen_stores(alias) if isinstance(it, DynamoDBStore)]
        if alias is not None and not ours:
            raise CommandError(f"{alias!r} is not a DynamoDB store.", returncode=2)
        if len(ours) != 1:
            aliases = ", ".join(store.alias for store in ours) or "none"
            raise CommandError(
                f"Choose a DynamoDB store of IDEMPOTENCY with --store. There are: {aliases}.",
                returncode=2,
            )
        return ours[0]

    def _create(self, store: DynamoDBStore) -> None:
        try:
            dynamodb_schema.create(store, self._progress)
        except StoreError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(self.style.SUCCESS(f"the table {store.table.name} is ready"))

    def _progress(self, step: str) -> None:
        self.stdout.write(f"==> {step}")
        self.stdout.flush()

    def _check(self, store: DynamoDBStore) -> None:
        found = store.check()
        for message in found:
            self.stderr.write(str(message))
        if any(message.level >= ERROR for message in found):
            raise CommandError(f"The table {store.table.name} is not what the store needs.")
        self.stdout.write(f"the table {store.table.name} can be used")
