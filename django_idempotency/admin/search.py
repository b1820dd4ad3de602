"""From what an operator types in the admin to the ids of records."""

from __future__ import annotations

import re
from collections.abc import Iterator
from uuid import UUID

from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError

from django_idempotency import keys
from django_idempotency.http import scopes
from django_idempotency.models import IdempotencyRecord

__all__ = ["NEWEST", "id_range", "ids_of_key", "ids_of_scope_and_key"]

#: How many records are looked at for a key alone: there is no index on it, which would slow claims.
NEWEST = 10_000
#: Between a scope and a key; more of them than this are no such words.
_GAPS = 4
_ID = re.compile(r"[0-9a-f]{8,32}")


def id_range(term: str) -> tuple[UUID, UUID] | None:
    """Return the first and the last record id that begin so; None for what is no such beginning."""
    digits = term.replace("-", "").lower()
    if not _ID.fullmatch(digits):
        return None
    return UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))


def ids_of_scope_and_key(term: str) -> set[UUID]:
    """
    Return the ids that a scope and a key, with a space between them, may have.

    A scope as the record page shows it, a user's name, or a tenant and a user's name.
    """
    return {
        record_id
        for before, key in _halves(term)
        for scope in _scopes(before)
        for record_id in keys.record_ids(scope, key)
    }


def ids_of_key(key: str, using: str) -> tuple[set[UUID], bool]:
    """Return the ids of this key among the newest records, and whether there may be more."""
    newest = IdempotencyRecord.objects.using(using).order_by("-expires_at")
    rows = list(newest.values_list("pk", "key")[:NEWEST])
    return {pk for pk, found in rows if found == key}, len(rows) == NEWEST


def _scopes(text: str) -> Iterator[str]:
    yield text
    if (user := _user(text)) is not None:
        yield user
    for tenant, name in _halves(text):
        if (user := _user(name)) is not None:
            yield scopes.of_tenant(tenant, user)


def _user(name: str) -> str | None:
    """Return the scope of a user by name, as they log in."""
    if "\x00" in name:  # no column holds it
        return None
    model = get_user_model()
    try:
        found = model._default_manager.filter(**{model.USERNAME_FIELD: name}).first()
    except (ValidationError, ValueError):  # names of users may be numbers, or UUIDs
        return None
    return None if found is None else scopes.of_user(found)


def _halves(text: str) -> Iterator[tuple[str, str]]:
    """Yield the text in two, at each of its spaces."""
    gaps = list(re.finditer(r"\s+", text))
    if len(gaps) <= _GAPS:
        yield from ((text[: gap.start()], text[gap.end() :]) for gap in gaps)
