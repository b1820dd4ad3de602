"""R18: one story for kinds of views that are away from home, and what does not run at all."""

from __future__ import annotations

import pytest

from django_idempotency.models import IdempotencyRecord
from tests.app.models import Effect
from tests.unit.http.api import problem, replayed
from tests.unit.views.conftest import api_for
from tests.unit.views.urls import FREE

pytestmark = pytest.mark.django_db(transaction=True)

#: At home each kind is in tests/unit/contract/test_http_contract.py.
AWAY = ["function asgi separate", "async-class wsgi single", "drf asgi single"]
AWAY += ["free-class asgi separate", "free-async-function asgi joined"]
REFUSING = ["function wsgi joined", "async-class asgi joined", "free-function wsgi joined"]


@pytest.fixture
def served(request, policy):
    """A client of a view of this kind, on this stack, whose work commits in this way."""
    kind, stack, mode = request.param.split()
    if kind in FREE:
        request.getfixturevalue("with_middleware")
    policy(TRANSACTION=mode)
    return api_for(stack, f"/{kind}/", raises=False)


@pytest.mark.parametrize("served", AWAY, indirect=True)
def test_R24_R25_R31_R18_R37_first_and_again_and_another(served, runs):
    first, again, other = served(), served(), served({"name": "other"})

    assert first.status_code == again.status_code == 201
    assert first.content == again.content
    for name in ("Content-Type", "Location", "ETag"):
        assert first.headers[name] == again.headers[name]
    assert (replayed(first), replayed(again)) == (False, True)
    assert ("seen" in first.cookies, "seen" in again.cookies) == (True, False)
    assert "Cache-Control" not in first.headers
    assert again.headers["Cache-Control"] == "no-store"
    assert problem(other) == (422, "idempotency_key_reused")
    assert len(runs) == Effect.objects.count() == 1


@pytest.mark.parametrize("served", REFUSING, indirect=True)
def test_R2_R8_R12_R18_R21_R49_what_is_refused_does_not_run(served, in_progress, runs):
    """In progress, an invalid key, no scope; and what is not guarded leaves nothing."""
    served()
    in_progress()
    busy = served()

    assert problem(busy) == (409, "in_progress")
    assert (busy.headers["Retry-After"], busy.headers["Cache-Control"]) == ("1", "no-store")
    assert problem(served(key='""')) == (400, "idempotency_key_invalid")
    assert problem(served(user=None)) == (400, "scope_missing")
    assert runs == ["first"]
    reads = [served("", method="GET", key=key).status_code for key in (None, "k", '"malformed')]
    assert reads == [200, 200, 200]
    assert [served(key=None, user=None).status_code for _ in range(2)] == [201, 201]
    assert IdempotencyRecord.objects.count() == 1


def test_R57_deferred_rendering_is_part_of_the_work(api):
    """The template of the response writes a row, once."""
    first, again = api.then("template"), api.then("template")

    assert (first.status_code, replayed(again)) == (201, True)
    assert first.content == again.content
    assert Effect.objects.filter(name="rendered").count() == 1
