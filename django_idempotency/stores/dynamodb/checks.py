"""Comparing a live table of DynamoDB, and the storage beside it, with what the store needs."""

from __future__ import annotations

from collections.abc import Iterator

from django.core.checks import CheckMessage, Error, Warning
from django.core.files.storage import InvalidStorageError, storages

from django_idempotency.exceptions import StoreError
from django_idempotency.stores.dynamodb.overflow import Overflow
from django_idempotency.stores.dynamodb.table import TTL_IS_ON, Table


def problems(table: Table, *, ttl: bool, overflow: Overflow | None) -> Iterator[CheckMessage]:
    """
    Give what keeps the table, or the storage of large results, from doing its work.

    With `ttl` the table is to delete expired items by itself.
    """
    if overflow is not None:
        yield from _overflow_problems(overflow)
    try:
        described = table.described()
        described_ttl = table.described_ttl()
    except StoreError as error:
        yield Error(
            f"The DynamoDB store cannot look at its table {table.name!r}: {error}",
            hint=_remedy(error),
            id="django_idempotency.E020",
        )
        return
    if problem := table.key_problem(described):
        yield Error(
            problem,
            hint="Set OPTIONS['partition_key'] and ['sort_key'] to what the table has.",
            id="django_idempotency.E021",
        )
    if ttl and described_ttl["TimeToLiveStatus"] not in TTL_IS_ON:
        yield Warning(
            f"TTL is off for the table {table.name!r}: expired records are never deleted.",
            hint=f"Turn it on for the attribute {table.names.of['expiry']!r}, or set "
            f"OPTIONS['ttl'] to False and run manage.py idempotency_sweep.",
            id="django_idempotency.W020",
        )
    elif problem := table.ttl_problem(described_ttl):
        yield Error(
            problem,
            hint="Change the table's TTL, or name the attribute in OPTIONS['attributes'].",
            id="django_idempotency.E022",
        )
    if described.get("Replicas") and described.get("MultiRegionConsistency") != "STRONG":
        regions = ", ".join(replica["RegionName"] for replica in described["Replicas"])
        yield Warning(
            f"The table {table.name!r} is replicated to other Regions ({regions}), and the last "
            f"writer wins between them: a key that is used in two Regions can run twice.",
            hint="Send each key to one Region only, or use multi-Region strong consistency.",
            id="django_idempotency.W021",
        )


def _remedy(error: StoreError) -> str:
    """Return the hint for a table that cannot be read."""
    match error.code:
        case "ResourceNotFoundException":
            return (
                "Create it with manage.py idempotency_table --create, or correct "
                "OPTIONS['table_name'] and ['region_name']."
            )
        case "AccessDeniedException":
            return "Allow dynamodb:DescribeTable and dynamodb:DescribeTimeToLive."
        case "NoRegionError":
            return "Set OPTIONS['region_name'], or AWS_DEFAULT_REGION."
        case (
            "ExpiredTokenException"
            | "InvalidSignatureException"
            | "NoCredentialsError"
            | "PartialCredentialsError"
            | "UnrecognizedClientException"
        ):
            return "Give this process credentials of AWS: a role, a profile or the environment."
    return "Look whether the endpoint can be reached: OPTIONS['endpoint_url'] and the network."


def _overflow_problems(overflow: Overflow) -> Iterator[CheckMessage]:
    try:
        storages[overflow.alias]
    except InvalidStorageError as error:
        yield Error(
            f"The DynamoDB store keeps large results in the storage {overflow.alias!r}, "
            f"which cannot be used: {error}",
            hint="Set OPTIONS['overflow_storage'] to an alias of STORAGES.",
            id="django_idempotency.E023",
        )
        return
    try:
        left = overflow.probe()
    except StoreError as failure:
        yield Error(
            f"The DynamoDB store cannot keep large results in the storage "
            f"{overflow.alias!r}: {failure}",
            hint="Correct the storage's OPTIONS, or the rights of this process. Until then large "
            "results are not kept, and retries get result_unavailable.",
            id="django_idempotency.E024",
        )
        return
    if left is not None:
        yield Warning(
            f"The check of the storage {overflow.alias!r} has left an object there: {left}",
            hint="Allow this process to delete objects under idempotency/check/, or leave them to "
            "the bucket's life cycle.",
            id="django_idempotency.W022",
        )
