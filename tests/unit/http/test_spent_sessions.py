"""R51: a replay writes no session data, and sets and deletes no session cookie."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib import messages
from django.contrib.auth import login
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory
from rest_framework.request import Request
from rest_framework.views import APIView

from django_idempotency.contrib.rest_framework import IdempotencyMixin
from django_idempotency.http import idempotent, scopes
from django_idempotency.models import IdempotencyRecord
from tests.unit.http.api import problem, replayed
from tests.unit.http.conftest import SetPolicy
from tests.unit.http.views import ANYONE
from tests.unit.views.conftest import AsgiClient

pytestmark = pytest.mark.django_db(transaction=True)


class Overtaken:
    """A middleware of the project that uses the session; meanwhile another request is served."""

    meanwhile: Callable[[], object] | None = None

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        request.session["seen"] = request.session.get("seen", 0) + 1
        meanwhile, Overtaken.meanwhile = Overtaken.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        response = self.get_response(request)
        request.session["last"] = request.path
        response["X-Cart"] = str(request.session.get("cart"))
        response["X-User"] = str(request.user)
        return response


def looks_afterwards(get_response: Any) -> Any:
    def middleware(request: HttpRequest) -> HttpResponse:
        response: HttpResponse = get_response(request)
        response["X-Cart"] = str(request.session.get("cart"))
        return response

    return middleware


def fill(request: HttpRequest) -> None:
    request.session["cart"] = ["tea", "coffee"]


def cycle(request: HttpRequest) -> None:
    fill(request)
    request.session.cycle_key()


def enter(request: HttpRequest) -> None:
    fill(request)
    login(request, User.objects.create(username="alice"))


def leave(request: HttpRequest) -> None:
    request.session.flush()


WORK = {"fill": fill, "cycle": cycle, "enter": enter, "leave": leave}


def buy(request: Any) -> HttpResponse:
    request = getattr(request, "_request", request)
    WORK[request.GET["work"]](request)
    messages.success(request, "Thank you")
    return HttpResponse(status=201)


async def abuy(request: HttpRequest) -> HttpResponse:
    return HttpResponse(str((await request.session.aget("cart"))[0]), status=201)


class Buy(IdempotencyMixin, APIView):
    authentication_classes: Any = ()
    idempotency_scope = ANYONE

    def post(self, request: Request) -> HttpResponse:
        return buy(request)


class Browser:
    """Keeps its cookies, as a browser does, and sends two clicks with those of before the first."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.client.raise_request_exception = False
        session = self.client.session
        session["cart"] = ["tea"]
        session.save()
        self.client.cookies["sessionid"] = session.session_key

    def click(self, url: str, **headers: str) -> Any:
        sent = type(self.client)(raise_request_exception=False)
        sent.cookies.load(self.client.cookies.output(header="", sep=";"))
        return sent.generic("POST", url, headers={"Idempotency-Key": "key-1", **headers})

    def take(self, response: Any) -> Any:
        """Take the cookies of an answer."""
        self.client.cookies.update(response.cookies)
        return response

    @property
    def kept(self) -> dict[str, Any]:
        return dict(self.client.session)


@pytest.fixture
def project(policy: SetPolicy, settings: Any, tmp_path: Any) -> Any:
    policy(HTTP={"SCOPE": ANYONE})
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, f"{__name__}.Overtaken"]
    settings.SESSION_FILE_PATH = str(tmp_path)
    yield settings
    Overtaken.meanwhile = None


@pytest.mark.parametrize(
    ("engine", "work", "every"),
    [
        ("db", "fill", False),
        ("db", "cycle", True),
        ("db", "enter", False),
        ("db", "leave", True),
        ("cache", "fill", True),
        ("cache", "cycle", False),
        ("cached_db", "leave", False),
        ("cached_db", "enter", True),
        ("file", "fill", True),
        ("file", "cycle", False),
        ("signed_cookies", "fill", False),
        ("signed_cookies", "leave", True),
    ],
)
def test_R51_a_replay_leaves_the_session_to_the_work(project, mount, engine, work, every):
    """It has loaded the session before the work changed it, and has not seen that."""
    project.SESSION_ENGINE = f"django.contrib.sessions.backends.{engine}"
    project.SESSION_SAVE_EVERY_REQUEST = every
    url, browser = f"{mount(idempotent(buy))}?work={work}", Browser(Client())
    first: list[Any] = []
    Overtaken.meanwhile = lambda: first.append(browser.click(url))

    second = browser.click(url)
    browser.take(first[0])
    kept = browser.kept
    browser.take(second)

    assert (first[0].status_code, second.status_code, replayed(second)) == (201, 201, True)
    assert "sessionid" not in second.cookies
    assert browser.kept == kept
    assert kept.get("cart") == (None if work == "leave" else ["tea", "coffee"])
    assert ("_auth_user_id" in kept) is (work == "enter")


