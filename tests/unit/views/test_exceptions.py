"""R55, R56, R58: exceptions of plain views, which Django answers outside of the guard."""

from __future__ import annotations

import pytest

from django_idempotency.models import IdempotencyRecord
from tests.app.models import Effect
from tests.unit.http.api import problem, replayed
from tests.unit.views.conftest import a_function, api_of

pytestmark = pytest.mark.django_db(transaction=True)

RAISED = {"missing": 404, "denied": 403, "suspicious": 400, "bad": 400, "boom": 500}
joined = pytest.mark.parametrize("mode", ["joined"], indirect=True)


@pytest.fixture
def api(kind):
    return api_of(kind, raises=False)


def states() -> dict[str, str]:
    return dict(IdempotencyRecord.objects.values_list("key", "state"))


@pytest.mark.parametrize(
    ("kind", "mode", "keep", "refused", "failed"),
    [
        ("async-function", "joined", "default", "RELEASED", "FAILED"),
        ("function", "joined", "success", "FAILED", "FAILED"),
        ("function", "separate", "stripe", "COMPLETED", "COMPLETED"),
    ],
    indirect=["kind", "mode"],
)
def test_R55_R56_what_becomes_of_an_exception(api, mode, policy, keep, refused, failed):
    """A kept one, too, is kept without the work that raised it, where that rolls back."""
    policy(HTTP={"KEEP": keep})
    first = {then: api.then(then, key=then) for then in RAISED}

    assert {then: answer.status_code for then, answer in first.items()} == RAISED
    assert states() == {**dict.fromkeys(RAISED, refused), "boom": failed}
    assert Effect.objects.count() == (5 if mode == "separate" else 0)
    for then in ("missing", "boom"):
        again = api.then(then, key=then)
        assert (again.status_code, again.content) == (RAISED[then], first[then].content)
        expires = "Idempotency-Expires" in first[then].headers
        assert replayed(again) == expires == (keep == "stripe")


@a_function
@joined
def test_R58_exception_passes_on_unchanged(api, mode):
    """The very type, text and no cause, as it leaves the same view without a key."""
    api.client.raise_request_exception = True
    for key in (None, "key-1"):
        with pytest.raises(RuntimeError) as raised:
            api.then("boom", key=key)

        assert type(raised.value) is RuntimeError
        assert (raised.value.args, raised.value.__cause__) == (("boom",), None)


# Errors of idempotent calls, and views that answer nothing.


@joined
def test_R66_lost_lease_of_the_work_is_told_and_that_of_a_call_within_is_the_works_error(api, mode):
    """Nobody has taken over this key, so nobody is told so."""
    assert api.then("loses_theirs").status_code == 500
    assert states() == {"key-1": "FAILED"}
    assert problem(api.then("loses_ours", key="key-2")) == (409, "lease_lost")


@pytest.mark.parametrize(
    ("kind", "mode"), [("function", "single"), ("async-function", "joined")], indirect=True
)
def test_R58_error_of_an_idempotent_call_in_a_hook_is_the_hooks_own(api, mode):
    """This key is not in progress: its work has committed."""
    first, again = api.then("hook_busy"), api.then("hook_busy")

    assert (first.status_code, again.status_code, replayed(again)) == (500, 201, True)


def test_R58_view_that_returns_None_gets_djangos_own_message(api):
    api.client.raise_request_exception = True
    told = []
    for key in (None, "key-1"):
        with pytest.raises(ValueError, match=r"It returned None instead\.$") as raised:
            api.then("nothing", key=key)
        told.append(str(raised.value))

    assert told[0] == told[1]
    assert states() == {"key-1": "FAILED"}
