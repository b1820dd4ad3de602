"""R55, R56, R58: exceptions of plain views, which Django answers outside of the guard."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import BadRequest, PermissionDenied, SuspiciousOperation
from django.http import Http404

from django_idempotency.models import IdempotencyRecord
from tests.app.models import Effect
from tests.unit.http.api import Api, problem, replayed
from tests.unit.http.conftest import SetPolicy
from tests.unit.views.conftest import api_for

pytestmark = pytest.mark.django_db(transaction=True)

REFUSALS = {"missing": 404, "denied": 403, "suspicious": 400, "bad": 400}
TYPES = {
    "missing": Http404,
    "denied": PermissionDenied,
    "suspicious": SuspiciousOperation,
    "bad": BadRequest,
    "boom": RuntimeError,
}


@pytest.fixture(params=["function", "async-function"])
def kind(request: pytest.FixtureRequest) -> str:
    """A view without a loop, and one on it: test_kinds has the others."""
    return str(request.param)


@pytest.fixture
def api(stack: str, kind: str) -> Api:
    api = api_for(stack, f"/{kind}/")
    api.client.raise_request_exception = False
    return api


#: Modes in which the work of an exception rolls back, and the one in which it stands.
modes = pytest.mark.parametrize("mode", ["joined", "separate"], indirect=True)
joined = pytest.mark.parametrize("mode", ["joined"], indirect=True)


def state() -> str:
    return IdempotencyRecord.objects.get().state


#: What a middleware saw leave the view.
left: list[BaseException] = []


class Noting:
    """A middleware that looks at what leaves a view."""

    async_capable = False

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response

    def __call__(self, request: Any) -> Any:
        return self.get_response(request)

    def process_exception(self, request: Any, error: Exception) -> None:
        left.append(error)


@modes
def test_R55_refusals_release_and_other_exceptions_fail(
    api: Api, mode: str, runs: list[str]
) -> None:
    for then, status in {**REFUSALS, "boom": 500}.items():
        first = api.then(then, key=then)
        corrected = api(key=then)

        assert first.status_code == status
        assert "Idempotency-Replayed" not in first.headers
        if then == "boom":
            assert problem(corrected) == (422, "idempotency_key_reused")
        else:
            assert (corrected.status_code, replayed(corrected)) == (201, False)
    assert len(runs) == 2 * len(REFUSALS) + 1
    if mode != "separate":
        assert Effect.objects.count() == len(REFUSALS)


@joined
def test_R58_exceptions_pass_on_unchanged(api: Api, settings: Any, mode: str) -> None:
    """The very type, text and no cause, as it leaves the same view without a key."""
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "tests.unit.views.test_exceptions.Noting"]
    for then, kind in TYPES.items():
        left.clear()

        api.then(then, key=None)
        api.then(then, key=then)

        unguarded, guarded = left
        assert type(guarded) is type(unguarded) is kind
        assert guarded.args == unguarded.args == (then,)
        assert guarded.__cause__ is None


def test_R56_success_keeps_success_alone(api: Api, policy: SetPolicy) -> None:
    policy(HTTP={"KEEP": "success"})
    for then, status in {**REFUSALS, "boom": 500, "created": 201, "redirect": 303}.items():
        assert api.then(then, key=then).status_code == status
    for status in (400, 409, 422, 503):
        assert api.then("status", status=status, key=str(status)).status_code == status

    states = dict(IdempotencyRecord.objects.values_list("key", "state"))
    kept = {then for then, state in states.items() if state == "COMPLETED"}
    assert kept == {"created", "redirect"}
    assert {state for then, state in states.items() if then not in kept} == {"FAILED"}


@modes
def test_R56_stripe_keeps_every_answer(
    api: Api, policy: SetPolicy, mode: str, runs: list[str]
) -> None:
    """The 500 of an exception as well, without the work that raised it."""
    policy(HTTP={"KEEP": "stripe"})
    for then, status in {**REFUSALS, "boom": 500}.items():
        first, again = (api.then(then, key=then) for _ in range(2))

        assert first.status_code == again.status_code == status
        assert first.content == again.content
        assert (replayed(first), replayed(again)) == (False, True)
        assert "Idempotency-Expires" in first.headers
    assert {*IdempotencyRecord.objects.values_list("state", flat=True)} == {"COMPLETED"}
    assert len(runs) == 5
    assert Effect.objects.count() == (5 if mode == "separate" else 0)


@joined
@pytest.mark.parametrize(
    ("verdict", "kept_state"), [("keep", "COMPLETED"), ("release", "RELEASED"), ("fail", "FAILED")]
)
def test_R56_callable_decides(
    api: Api, policy: SetPolicy, mode: str, verdict: str, kept_state: str
) -> None:
    """It gets the response, and the exception it was made of; what it keeps is replayed."""
    asked: list[tuple[int, Any]] = []

    def keep(response: Any, error: BaseException | None) -> str:
        asked.append((response.status_code, error))
        return verdict

    policy(HTTP={"KEEP": keep})
    missing, boom, created = api.then("missing", key="a"), api.then("boom", key="b"), api(key="c")

    assert [missing.status_code, boom.status_code, created.status_code] == [404, 500, 201]
    assert [status for status, _ in asked] == [404, 500, 201]
    assert [type(error) for _, error in asked] == [Http404, RuntimeError, type(None)]
    assert set(IdempotencyRecord.objects.values_list("state", flat=True)) == {kept_state}
    assert Effect.objects.count() == (0 if verdict == "fail" else 1)
    again = api.then("missing", key="a")
    assert (again.status_code, replayed(again)) == (404, verdict == "keep")


# Errors of idempotent calls, and views that answer nothing.


@joined
def test_R66_lost_lease_of_a_call_within_the_work_is_the_works_own_error(
    api: Api, mode: str
) -> None:
    """Nobody has taken over this key, so nobody is told so."""
    assert api.then("loses_theirs").status_code == 500
    assert state() == "FAILED"


@joined
def test_R66_lost_lease_of_the_work_is_told(api: Api, mode: str) -> None:
    assert problem(api.then("loses_ours")) == (409, "lease_lost")


@pytest.mark.parametrize("mode", ["single", "joined"], indirect=True)
def test_R58_error_of_an_idempotent_call_in_a_hook_is_the_hooks_own(api: Api, mode: str) -> None:
    """This key is not in progress: its work has committed."""
    first, again = api.then("hook_busy"), api.then("hook_busy")

    assert (first.status_code, again.status_code, replayed(again)) == (500, 201, True)


def test_R58_view_that_returns_None_gets_djangos_own_message(api: Api) -> None:
    api.client.raise_request_exception = True
    told = []
    for key in (None, "key-1"):
        with pytest.raises(ValueError, match=r"It returned None instead\.$") as raised:
            api.then("nothing", key=key)
        told.append(str(raised.value))

    assert told[0] == told[1]
    assert state() == "FAILED"