def test_R51_middleware_outside_reads_the_session_as_it_came(project, mount):
    """What it writes there goes with the replay."""
    url, browser = f"{mount(idempotent(buy))}?work=enter", Browser(Client())
    first: list[Any] = []
    Overtaken.meanwhile = lambda: first.append(browser.click(url))

    second = browser.click(url)

    assert (first[0]["X-Cart"], first[0]["X-User"]) == ("['tea', 'coffee']", "alice")
    assert (second["X-Cart"], second["X-User"]) == ("['tea']", "AnonymousUser")
    assert second["Vary"] == first[0]["Vary"] == "Cookie"


def test_R51_middleware_that_is_the_first_to_look_reads_what_the_work_has_left(project, mount):
    project.MIDDLEWARE = [*project.MIDDLEWARE[:-1], f"{__name__}.looks_afterwards"]
    url, browser = f"{mount(idempotent(buy))}?work=fill", Browser(Client())

    answers = [browser.click(url) for _ in range(2)]

    assert [answer["X-Cart"] for answer in answers] == ["['tea', 'coffee']"] * 2


@pytest.mark.parametrize("made", [idempotent(buy), Buy], ids=["function", "mixin"])
def test_R51_replay_by_either_adapter(project, mount, made):
    url, browser = f"{mount(made)}?work=cycle", Browser(Client())
    project.SESSION_SAVE_EVERY_REQUEST = True
    browser.take(browser.click(url))
    kept = browser.kept

    again = browser.take(browser.click(url))

    assert (replayed(again), "sessionid" in again.cookies, browser.kept) == (True, False, kept)


def test_R51_replay_of_a_coroutine(project, mount):
    url, browser = mount(idempotent(abuy)), Browser(AsgiClient())

    first, again = browser.click(url), browser.click(url)

    assert (again.content, replayed(again)) == (b"tea", True)
    assert ("sessionid" in first.cookies, "sessionid" in again.cookies) == (True, False)


@pytest.mark.parametrize("every", [False, True], ids=["modified", "every"])
def test_R51_a_duplicate_in_progress_leaves_the_session_to_the_work(
    project, mount, in_progress, every
):
    """The work has logged the visitor in, under another key of the session."""
    project.SESSION_SAVE_EVERY_REQUEST = every
    url, browser = f"{mount(idempotent(buy))}?work=fill", Browser(Client())
    browser.click(url)
    in_progress()
    Overtaken.meanwhile = Session.objects.all().delete

    busy = browser.click(url)

    assert problem(busy) == (409, "in_progress")
    assert not busy.cookies
    assert not Session.objects.exists()


def test_R51_a_request_that_was_refused_before_its_claim_keeps_its_session(project, mount):
    """No other attempt is known, so the middleware's own is saved, as without the guard."""
    browser = Browser(Client())

    browser.take(browser.click(mount(idempotent(buy)), **{"Idempotency-Key": '""'}))

    assert browser.kept["seen"] == 1


def test_R51_work_that_comes_after_all_has_its_session(project, mount, in_progress):
    """A decorator of the project that tries again, in the same request, after a 409."""
    guarded = idempotent(buy)

    def tries_again(request: HttpRequest) -> HttpResponse:
        response = guarded(request)
        if response.status_code != 409:
            return response
        IdempotencyRecord.objects.all().delete()
        return guarded(request)

    url, browser = f"{mount(tries_again)}?work=leave", Browser(Client())
    browser.click(url)
    in_progress()

    browser = Browser(Client())
    answer = browser.take(browser.click(url))

    assert (answer.status_code, replayed(answer), browser.kept.get("cart")) == (201, False, None)


def test_R51_the_session_of_a_request_around_is_its_own(project, mount):
    """A view may ask another one, with a request of its own and the same session."""
    inner = idempotent(lambda request: HttpResponse(status=201))

    def outer(request: HttpRequest) -> HttpResponse:
        for _ in range(2):
            asked: Any = RequestFactory().post("/", headers={"Idempotency-Key": "key-2"})
            asked.session, asked.resolver_match = request.session, request.resolver_match
            answer = inner(asked)
        asked.session["cart"].append("of the replay")
        request.session["asked"] = True
        return answer

    browser = Browser(Client())
    again = browser.take(browser.click(mount(outer)))

    assert (replayed(again), browser.kept["asked"], browser.kept["cart"]) == (True, True, ["tea"])


def test_R51_R97_keys_of_a_session_replay_after_its_key_has_changed(project, policy, mount):
    policy(HTTP={"SCOPE": scopes.session})
    url, browser = f"{mount(idempotent(buy))}?work=cycle", Browser(Client())
    session = browser.client.session
    scopes.session_token(session)  # as the tag on the page of a form
    session.save()
    first: list[Any] = []
    Overtaken.meanwhile = lambda: first.append(browser.click(url))

    second = browser.click(url)
    browser.take(first[0])
    third = browser.click(url)

    assert [replayed(answer) for answer in (first[0], second, third)] == [False, True, True]
