"""keyed_client, keyed_clients, and the marker: which requests get a key, and which do not."""

from __future__ import annotations

import asyncio

import pytest
from django.contrib.auth.models import User
from django.http import HttpResponse
from django.test import AsyncClient, Client, SimpleTestCase, TestCase
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.csrf import csrf_exempt
from rest_framework.decorators import api_view
from rest_framework.test import APIClient, RequestsClient

from django_idempotency.http import idempotent
from django_idempotency.models import IdempotencyRecord
from django_idempotency.testing import keyed_client, keyed_clients

METHODS = ("post", "put", "patch", "delete")


def show(request):
    return HttpResponse(request.headers.get("Idempotency-Key", "none"), headers={"X-As": "shown"})


def form(request):
    """Show the key of the form, or else of the header field."""
    key = request.POST.get("idempotency_key") or request.POST.get("other")
    return HttpResponse(key) if key else show(request)


class Checkout(View):
    @method_decorator(idempotent(required=True))
    def post(self, request):
        return form(request)


ANYONE = "django_idempotency.http.scopes.anyone"
of_anyone = idempotent(required=True, scope=ANYONE)


@of_anyone
@api_view(["POST"])
def api(request):
    return show(request)


@api_view(["POST"])
@of_anyone
def below(request):
    return show(request)


urlpatterns = [
    path("", show),
    path("bare/", form),
    path("exempt/", csrf_exempt(form)),
    path("form/", idempotent(required=True)(form)),
    path("class/", Checkout.as_view()),
    path("named/", idempotent(required=True, form_field="other", scope=ANYONE)(form)),
    path("api/", api),
    path("below/", below),
]


@pytest.fixture(autouse=True)
def urls(settings):
    settings.ROOT_URLCONF = __name__


def sent(client, method="post", to="/", **given):
    """Return the key with which a request of the client has arrived."""
    answer = getattr(client, method)(to, **given)
    if asyncio.iscoroutine(answer):
        answer = asyncio.run(answer)
    return answer.content.decode()


@pytest.fixture(params=[Client, APIClient, AsyncClient])
def kind(request):
    return request.param


@pytest.fixture(params=["class", "client", "all", "twice"])
def keyed(request, kind):
    """`keyed(…)`: a client that adds keys."""
    with keyed_clients() if request.param in ("all", "twice") else pytest.MonkeyPatch.context():
        match request.param:
            case "class" | "twice":
                yield keyed_client(kind)
            case "client":
                yield lambda **given: keyed_client(kind(**given))
            case "all":
                yield kind


def test_each_unsafe_request_has_a_key_of_its_own(keyed):
    client = keyed()

    keys = [sent(client, method) for method in METHODS]

    assert len({*keys, "none"}) == 5
    assert {len(key) for key in keys} == {38}, "a quoted UUID"


def test_a_safe_request_and_one_that_says_so_have_none(keyed):
    client = keyed()

    assert [sent(client, method) for method in ("get", "options")] == ["none"] * 2
    assert sent(client, headers={"idempotency-key": None}) == "none"


def test_a_key_of_the_test_stays(keyed):
    assert sent(keyed(), headers={"idempotency-key": "mine"}) == "mine"
    if not isinstance(keyed(), AsyncClient):  # which sends such fields under another name
        assert sent(keyed(headers={"Idempotency-Key": "mine"})) == "mine"
        assert sent(keyed(), HTTP_IDEMPOTENCY_KEY="mine") == "mine"


def test_a_form_has_its_own_key_and_a_member_of_JSON_is_none(keyed):
    form = "idempotency_key=hidden"
    assert sent(keyed(), data={"idempotency_key": "hidden"}) == "none"
    assert sent(keyed(), data=form, content_type="application/x-www-form-urlencoded") == "none"
    assert sent(keyed(), data='{"idempotency_key": 1}', content_type="application/json") != "none"


MULTIPART = {"data": {"item": "tea"}}
URLENCODED = {"data": "item=tea", "content_type": "application/x-www-form-urlencoded"}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("to", ["/form/", "/class/"])
def test_R89_a_visitors_form_has_its_key_in_the_field_and_belongs_to_one_session(keyed, to):
    client = keyed()

    keys = [sent(client, to=to, **given) for given in (MULTIPART, URLENCODED)]

    assert [len(key) for key in {*keys}] == [36, 36], "a bare UUID"
    [scope] = IdempotencyRecord.objects.values_list("scope", flat=True).distinct()
    assert scope.startswith("session:")


@pytest.mark.django_db
def test_R89_a_users_form_is_the_users():
    user = User.objects.create(username="alice")
    keyed_client(client := Client()).force_login(user)

    assert len(sent(client, to="/form/", **MULTIPART)) == 36
    assert IdempotencyRecord.objects.get().scope == f"user:auth.user:{user.pk}"


@pytest.mark.django_db
def test_R89_the_middleware_reads_a_form_unless_its_view_is_exempt(settings):
    guard = "django_idempotency.http.middleware.IdempotencyMiddleware"
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, guard]
    client = keyed_client(Client())

    assert len(sent(client, to="/bare/", **MULTIPART)) == 36
    assert "scope_missing" in sent(client, to="/exempt/", **MULTIPART)  # by a header field


@pytest.mark.django_db
def test_R89_the_field_is_that_of_the_view_and_the_header_field_where_no_guard_reads_a_form():
    client = keyed_client(APIClient())

    assert len(sent(client, to="/named/", **MULTIPART)) == 36
    assert not client.cookies, "a scope of its own needs no session"
    for method, to in (
        ("put", "/named/"),
        *(("post", to) for to in ("/bare/", "/api/", "/below/")),
    ):
        assert len(sent(client, method, to, **MULTIPART)) == 38


def test_outside_of_the_block_clients_add_nothing_and_credentials_stay(kind):
    with keyed_clients(header="Idempotency-Key", new_key=lambda: "drawn"):
        assert sent(kind()) == "drawn"
    assert sent(kind()) == "none"

    client = APIClient()
    client.credentials(HTTP_IDEMPOTENCY_KEY="credential")
    assert sent(keyed_client(client)) == "credential"


def test_what_is_no_test_client_is_told():
    with pytest.raises(TypeError, match="generic"):
        keyed_client(RequestsClient)


def test_keyed_clients_around_a_class_and_a_coroutine_runs_their_tests():
    """A test that is not awaited passes, whatever it says."""
    keys = []

    @keyed_clients()
    class Case(SimpleTestCase):
        def test_a_client(self):
            keys.append(sent(self.client))

    class Coroutine(SimpleTestCase):
        @keyed_clients()
        async def test_a_client(self):
            keys.append((await self.async_client.post("/")).content.decode())

    for case in (Case, Coroutine):
        case("test_a_client").debug()
    assert len({*keys, "none"}) == 3
    assert sent(Client()) == "none"


@pytest.mark.idempotency_keys
def test_the_marker_keys_all_clients(kind):
    assert sent(kind()) != "none"


@pytest.mark.usefixtures("idempotency_keys")
class TestNone:
    @pytest.mark.idempotency_keys(False)
    def test_the_marker_takes_them_away_again(self, kind):
        assert sent(kind()) == "none"

    @pytest.mark.idempotency_keys(on=False)
    def test_so_it_does_by_name(self, kind):
        assert sent(kind()) == "none"


@pytest.mark.idempotency_keys(new_key=lambda: "drawn")
class MarkedTests(TestCase):
    def test_the_marker_works_on_a_case_of_unittest(self):
        assert sent(self.client) == "drawn"
