"""The whole expressions of the DynamoDB store: the changes and the condition of each write."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from django_idempotency.records import NAMED
from django_idempotency.stores.dynamodb.items import NO_FINGERPRINT


class Statement(NamedTuple):
    """A conditional write."""

    #: None where the call puts or deletes the whole item.
    update: str | None
    condition: str


#: The values that are the same in every call.
CONSTANTS: dict[str, dict[str, Any]] = {
    ":IN_PROGRESS": {"S": "IN_PROGRESS"},
    ":COMPLETED": {"S": "COMPLETED"},
    ":FAILED": {"S": "FAILED"},
    ":RELEASED": {"S": "RELEASED"},
    ":none": {"B": NO_FINGERPRINT},
    ":zero": {"N": "0"},
    ":one": {"N": "1"},
    ":nothing": {"L": []},
}

# A record is expired if its time is over and no lease is live. A lease is live until `clock_skew`
# after its end, so :lapsed is the time now less that.
EXPIRED = "#expiry <= :now AND (#status <> :IN_PROGRESS OR #lockExpiry <= :lapsed)"

CLAIMABLE = " ".join(
    (
        # Absent.
        "attribute_not_exists(#id)",
        # Not claimed by this attempt before: a claim that is sent again and comes late must not win
        # a record that its own attempt has ended.
        "OR #token <> :token",
        # Not expired: CLAIM_EXPIRED replaces an expired record.
        "AND (attribute_not_exists(#expiry) OR #expiry > :now)",
        # Released: any request may claim it.
        "AND (#status = :RELEASED",
        # Failed, or in progress under a lapsed lease. With on_stale="refuse" :stale is zero, so
        # that no lease has lapsed.
        "OR (#status = :FAILED OR #status = :IN_PROGRESS AND #lockExpiry <= :stale)",
        # With the same fingerprint or none.
        "AND #fingerprint IN (:fingerprint, :none)",
        # Without a journal, or for work with steps: without them :resumes is zero.
        "AND (attribute_not_exists(#steps) OR #attempts < :resumes))",
    )
)

# What a claim names. It leaves the journal: where there is one, the work goes on behind it.
EACH_GIVEN = ", ".join(f"#{name} = :{name}" for name in NAMED)

# The epoch starts from the clock in microseconds, so that it grows over a deletion by TTL, too.
CLAIM = Statement(
    f"""
    SET #status = :IN_PROGRESS,
        #epoch = if_not_exists(#epoch, :clock) + :one,
        #token = :token,
        #fingerprint = :fingerprint,
        #lockExpiry = :lockExpiry,
        #expiry = :expiry,
        {EACH_GIVEN},
        #attempts = if_not_exists(#attempts, :zero) + :one,
        #createdAt = if_not_exists(#createdAt, :now),
        #updatedAt = :now
    REMOVE #responsePayload, #error
    """,
    # A record that is held is for CLAIM_HELD: no update can leave out an expiry, depending on the
    # item.
    f"{CLAIMABLE} AND (attribute_not_exists(#steps) OR attribute_exists(#expiry))",
)

# With on_stale="refuse" a record in progress has no expiry.
CLAIM_WITHOUT_EXPIRY = Statement(
    f"""
    SET #status = :IN_PROGRESS,
        #epoch = if_not_exists(#epoch, :clock) + :one,
        #token = :token,
        #fingerprint = :fingerprint,
        #lockExpiry = :lockExpiry,
        {EACH_GIVEN},
        #attempts = if_not_exists(#attempts, :zero) + :one,
        #createdAt = if_not_exists(#createdAt, :now),
        #updatedAt = :now
    REMOVE #expiry, #responsePayload, #error
    """,
    CLAIMABLE,
)

# Of a record with a journal that is held, and stays so.
CLAIM_HELD = Statement(
    CLAIM_WITHOUT_EXPIRY.update,
    f"{CLAIMABLE} AND attribute_exists(#steps) AND attribute_not_exists(#expiry)",
)

# Replaces the expired item that the claim has met, with new attempts and creation. CLAIM keeps
# them, and one update cannot do both, depending on the item.
CLAIM_EXPIRED = Statement(None, f"#epoch = :seenEpoch AND #token = :seenToken AND {EXPIRED}")

# The proof of ownership: each owner's write is conditional on all of it.
OWNED = "#token = :token AND #epoch = :epoch AND #status = :IN_PROGRESS"

# An owner's write of this and of RELEASE leaves the epoch and the token as they are; an operator's,
# which is the same below, brings new ones.
COMPLETE = Statement(
    """
    SET #status = :COMPLETED,
        #epoch = :epoch,
        #token = :token,
        #responsePayload = :responsePayload,
        #expiry = :expiry,
        #updatedAt = :now
    REMOVE #lockExpiry, #steps, #error
    """,
    OWNED,
)


FAIL = Statement(
    """
    SET #status = :FAILED,
        #error = :error,
        #expiry = if_not_exists(#expiry, :expiry),
        #updatedAt = :now
    REMOVE #lockExpiry
    """,
    OWNED,
)

FAIL_HELD = Statement(
    """
    SET #status = :FAILED,
        #error = :error,
        #updatedAt = :now
    REMOVE #lockExpiry, #expiry
    """,
    OWNED,
)

RELEASE = Statement(
    """
    SET #status = :RELEASED,
        #epoch = :epoch,
        #token = :token,
        #fingerprint = :none,
        #expiry = if_not_exists(#expiry, :expiry),
        #updatedAt = :now
    REMOVE #lockExpiry, #steps
    """,
    OWNED,
)

NOTE = Statement(
    """
    SET #steps = list_append(if_not_exists(#steps, :nothing), :entry),
        #lockExpiry = :lockExpiry,
        #expiry = :expiry
    """,
    OWNED,
)

# A held record does not expire.
NOTE_HELD = Statement(
    """
    SET #steps = list_append(if_not_exists(#steps, :nothing), :entry),
        #lockExpiry = :lockExpiry
    REMOVE #expiry
    """,
    OWNED,
)

RENEW = Statement("SET #lockExpiry = :lockExpiry", OWNED)

RESOLVABLE = " ".join(
    (
        # What the operator saw.
        "#epoch = :seenEpoch AND #status = :seenStatus",
        # No live lease. With force :over is the end of time, so that no lease counts as live.
        "AND (attribute_not_exists(#lockExpiry) OR #lockExpiry <= :over)",
        # Not expired.
        "AND (attribute_not_exists(#expiry) OR #expiry > :now OR #lockExpiry > :lapsed)",
        # With the journal that was seen. If that is none, :withoutSteps is zero; if it may be any,
        # :anySteps is.
        "AND ((attribute_not_exists(#steps) AND #attempts > :withoutSteps)",
        "OR (attribute_exists(#steps) AND size(#steps) = :noted)",
        "OR #attempts > :anySteps)",
    )
)


RESOLVE_COMPLETE = Statement(COMPLETE.update, RESOLVABLE)

RESOLVE_RELEASE = Statement(RELEASE.update, RESOLVABLE)

RESOLVE_EXPIRE = Statement(
    """
    SET #epoch = :epoch,
        #token = :token,
        #expiry = :expiry,
        #updatedAt = :now
    REMOVE #steps
    """,
    RESOLVABLE,
)

# A record in progress that an operator expires is released, so that any request may claim it.
RESOLVE_EXPIRE_STALE = Statement(
    """
    SET #status = :RELEASED,
        #epoch = :epoch,
        #token = :token,
        #fingerprint = :none,
        #expiry = :expiry,
        #updatedAt = :now
    REMOVE #lockExpiry, #steps
    """,
    RESOLVABLE,
)

RESOLVE_RESUME = Statement(
    """
    SET #status = :FAILED,
        #epoch = :epoch,
        #token = :token,
        #steps = list_append(#steps, :entry),
        #expiry = :expiry,
        #updatedAt = :now
    REMOVE #lockExpiry
    """,
    RESOLVABLE,
)

RESOLVE_RESUME_HELD = Statement(
    """
    SET #status = :FAILED,
        #epoch = :epoch,
        #token = :token,
        #steps = list_append(#steps, :entry),
        #updatedAt = :now
    REMOVE #lockExpiry, #expiry
    """,
    RESOLVABLE,
)

RESOLVE_RESUME_WITHOUT_STEPS = Statement(
    """
    SET #status = :FAILED,
        #epoch = :epoch,
        #token = :token,
        #expiry = :expiry,
        #updatedAt = :now
    REMOVE #lockExpiry
    """,
    RESOLVABLE,
)

SWEEP = Statement(None, EXPIRED)

# Absent, or no live lease. With force :over is the end of time, so that no lease counts as live.
ERASE = Statement(
    None,
    "attribute_not_exists(#id) OR #status <> :IN_PROGRESS OR #lockExpiry <= :over",
)

#: All of them, by name.
STATEMENTS: dict[str, Statement] = {
    name: value for name, value in list(globals().items()) if isinstance(value, Statement)
}

_NAME = re.compile(r"#\w+")
_VALUE = re.compile(r":\w+")


def prepare(statement: Statement, names: Mapping[str, str]) -> dict[str, Any]:
    """
    Return a statement as parameters of a call, with the names of a table's attributes.

    The constants are among them; the caller adds the other values.
    """
    update, condition = statement
    text = f"{update or ''} {condition}"
    parameters: dict[str, Any] = {
        "ConditionExpression": condition,
        "ExpressionAttributeNames": {name: names[name] for name in set(_NAME.findall(text))},
        "ExpressionAttributeValues": {
            name: CONSTANTS[name] for name in set(_VALUE.findall(text)) if name in CONSTANTS
        },
    }
    if update is not None:
        parameters["UpdateExpression"] = " ".join(update.split())
    return parameters
