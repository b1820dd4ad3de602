"""Section B: whose key it is."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.contrib.sessions.models import Session
from django.urls import path
from rest_framework.permissions import AllowAny
from rest_framework.request import Request

from django_idempotency.exceptions import ScopeMissing
from django_idempotency.http import scopes
from django_idempotency.http.scopes import tenant_and_user
from django_idempotency.models import IdempotencyRecord
from tests.unit.http.api import problem, replayed
from tests.unit.http.views import ANYONE, BareView

pytestmark = pytest.mark.django_db

MISSING = (400, "scope_missing")


@dataclass
class Machine:
    """A principal that is no row of the user table."""

    pk: Any
    is_authenticated: bool = True


def asked_by(principal: Any, **attributes: Any) -> Any:
    return SimpleNamespace(user=principal, **attributes)


# The scope of a request.


def test_R19_each_principal_has_a_scope_of_its_own():
    """A primary key that two models or two classes of one name share makes no two of them one."""
    theirs = type("Machine", (Machine,), {"__module__": "another.package"})
    principals = [User(pk=7), User(pk=8), Machine(7), theirs(7)]

    found = [scopes.user(asked_by(principal)) for principal in principals]

    assert found[0] == "user:auth.user:7"
    assert found[2] == f"user:{__name__}.Machine:7"
    assert len(set(found)) == 4


def test_R21_who_is_nobody_has_no_scope():
    nobodies = [None, AnonymousUser(), Machine(7, is_authenticated=False), Machine(None)]

    for request in [SimpleNamespace(), *map(asked_by, nobodies)]:
        with pytest.raises(ScopeMissing):
            scopes.user(request)


def test_R19_tenant_and_user_do_not_run_together():
    """``tenant:a:b:c`` would be tenant a with user b:c, and tenant a:b with user c."""
    pairs = [("a", "b:c"), ("a:b", "c"), ("", "a:b:c"), ("1:a", "c"), ("a:", "b:c")]

    assert len({scopes.of_tenant(name, principal) for name, principal in pairs}) == len(pairs)


def test_R19_tenant_is_part_of_the_scope_or_missing():
    scope = tenant_and_user(lambda request: request.tenant)
    callers = [(User(pk=7), "red"), (User(pk=7), "blue"), (User(pk=8), "red")]

    assert len({scope(asked_by(user, tenant=tenant)) for user, tenant in callers}) == 3
    for user, tenant in [(User(pk=7), None), (AnonymousUser(), "red")]:
        with pytest.raises(ScopeMissing):
            scope(asked_by(user, tenant=tenant))


# In a request.


def test_R19_two_users_with_one_key_run_twice(api, runs):
    alice, bob = api(user="alice"), api(user="bob")

    assert (alice.status_code, bob.status_code) == (201, 201)
    assert not replayed(bob)
    assert bob.content != alice.content
    assert [api(user=name).content for name in ("alice", "bob")] == [alice.content, bob.content]
    assert len(runs) == IdempotencyRecord.objects.count() == 2


@pytest.mark.parametrize(
    ("scope", "error"),
    [
        (f"{__name__}.nothing", ImportError),
        ("nowhere.at.all", ImportError),
        (lambda request: 7, TypeError),
    ],
)
def test_R19_R21_scope_that_is_no_text_is_an_error(api, policy, runs, scope, error):
    policy(HTTP={"SCOPE": scope})

    with pytest.raises(error):
        api()
    assert runs == []


@pytest.mark.parametrize("tenant", [None, lambda request: request.get_host()])
def test_R19_tenants_by_host_name_meet_unless_the_scope_names_them(api, policy, settings, tenant):
    """As the threat model says: neither the scope nor the fingerprint holds the host."""
    settings.ALLOWED_HOSTS = ["a.example.com", "b.example.com"]
    policy(HTTP={"SCOPE": tenant and tenant_and_user(tenant)})

    answers = [api(headers={"Host": host}) for host in settings.ALLOWED_HOSTS]

    assert [replayed(answer) for answer in answers] == [False, tenant is None]


# Nobody.


@pytest.mark.parametrize("nobody", [None, ""])
def test_R21_scope_that_names_nobody_is_a_problem(api, policy, runs, nobody):
    policy(HTTP={"SCOPE": lambda request: nobody})

    assert problem(api()) == MISSING
    assert runs == []


def test_R21_anyone_makes_keys_capabilities(api, policy, runs):
    policy(HTTP={"SCOPE": ANYONE})

    answers = [api(user=None, path="/optional/") for _ in range(2)]

    assert [replayed(answer) for answer in answers] == [False, True]
    assert len(runs) == 1


def test_R97_session_scope_begins_no_session(api, mount, runs):
    """A retry whose first answer was lost would come without its cookie, and run again."""

    class Visitors(BareView):
        authentication_classes = []
        permission_classes = [AllowAny]
        idempotency_scope = "django_idempotency.http.scopes.session"

    response = api(path=mount(Visitors), user=None)

    assert problem(response) == MISSING
    assert not response.cookies
    assert not Session.objects.exists()
    assert runs == []


# Nothing crosses.


def told(response: Any) -> tuple[int, bytes, dict[str, str]]:
    """Return all that a response tells, but for the second in which it was made."""
    headers = {name: text for name, text in response.headers.items() if "Expires" not in name}
    return response.status_code, response.content, headers


@pytest.mark.parametrize("status", [200, 400, 500])
def test_R22_I10_a_key_that_somebody_used_looks_like_any_other(api, status):
    api({"name": "alice's", "then": "returned", "status": 200}, key="used", user="alice")

    used = api.then("returned", status=status, key="used", user="bob")
    fresh = api.then("returned", status=status, key="fresh", user="bob")

    assert used.status_code == status
    assert told(used) == told(fresh)


class ByHeader(BareView):
    idempotency_scope_endpoint = True

    def idempotency_scope(self, request: Request) -> str:
        return request.headers["X-Scope"]


def test_R23_endpoint_and_scope_do_not_run_together(api, settings, runs):
    """``POST same a:x:y`` would be route a with scope x:y, and route a:x with scope y."""
    routes = [path(route, ByHeader.as_view(), name="same") for route in ("a", "a:x", "a:x:y")]
    settings.ROOT_URLCONF = type("TwoRoutes", (), {"urlpatterns": routes})
    sent = [("/a", "x:y"), ("/a:x", "y"), ("/a", "x"), ("/a:x", "x:y"), ("/a:x:y", "y")]

    answers = [api(path=route, headers={"X-Scope": scope}) for route, scope in sent]

    assert [answer.status_code for answer in answers] == [201] * 5
    assert IdempotencyRecord.objects.count() == len(runs) == 5
