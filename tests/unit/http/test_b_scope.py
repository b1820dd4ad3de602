"""Section B: whose key it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.core.checks import run_checks
from rest_framework.authentication import BaseAuthentication
from rest_framework.permissions import AllowAny
from rest_framework.request import Request

from django_idempotency.exceptions import ScopeMissing
from django_idempotency.http import scopes
from django_idempotency.http.scopes import tenant_and_user
from django_idempotency.models import IdempotencyRecord
from tests.app.models import Effect
from tests.app.views import EffectView
from tests.unit.http.api import Api, problem, replayed
from tests.unit.http.conftest import InProgress, Mount, SetPolicy
from tests.unit.http.views import BareView

pytestmark = pytest.mark.django_db


def tenant(request: Any) -> str | None:
    """A scope for the dotted path below: the tenant alone."""
    name: str | None = request.headers.get("X-Tenant")
    if name is None:
        raise ScopeMissing
    return name


# Users.


def test_R19_two_users_with_one_key_run_twice(api: Api, mode: str, runs: list[str]) -> None:
    alice, bob = api(user="alice"), api(user="bob")

    assert (alice.status_code, bob.status_code) == (201, 201)
    assert not replayed(bob)
    assert bob.content != alice.content
    assert len(runs) == 2
    assert IdempotencyRecord.objects.count() == 2


def test_R19_each_user_gets_the_own_answer_again(api: Api) -> None:
    alice, bob = api(user="alice"), api(user="bob")

    assert api(user="alice").content == alice.content
    assert api(user="bob").content == bob.content


def test_R19_scope_names_model_and_pk(api: Api) -> None:
    api(user="alice")

    assert IdempotencyRecord.objects.get().scope == f"user:auth.user:{User.objects.get().pk}"


@dataclass
class Machine:
    """A principal that is no row of the user table."""

    pk: int
    is_authenticated: bool = True


class MachineAuthentication(BaseAuthentication):
    """``X-Machine: 7`` is machine 7, ``X-Person: 7`` the user with this primary key."""

    def authenticate(self, request: Request) -> tuple[Any, None]:
        if number := request.headers.get("X-Machine"):
            return Machine(int(number)), None
        return User.objects.get(pk=int(request.headers["X-Person"])), None


def test_R19_one_pk_in_two_models_is_two_principals(
    api: Api, mount: Mount, runs: list[str]
) -> None:
    class Both(BareView):
        authentication_classes = [MachineAuthentication]

    url, pk = mount(Both), str(User.objects.create(username="person").pk)

    person = api(path=url, user=None, headers={"X-Person": pk})
    machine = api(path=url, user=None, headers={"X-Machine": pk})

    assert (person.status_code, machine.status_code) == (201, 201)
    assert not replayed(machine)
    assert len(runs) == 2


def test_R19_classes_of_one_name_in_two_packages_are_two_principals() -> None:
    """As the users of two packages for tokens may be called."""
    theirs = type("Machine", (Machine,), {"__module__": "another.package"})

    assert scopes.of_user(Machine(7)) != scopes.of_user(theirs(7))
    assert scopes.of_user(Machine(7)) == f"user:{__name__}.Machine:7"


# The scope is a choice.


def test_R19_tenant_and_user(api: Api, mount: Mount, runs: list[str]) -> None:
    class Tenants(BareView):
        idempotency_scope = staticmethod(
            tenant_and_user(lambda request: request.headers.get("X-Tenant"))
        )

    url = mount(Tenants)
    callers = [("alice", "red"), ("alice", "blue"), ("bob", "red")]
    for user, name in callers:
        assert not replayed(api(path=url, user=user, headers={"X-Tenant": name}))
    for user, name in callers:
        assert replayed(api(path=url, user=user, headers={"X-Tenant": name}))
    assert len(runs) == 3


def test_R19_tenant_that_is_missing_is_a_problem(api: Api, mount: Mount) -> None:
    class Tenants(BareView):
        idempotency_scope = staticmethod(
            tenant_and_user(lambda request: request.headers.get("X-Tenant"))
        )

    assert problem(api(path=mount(Tenants))) == (400, "scope_missing")


def test_R19_scope_as_a_method_replaces_the_user(api: Api, mount: Mount, runs: list[str]) -> None:
    class Shared(BareView):
        def idempotency_scope(self, request: Request) -> str:
            return f"tenant {request.headers['X-Tenant']}"

    url = mount(Shared)
    first = api(path=url, user="alice", headers={"X-Tenant": "red"})
    colleague = api(path=url, user="bob", headers={"X-Tenant": "red"})

    assert replayed(colleague)
    assert colleague.content == first.content
    assert IdempotencyRecord.objects.get().scope == "tenant red"
    assert not replayed(api(path=url, user="alice", headers={"X-Tenant": "blue"}))


def test_R19_scope_as_a_dotted_path_in_the_setting(api: Api, policy: SetPolicy) -> None:
    policy(HTTP={"SCOPE": "tests.unit.http.test_b_scope.tenant"})

    api(user="alice", headers={"X-Tenant": "red"})

    assert IdempotencyRecord.objects.get().scope == "red"
    assert replayed(api(user="bob", headers={"X-Tenant": "red"}))


@pytest.mark.parametrize("scope", ["tests.unit.http.test_b_scope.nothing", "nowhere.at.all"])
def test_R19_dotted_path_must_import(api: Api, policy: SetPolicy, scope: str) -> None:
    policy(HTTP={"SCOPE": scope})

    with pytest.raises(ImportError):
        api()


@pytest.mark.parametrize("scope", [None, 7, ""], ids=["None", "a number", "empty"])
def test_R21_scope_that_names_nobody_never_runs(
    api: Api, mount: Mount, runs: list[str], scope: Any
) -> None:
    class Unnamed(BareView):
        def idempotency_scope(self, request: Request) -> Any:
            return scope

    api.client.raise_request_exception = False

    response = api(path=mount(Unnamed))

    assert response.status_code in (400, 500)
    assert runs == []
    assert not IdempotencyRecord.objects.exists()


class Visitors(BareView):
    authentication_classes = []
    permission_classes = [AllowAny]
    idempotency_scope = "django_idempotency.http.scopes.session"


def test_R19_session_scope_for_visitors(api: Api, mount: Mount, runs: list[str]) -> None:
    url, stranger = mount(Visitors), Api()
    for visitor in (api, stranger):
        session = visitor.client.session
        session["basket"] = []
        session.save()

    first, again = api(path=url, user=None), api(path=url, user=None)
    other = stranger(path=url, user=None)

    assert (first.status_code, replayed(first)) == (201, False)
    assert replayed(again)
    assert not replayed(other)
    assert len(runs) == 2


def test_R97_session_scope_begins_no_session(api: Api, mount: Mount, runs: list[str]) -> None:
    """A retry whose first answer was lost would come without its cookie, and run again."""
    response = api(path=mount(Visitors), user=None)

    assert problem(response) == (400, "scope_missing")
    assert not response.cookies
    assert not Session.objects.exists()
    assert runs == []


def by_host(request: Request) -> str:
    return request.get_host()


@pytest.mark.parametrize("tenant", [None, by_host])
def test_R19_tenants_by_host_name_meet_unless_the_scope_names_them(
    api: Api, policy: SetPolicy, settings: Any, runs: list[str], tenant: Any
) -> None:
    """As the threat model says: neither the scope nor the fingerprint holds the host."""
    settings.ALLOWED_HOSTS = ["a.example.com", "b.example.com"]
    policy(HTTP={"SCOPE": tenant and tenant_and_user(tenant)})

    answers = [api(headers={"Host": host}) for host in settings.ALLOWED_HOSTS]

    assert [replayed(answer) for answer in answers] == [False, tenant is None]
    assert len(runs) == (1 if tenant is None else 2)


# Tokens.


class TokenAuthentication(BaseAuthentication):
    """``X-Token: alice.2`` is alice with her second token."""

    def authenticate(self, request: Request) -> tuple[User, str]:
        token = request.headers["X-Token"]
        return User.objects.get_or_create(username=token.split(".")[0])[0], token


def test_R20_a_refreshed_token_is_the_same_scope(api: Api, mount: Mount, runs: list[str]) -> None:
    class Tokens(BareView):
        authentication_classes = [TokenAuthentication]

    url = mount(Tokens)
    first = api(path=url, user=None, headers={"X-Token": "alice.1"})
    refreshed = api(path=url, user=None, headers={"X-Token": "alice.2"})

    assert first.status_code == 201
    assert replayed(refreshed)
    assert len(runs) == 1


# Nobody.


def test_R21_anonymous_with_a_key_is_a_problem(api: Api, runs: list[str]) -> None:
    response = api(user=None, path="/optional/")

    assert problem(response) == (400, "scope_missing")
    assert runs == []
    assert not IdempotencyRecord.objects.exists()


@pytest.mark.parametrize("nobody", [None, ""])
def test_R21_scope_that_names_nobody_is_a_problem(
    api: Api, policy: SetPolicy, runs: list[str], nobody: str | None
) -> None:
    policy(HTTP={"SCOPE": lambda request: nobody})

    assert problem(api(path="/optional/")) == (400, "scope_missing")
    assert runs == []


def test_R21_the_address_of_the_client_is_no_scope(api: Api) -> None:
    for address in ("192.0.2.1", "192.0.2.2"):
        api.client.defaults["REMOTE_ADDR"] = address

        assert problem(api(user=None, path="/optional/")) == (400, "scope_missing")


def test_R21_anyone_makes_keys_capabilities(api: Api, policy: SetPolicy, runs: list[str]) -> None:
    policy(HTTP={"SCOPE": "django_idempotency.http.scopes.anyone"})

    first, again = (api(user=None, path="/optional/") for _ in range(2))

    assert first.status_code == 201
    assert replayed(again)
    assert len(runs) == 1


def test_R21_a_check_finds_views_that_know_nobody(mount: Mount) -> None:
    class Nobody(BareView):
        authentication_classes = []
        permission_classes = [AllowAny]

    mount(Nobody)

    found = [message for message in run_checks() if "Nobody" in str(message)]

    assert found
    assert all(message.id.startswith("django_idempotency.") for message in found)


def test_R21_the_check_is_content_with_a_scope_of_its_own(mount: Mount) -> None:
    class Capability(BareView):
        authentication_classes = []
        permission_classes = [AllowAny]
        idempotency_scope = "django_idempotency.http.scopes.anyone"

    mount(Capability)

    assert not [message for message in run_checks() if "Capability" in str(message)]


# Nothing crosses.


def told(response: Any) -> tuple[int, bytes, dict[str, str]]:
    """Return all that a response tells, but for the second in which it was made."""
    headers = dict(response.headers)
    if "Idempotency-Expires" in headers:
        headers["Idempotency-Expires"] = "some time"
    return response.status_code, response.content, headers


@pytest.mark.parametrize("status", [200, 409, 422, 400, 500])
def test_R22_I10_a_key_that_somebody_used_looks_like_any_other(
    api: Api, mode: str, status: int
) -> None:
    api({"name": "alice's", "then": "returned", "status": 200}, key="used", user="alice")

    used = api.then("returned", status=status, key="used", user="bob")
    fresh = api.then("returned", status=status, key="fresh", user="bob")

    assert used.status_code == status
    assert told(used) == told(fresh)


def test_R22_also_while_it_is_in_progress(api: Api, in_progress: InProgress, mode: str) -> None:
    api.then("returned", status=200, key="used", user="alice")
    in_progress()

    used = api.then("returned", status=200, key="used", user="bob")
    fresh = api.then("returned", status=200, key="fresh", user="bob")

    assert used.status_code == 200
    assert told(used) == told(fresh)


# Endpoints.


def test_R23_one_key_on_two_endpoints_is_422(api: Api, mount: Mount, runs: list[str]) -> None:
    one, other = mount(BareView), mount(BareView)

    first, second = api(path=one), api(path=other)

    assert first.status_code == 201
    assert problem(second) == (422, "idempotency_key_reused")
    assert len(runs) == 1


def test_R23_scope_endpoint_keeps_them_apart(
    api: Api, policy: SetPolicy, mount: Mount, runs: list[str]
) -> None:
    policy(HTTP={"SCOPE_ENDPOINT": True})
    urls = [mount(BareView), mount(EffectView)]

    assert [api(path=url).status_code for url in urls] == [201, 201]
    assert [replayed(api(path=url)) for url in urls] == [True, True]
    assert IdempotencyRecord.objects.count() == 2
    assert len(runs) == 2


def test_R23_scope_endpoint_still_keeps_users_apart(
    api: Api, policy: SetPolicy, runs: list[str]
) -> None:
    policy(HTTP={"SCOPE_ENDPOINT": True})

    api(user="alice")

    assert not replayed(api(user="bob"))
    assert Effect.objects.count() == 2
