"""R57, R83, R86: transactions around plain views, with ATOMIC_REQUESTS and without."""

from __future__ import annotations

import pytest
from django.db import connection, transaction
from django.http import HttpResponse
from django.urls import ResolverMatch

from django_idempotency.http import idempotent
from tests.app.models import Effect
from tests.unit.views.conftest import api_of

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize(
    ("mode", "atomic_requests"),
    [("joined", False), ("single", True), ("separate", False), ("separate", True)],
    indirect=True,
)
def test_R57_R83_R90_only_kept_work_stands_with_a_key_and_without(mode, atomic_requests):
    """In Django itself a returned 500 commits ATOMIC_REQUESTS, too."""
    api = api_of("function", raises=False)
    autocommit = mode == "separate" and not atomic_requests
    for key, then, status, stands in [
        ("a", "status", 409, True),
        ("b", "status", 500, autocommit),
        ("c", "boom", 500, autocommit),
        (None, "boom", 500, autocommit),
    ]:
        Effect.objects.all().delete()

        assert api.then(then, status=status, key=key).status_code == status
        assert Effect.objects.exists() == stands, (key, then)
        assert not connection.in_atomic_block


@pytest.fixture
def seen():
    """Whether `looking` was called in a transaction."""
    return []


@pytest.fixture
def looking(seen):
    def view(request):
        seen.append(connection.in_atomic_block)
        return HttpResponse()

    return view


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_R83_R90_requests_without_a_key_have_a_transaction(
    rf, atomic_requests, method, looking, seen
):
    idempotent(looking)(rf.generic(method, "/"))

    assert seen == [atomic_requests or method == "POST"]


def test_R83_view_that_the_project_exempts_has_no_transaction(
    rf, atomic_requests, policy, looking, seen
):
    """Its own non_atomic_requests counts, below the decorator."""
    policy(TRANSACTION="separate", HTTP={"SCOPE": "django_idempotency.http.scopes.anyone"})
    guarded = idempotent(transaction.non_atomic_requests(looking))
    request = rf.post("/", headers={"Idempotency-Key": "k"})
    request.resolver_match = ResolverMatch(guarded, (), {}, route="looking/")

    guarded(request)

    assert seen == [False]
