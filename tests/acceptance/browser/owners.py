"""Attempts in a process of the shop: they claim records in each store, and end them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from uuid import UUID

from django.contrib.auth.models import Permission, User
from django.http import HttpResponse, JsonResponse

from django_idempotency import codecs, journal, keys
from django_idempotency.claims import ClaimRequest
from django_idempotency.conf import stores
from django_idempotency.exceptions import LeaseLost
from django_idempotency.http import scopes
from django_idempotency.http.snapshot import SnapshotCodec
from django_idempotency.leases import Lease
from django_idempotency.stores.dynamodb import schema

#: The stores that are up.
ALIASES = ("default", "redis", "dynamodb")
SCRIPT = "<script>document.title = 'taken'</script>"
IMAGE = '"><img src=x onerror="document.title=\'taken\'">'
OPERATIONS = ("POST payment-list", "POST payment-refund", "shop.tasks.charge", "POST transfer-list")


def users() -> None:
    """Make the users that look at records, and decide about them."""
    made = {name: User.objects.create_user(name, password=f"{name}-demo", is_staff=True)
             for name in ("clerk", "operator")}  # fmt: skip
    for name, permissions in {
        "clerk": ["view_idempotencyrecord", "view_key"],
        "operator": ["view_idempotencyrecord", "view_key", "view_result", "resolve_record"],
    }.items():
        made[name].user_permissions.set(Permission.objects.filter(codename__in=permissions))


def fill() -> None:
    """Make users and records: completed, stale, running, failed, and hostile ones."""
    users()
    schema.create(stores["dynamodb"])
    alice = scopes.of_user(User.objects.get(username="alice"))
    bob = scopes.of_user(User.objects.get(username="bob"))
    paid = JsonResponse({"id": 17, "amount": 4200, "status": "captured"}, status=201)
    for alias in ALIASES:
        _end(alias, _claim(alias, alice, "k" * 255), paid)
        _end(alias, _claim(alias, alice, "order-17"), paid)
        for number in range(12):
            scope, operation = (alice, bob)[number % 2], OPERATIONS[number % 4]
            lease = _claim(alias, scope, str(UUID(int=number * 7**40)), operation)
            if number % 5:
                _end(alias, lease, paid)
            else:
                if number == 0:
                    _note(alias, lease, {"order": {"id": 17, "total": "12.50"}, "charge": "ch_1"})
                uncertain = ("label", "mail to the customer") if number == 5 else ()
                for name in uncertain:
                    intent = journal.intent(name)
                    stores[alias].note(lease, intent, duration=timedelta(seconds=60), held=True)
                stores[alias].fail(lease, "requests.exceptions.ReadTimeout", held=bool(uncertain))
        _claim(alias, bob, "order-stale", lease=timedelta(milliseconds=1))
        _claim(alias, alice, "order-running", "POST payment-refund", lease=timedelta(hours=1))
        _end(alias, _claim(alias, SCRIPT, IMAGE, SCRIPT), HttpResponse(SCRIPT + IMAGE))


def _note(alias: str, lease: Lease, results: dict[str, object]) -> None:
    """Note what steps have returned."""
    for name, result in results.items():
        entry = journal.entry(name, codecs.pack(codecs.JSONCodec(), result, max_bytes=1000))
        stores[alias].note(lease, entry, duration=timedelta(seconds=60), held=False)


def come_late(alias: str) -> None:
    """Let the owner of the record that is running end it, and expect a refusal."""
    scope = scopes.of_user(User.objects.get(username="alice"))
    request = _request(scope, "order-running", "POST payment-refund")
    epoch = stores[alias].get(request.record_id).epoch - 1  # the decision has raised it by one
    now = datetime.now(timezone.utc)
    late = Lease(request, epoch, lease_until=now, claimed_at=now, renewable=True)
    try:
        _end(alias, late, HttpResponse("too late"))
    except LeaseLost:
        return
    raise AssertionError("A superseded owner has completed its record.")


def _request(scope: str, key: str, operation: str, **given: timedelta) -> ClaimRequest:
    record_id = keys.record_id("http", scope, key)
    fingerprint = (bytes(range(32)),)
    return ClaimRequest(
        record_id, scope, key, operation, fingerprints=fingerprint, token=record_id, **given
    )


def _claim(
    alias: str, scope: str, key: str, operation: str = OPERATIONS[0], **given: timedelta
) -> Lease:
    lease = stores[alias].claim(_request(scope, key, operation, **given))
    assert isinstance(lease, Lease)
    return lease


def _end(alias: str, lease: Lease, response: HttpResponse) -> None:
    result = codecs.pack(SnapshotCodec(), response, max_bytes=100_000)
    stores[alias].complete(lease, result, retention=timedelta(hours=24))
