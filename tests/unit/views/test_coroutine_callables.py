"""R34, R10: callables of the policy that would have to be awaited are no answer, and refused."""

from __future__ import annotations

from functools import partial

import pytest
from asgiref.sync import async_to_sync

from django_idempotency.contrib.rest_framework import IdempotencyMixin
from django_idempotency.http import idempotent
from django_idempotency.policy import HTTPPolicy, merge
from tests.unit.http.api import problem, replayed
from tests.unit.views.urls import FreeDRF, free_function

pytestmark = pytest.mark.django_db(transaction=True)

ANYONE = "django_idempotency.http.scopes.anyone"
FIELDS = ("scope", "fingerprint", "key_validator", "keep", "error_renderer", "replay_check")


async def says_no(*arguments):
    """Whatever is asked: no, to who awaits it."""
    return False


class SaysNo:
    async def __call__(self, *arguments):
        return False

    async def method(self, *arguments):
        return False


def test_R34_coroutine_functions_are_refused_with_what_to_write():
    for name in FIELDS:
        for value in (says_no, partial(says_no, 1), SaysNo(), SaysNo().method):
            [found] = HTTPPolicy(**{name: value}).problems()

            assert found.startswith(f"{name} must not be a coroutine function")
            assert "async_to_sync(" in found
            with pytest.raises(ValueError, match=name):
                merge(HTTPPolicy(), {name: value})
        assert HTTPPolicy(**{name: async_to_sync(says_no)}).problems() == []


@pytest.mark.parametrize("name", ["scope", "fingerprint", "replay_check"])
@pytest.mark.parametrize("kind", ["function"], indirect=True)
def test_R34_dotted_path_of_a_coroutine_function_is_refused(api, policy, name):
    api()
    policy(HTTP={name.upper(): f"{__name__}.says_no"})

    with pytest.raises(TypeError, match=rf"^{name} must not be a coroutine function"):
        api()


@pytest.mark.parametrize("kind", ["async-function", "drf"], indirect=True)
def test_R10_R34_awaitable_is_no_yes_and_what_async_to_sync_makes_of_it_is_awaited(
    api, policy, runs
):
    """Of a function that does not look like one that gives an awaitable."""
    for name, key in (("replay_check", "key-1"), ("key_validator", "key-2")):
        api()
        policy(HTTP={name.upper(): lambda *arguments: says_no()})

        with pytest.raises(TypeError, match=rf"^{name} must not return an awaitable"):
            api(key=key)
        policy(HTTP={name.upper(): None})
    policy(HTTP={"REPLAY_CHECK": async_to_sync(says_no)})

    assert problem(api()) == (403, "replay_refused")
    assert not replayed(api(key="key-2"))
    assert len(runs) == 2


def test_R34_declared_by_a_view_it_is_refused_as_well(rf):
    class Checked(IdempotencyMixin, FreeDRF):
        async def idempotency_replay_check(self, request, record):
            return False

    for guarded in (
        idempotent(replay_check=says_no, scope=ANYONE)(free_function),
        Checked.as_view(),
    ):
        with pytest.raises(ValueError, match=r"^replay_check must not be a coroutine function"):
            guarded(rf.post("/", headers={"Idempotency-Key": "key-1"}))
