"""R34, R10: callables of the policy that would have to be awaited are no answer, and refused."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from asgiref.sync import async_to_sync

from django_idempotency.contrib.rest_framework import IdempotencyMixin
from django_idempotency.http import idempotent
from django_idempotency.policy import HTTPPolicy, merge
from tests.unit.http.api import Api, problem, replayed
from tests.unit.http.conftest import SetPolicy
from tests.unit.views.urls import FreeDRF, free_function

pytestmark = pytest.mark.django_db(transaction=True)

FIELDS = ("scope", "fingerprint", "key_validator", "keep", "error_renderer", "replay_check")


async def says_no(*arguments: Any) -> bool:
    """Whatever is asked: no, to who awaits it."""
    return False


class SaysNo:
    async def __call__(self, *arguments: Any) -> bool:
        return False

    async def method(self, *arguments: Any) -> bool:
        return False


KINDS: list[Any] = [says_no, partial(says_no, 1), SaysNo(), SaysNo().method]


@pytest.mark.parametrize("name", FIELDS)
def test_R34_coroutine_functions_are_refused_with_what_to_write(name: str) -> None:
    for value in KINDS:
        [found] = HTTPPolicy(**{name: value}).problems()

        assert found.startswith(f"{name} must not be a coroutine function")
        assert "async_to_sync(" in found
        with pytest.raises(ValueError, match=name):
            merge(HTTPPolicy(), {name: value})
    assert HTTPPolicy(**{name: async_to_sync(says_no)}).problems() == []


PATH = "tests.unit.views.test_coroutine_callables.says_no"
#: One view of each kind.
each_kind = pytest.mark.parametrize("kind", ["async-function", "drf"], indirect=True)


@pytest.mark.parametrize("kind", ["function"], indirect=True)
@pytest.mark.parametrize("name", ["scope", "fingerprint", "replay_check"])
def test_R34_dotted_path_of_a_coroutine_function_is_refused(
    api: Api, policy: SetPolicy, name: str
) -> None:
    api()
    policy(HTTP={name.upper(): PATH})

    with pytest.raises(TypeError, match=rf"^{name} must not be a coroutine function"):
        api()


@each_kind
def test_R10_R34_awaitable_is_no_yes(api: Api, policy: SetPolicy, runs: list[str]) -> None:
    """Of a function that does not look like one that gives an awaitable."""
    for name, key in (("replay_check", "key-1"), ("key_validator", "key-2")):
        api()
        policy(HTTP={name.upper(): lambda *arguments: says_no()})

        with pytest.raises(TypeError, match=rf"^{name} must not return an awaitable"):
            api(key=key)
        policy(HTTP={name.upper(): None})
    assert len(runs) == 1


@each_kind
def test_R34_what_async_to_sync_makes_of_one_is_awaited(api: Api, policy: SetPolicy) -> None:
    policy(HTTP={"REPLAY_CHECK": async_to_sync(says_no)})

    first, again = api(), api()

    assert (first.status_code, replayed(first)) == (201, False)
    assert problem(again) == (403, "replay_refused")


@pytest.mark.parametrize("name", ["replay_check", "key_validator"])
def test_R34_decorated_view_is_refused_as_well(rf: Any, name: str) -> None:
    overrides: dict[str, Any] = {name: says_no, "scope": "django_idempotency.http.scopes.anyone"}
    guarded: Any = idempotent(**overrides)(free_function)

    with pytest.raises(ValueError, match=rf"^{name} must not be a coroutine function"):
        guarded(rf.post("/", headers={"Idempotency-Key": "key-1"}))


def test_R34_method_of_a_class_with_the_mixin_is_refused(rf: Any) -> None:
    class Checked(IdempotencyMixin, FreeDRF):
        async def idempotency_replay_check(self, request: Any, record: Any) -> bool:
            return False

    with pytest.raises(ValueError, match=r"^replay_check must not be a coroutine function"):
        Checked.as_view()(rf.post("/", headers={"Idempotency-Key": "key-1"}))
