"""Sections A, B and E, R1 to R23, R49: the key, whose it is, and duplicates under way."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.urls import path
from django.utils.functional import SimpleLazyObject
from rest_framework.request import Request

from django_idempotency.exceptions import ScopeMissing
from django_idempotency.http import scopes
from django_idempotency.http.scopes import tenant_and_user
from django_idempotency.models import IdempotencyRecord
from django_idempotency.policy import UNSET
from tests.unit.http.api import problem
from tests.unit.http.views import BareView

pytestmark = pytest.mark.django_db

UUID4 = "8e03978e-40d5-43e8-bc93-6894a57f9324"
UUID7 = "01890a5d-ac96-774b-bcce-b302099a8057"
MISSING = (400, "idempotency_key_missing")
NO_SCOPE = (400, "scope_missing")


def test_R1_documentation_url_is_a_choice(api, policy):
    for given, page in (
        ("p#", "p#{0}"),
        ("p?q=", "p?q={0}"),
        ("p/", "p/{0}.html"),
        ("p", "p/{0}.html"),
    ):
        policy(HTTP={"DOCUMENTATION_URL": f"https://shop.example/{given}"})
        told = api(key=None).json()["type"]
        assert told == f"https://shop.example/{page.format('idempotency_key_missing')}"


def test_R1_required_by_the_setting_unless_the_view_decides(api, policy, mount):
    silent = type("Silent", (BareView,), {"idempotency_required": UNSET})
    deciding = type("Deciding", (BareView,), {"idempotency_required": False})
    policy(HTTP={"REQUIRED": True})
    assert problem(api(key=None, path=mount(silent))) == MISSING
    assert api(key=None, path=mount(deciding)).status_code == 201


def test_R9_R10_policy_says_which_keys_are_taken(api, policy, runs):
    bounds, uuids, uuid7s = (
        {"KEY_MIN_LENGTH": 10, "KEY_MAX_LENGTH": 20, "KEY_VALIDATOR": None},
        {"KEY_MIN_LENGTH": 1, "KEY_MAX_LENGTH": 255, "KEY_VALIDATOR": "uuid"},
        {"KEY_VALIDATOR": "uuid7"},
    )
    taken = [
        *((bounds, "k" * 9, 400), (bounds, f'"{"k" * 20}"', 201), (bounds, "k" * 21, 400)),
        *((uuids, UUID4.upper(), 201), (uuids, UUID4.replace("-", ""), 400)),
        *((uuid7s, UUID7, 201), (uuid7s, UUID4, 400), (uuid7s, "k" * 9, 400)),
    ]
    for http, field, status in taken:
        policy(HTTP=http)
        answer = api(key=field)
        assert answer.status_code == status, field
    assert "a UUID of version 7" in answer.json()["detail"]
    assert len(runs) == 3


# A duplicate while the first is at work.


def test_R37_R49_statuses_are_a_choice(api, in_progress, policy):
    policy(HTTP={"MISMATCH_STATUS": 409, "IN_PROGRESS_STATUS": 425})
    api()
    in_progress()
    assert problem(api()) == (425, "in_progress")
    assert problem(api({"name": "other"})) == (409, "idempotency_key_reused")


def test_R16_the_key_is_echoed_by_every_answer_to_a_valid_one(api, in_progress, policy):
    policy(HTTP={"ECHO_KEY": True})
    api()
    in_progress()
    told = api(), api({"name": "other"})
    assert [problem(answer)[1] for answer in told] == ["in_progress", "idempotency_key_reused"]
    assert [answer.headers["Idempotency-Key"] for answer in told] == ['"key-1"'] * 2

    for wrong in ("k" * 300, '"\\x"', None):  # what is no key is repeated nowhere
        assert "Idempotency-Key" not in api(key=wrong).headers


# The scope of a key.


@dataclass
class Machine:
    """A principal that is no row of the user table."""

    pk: Any
    is_authenticated: bool = True


def asked_by(principal: Any, **attributes: Any) -> Any:
    return SimpleNamespace(user=principal, **attributes)


def test_R19_each_principal_has_a_scope_of_its_own():
    """
    A primary key that two models or two classes of one name share makes no two of them one.

    Middleware gives a lazy one, as Django's does, and a token's authentication the other.
    """
    theirs = type("Machine", (Machine,), {"__module__": "another.package"})
    principals = [User(pk=7), User(pk=8), Machine(7), theirs(7)]
    lazy = [SimpleLazyObject(lambda found=principal: found) for principal in principals]

    found = [scopes.user(asked_by(principal)) for principal in principals]

    assert found[0] == "user:auth.user:7"
    assert found[2] == f"user:{__name__}.Machine:7"
    assert len(set(found)) == 4
    assert [scopes.user(asked_by(principal)) for principal in lazy] == found


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


def test_R19_R21_scope_that_is_no_text_is_an_error(api, policy, runs):
    lazy = SimpleLazyObject(lambda: "acme")  # says that it is a str, and no store can write it
    for scope, error in (
        (f"{__name__}.nothing", ImportError),
        (lambda request: 7, TypeError),
        (lambda request: lazy, TypeError),
    ):
        policy(HTTP={"SCOPE": scope})
        with pytest.raises(error):
            api()
    assert runs == []


def test_R21_scope_that_names_nobody_is_a_problem(api, policy, runs):
    for nobody in (None, ""):
        policy(HTTP={"SCOPE": lambda request, nobody=nobody: nobody})
        assert problem(api()) == NO_SCOPE
    assert runs == []


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
