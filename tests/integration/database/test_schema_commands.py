"""What an operator does in a schema that a command names (R98)."""

from __future__ import annotations

from contextlib import nullcontext
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db import transaction

from django_idempotency.sweep import sweep
from django_idempotency.tasks import sweep_expired
from tests.integration.database import claims
from tests.integration.database.claims import claim_request, packed, won
from tests.integration.database.sessions import execute
from tests.integration.database.tenants import go_to, rows

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.leg("postgres18", "postgres16"),
]


@pytest.fixture
def expired(store, tenants, settings):
    """Two expired records of each tenant, and one in `public`."""
    settings.IDEMPOTENCY = {"default": {}}
    for tenant, count in ((tenants[0], 2), (tenants[1], 2), ("public", 1)):
        go_to(tenant)
        for number in range(count):
            lease = won(store.claim(claim_request(f"key {number}", transaction="separate")))
            store.complete(lease, packed("old"), retention=claims.RETENTION)
        execute("UPDATE idempotency_record SET expires_at = now() - interval '1 hour'")
    go_to("public")
    return tenants


def left(*tenants):
    return [len(rows(tenant)) for tenant in tenants]


@pytest.mark.parametrize("inside", [False, True], ids=["autocommit", "transaction"])
def test_R98_a_sweep_of_a_schema_leaves_the_others(expired, inside):
    with transaction.atomic() if inside else nullcontext():
        assert sweep(schema=expired[1]) == {"default": 2}
        assert execute("SHOW search_path") == '"public"'
    assert left(*expired, "public") == [2, 0, 1]
    assert sweep_expired(schema=expired[0]) == {"default": 2}
    assert left(*expired, "public") == [0, 0, 1]


def run_command(name, *arguments, **options):
    out = StringIO()
    call_command(name, *arguments, stdout=out, stderr=out, **options)
    return out.getvalue()


def test_R98_the_commands_take_a_schema(store, expired):
    one = expired[1]
    assert "default: 2" in run_command("idempotency_sweep", schema=one, dry_run=True)
    assert "default: 2" in run_command("idempotency_sweep", schema=one)
    assert left(*expired, "public") == [2, 0, 1]
    go_to(one)
    lease = won(store.claim(claim_request("stuck", transaction="separate")))
    go_to("public")
    shown = str(lease.record_id)
    with pytest.raises(CommandError, match="No record"):
        run_command("idempotency_show", shown)
    assert "stuck" in run_command("idempotency_show", shown, schema=one)
    run_command("idempotency_release", shown, schema=one, yes=True, force=True)
    assert rows(one, "state") == [("RELEASED",)]
    run_command("idempotency_expire", shown, schema=one, yes=True)
    scope = rows(one, "scope")[0][0]
    told = run_command("idempotency_release", schema=one, erase=True, scope=scope, yes=True)
    assert "1 erased" in told
    assert left(*expired, "public") == [2, 0, 1]
    assert execute("SHOW search_path") == '"public"'


def test_R98_a_schema_that_is_not_there_is_named(expired, settings):
    for name in ("idempotency_sweep", "idempotency_show"):
        arguments = ["k"] if name.endswith("show") else []
        with pytest.raises(CommandError, match="schema nowhere of 'default' has no table"):
            run_command(name, *arguments, schema="nowhere")
    assert left(*expired, "public") == [2, 2, 1]
    settings.IDEMPOTENCY = {
        "default": {"BACKEND": "django_idempotency.stores.memory.MemoryStore"},
    }
    with pytest.raises(CommandError, match="has schemas") as refused:
        run_command("idempotency_sweep", schema=expired[0])
    assert refused.value.returncode == 2
    with pytest.raises(ValueError, match="schema"):
        sweep(schema=expired[0])
