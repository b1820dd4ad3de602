"""Each case is asked: does the guard change what a request leaves behind, and is it done once?"""
# mypy: ignore-errors

from __future__ import annotations

import functools
import gc
import logging
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from unittest import mock
from uuid import uuid4

import pytest
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY, get_user_model
from django.core.signals import request_finished, request_started
from django.db import close_old_connections, connection, connections, transaction
from django.test import override_settings
from psycopg import IsolationLevel

from django_idempotency.conf import stores
from django_idempotency.engine.waiting import poller
from django_idempotency.testing import crash_at
from django_idempotency.testing.crash import Crash
from tests.app.models import Effect
from tests.proof.pairs.client import Answer, Browser
from tests.proof.pairs.expected import OURS, Expected
from tests.proof.pairs.features import Case, cases
from tests.proof.pairs.project import MIDDLEWARE, Project
from tests.services.processes import wait_until
from tests.services.redis import redis_url

pytestmark = [
    pytest.mark.django_db(transaction=True, databases=["default", "other"]),
    # A file under ASGI: Django says it, and does it.
    pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume:Warning"),
]

BACKENDS = {
    "database": {},
    "other": {"OPTIONS": {"using": "other"}},
    "memory": {"BACKEND": "django_idempotency.stores.memory.MemoryStore"},
}
#: Middleware of ours in tests, by the feature's value.
MORE = {
    "locale": ["django.middleware.locale.LocaleMiddleware"],
    "gzip": ["django.middleware.gzip.GZipMiddleware"],
    "modified": ["tests.proof.pairs.test_pairs.session_is_modified"],
}


@pytest.fixture(scope="session")
def redis_server() -> Iterator[str]:
    with redis_url("valkey9") as url:
        yield url


def session_is_modified(get_response):
    """As some packages do, for each request."""

    def middleware(request):
        request.session.modified = True
        return get_response(request)

    return middleware


@dataclass
class Left:
    """What a request has left behind."""

    answer: Answer
    runs: int
    bodies: list
    rows: list[str]
    hooks: list[str]
    session: dict | None
    logged: list[tuple[str, str]]


class Site:
    """A project under settings of the case, and a browser with a user's session."""

    def __init__(self, case: Case, *, guarded: bool, url: str, lease: float = 60) -> None:
        self.case, self.guarded, self.url, self.lease = case, guarded, url, lease
        self.project = Project(case, guarded)
        self.browser = Browser(case)
        self.key = f"key-{uuid4().hex}"
        self.logged: list[tuple[str, str]] = []
        #: Blocks that were entered and not left.
        self.entered = 0

    def settings(self) -> dict:
        case = self.case
        middleware = [*MORE.get(case.middleware, ()), *MIDDLEWARE]
        if case.middleware == "modified":
            middleware = [MIDDLEWARE[0], *MORE["modified"], *MIDDLEWARE[1:]]
        if self.guarded and case.guard == "middleware":
            middleware.append("django_idempotency.http.middleware.IdempotencyMiddleware")
        store = BACKENDS.get(case.store)
        if store is None:
            url = "redis://127.0.0.1:1/0" if case.fail_open == "down" else self.url
            store = {
                "BACKEND": "django_idempotency.stores.redis.RedisStore",
                "OPTIONS": {"url": url, "prefix": f"pairs-{uuid4().hex}:"},
            }
        policy = {"LEASE": self.lease, "WAIT": 10 if case.wait == "yes" else 0}
        if case.mode != "default":
            policy["TRANSACTION"] = case.mode
        if case.encryption == "yes":
            policy["ENCRYPTION_KEYS"] = [bytes(32)]
        http = {
            "SCOPE": f"django_idempotency.http.scopes.{case.scope}",
            "SCOPE_ENDPOINT": case.endpoint == "yes",
            "FAIL_OPEN": case.fail_open != "no",
        }
        return {
            "MIDDLEWARE": ["tests.proof.pairs.client.without_csrf", *middleware],
            "ROOT_URLCONF": self.project.urlconf,
            "SESSION_SAVE_EVERY_REQUEST": case.middleware == "sliding",
            "IDEMPOTENCY": {"default": {**store, **policy, "HTTP": http}},
        }

    @contextmanager
    def open(self) -> Iterator[Site]:
        """Be under the project's settings, with a user who is logged in."""
        case = self.case
        default = connections.settings["default"]
        with ExitStack() as stack:
            stack.callback(stores.reset)
            stack.enter_context(override_settings(**self.settings()))
            stack.callback(Effect.objects.all().delete)
            atomic_requests = case.transactions == "atomic_requests"
            changes = {"ATOMIC_REQUESTS": atomic_requests}
            if case.isolation == "repeatable read":
                level = {"isolation_level": IsolationLevel.REPEATABLE_READ}
                changes["OPTIONS"] = {**default["OPTIONS"], **level}
            stack.enter_context(mock.patch.dict(default, changes))
            stack.callback(connections.close_all)
            connections.close_all()
            if case.atomic == "wrapped":
                stack.enter_context(self._wrapped())
            if case.server == "testcase":
                stack.enter_context(within_testcase())
            logging.getLogger().addHandler(handler := _Kept(self.logged))
            stack.callback(logging.getLogger().removeHandler, handler)
            self._log_in()
            yield self
        assert self.entered == 0, "blocks are entered and not left"

    @contextmanager
    def _wrapped(self) -> Iterator[None]:
        """Wrap Atomic as caches of the ORM do."""
        enter, leave = transaction.Atomic.__enter__, transaction.Atomic.__exit__

        @functools.wraps(enter)
        def entering(block):
            self.entered += 1
            return enter(block)

        @functools.wraps(leave)
        def leaving(block, *error):
            self.entered -= 1
            return leave(block, *error)

        wrapped = {"__enter__": entering, "__exit__": leaving}
        with mock.patch.multiple(transaction.Atomic, **wrapped):
            yield

    def _log_in(self) -> None:
        user = get_user_model().objects.create_user(f"user-{uuid4().hex}")
        session = import_module("django.contrib.sessions.backends.db").SessionStore()
        session[SESSION_KEY] = str(user.pk)
        session[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
        session[HASH_SESSION_KEY] = user.get_session_auth_hash()
        session["before"] = 1
        session.create()
        self.browser.cookies["sessionid"] = session.session_key

    def session(self) -> dict | None:
        """Return what the browser's session holds; None if it is gone."""
        kept = import_module("django.contrib.sessions.backends.db").SessionStore(
            self.browser.cookies.get("sessionid")
        )
        if not kept.session_key or not kept.exists(kept.session_key):
            return None
        return {name: value for name, value in kept.load().items() if not name.startswith("_")}

    def post(self) -> Left:
        """Send the request."""
        del self.logged[:]
        return self.left(self.browser.post(self.key))

    def left(self, answer: Answer) -> Left:
        """Return what has been left behind by now, beside this answer."""
        return Left(
            answer,
            self.project.runs,
            list(self.project.bodies),
            list(Effect.objects.order_by("pk").values_list("name", flat=True)),
            list(self.project.hooks),
            self.session(),
            list(self.logged),
        )


class _Kept(logging.Handler):
    def __init__(self, kept: list) -> None:
        super().__init__(logging.WARNING)
        self.kept = kept

    def emit(self, record: logging.LogRecord) -> None:
        self.kept.append((record.name, f"{record.levelname} {record.getMessage()}"))


@contextmanager
def within_testcase() -> Iterator[None]:
    """Be within the transactions of a TestCase."""
    with ExitStack() as stack:
        for alias in ("default", "other"):
            block = transaction.atomic(using=alias)
            block._from_testcase = True
            stack.enter_context(block)
            stack.callback(transaction.set_rollback, True, using=alias)
        for signal in (request_started, request_finished):  # as the test client does
            signal.disconnect(close_old_connections)
            stack.callback(signal.connect, close_old_connections)
        yield


def plain(answer: Answer) -> tuple:
    """Return what of an answer the guard leaves as it is."""
    fields = {name: value for name, value in answer.headers.items() if name not in OURS}
    return answer.status, answer.body, fields


CASES = cases(os.environ["PAIRS_SEED"])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_guard_changes_nothing_and_a_later_duplicate_gets_the_answer(case, redis_server):
    left: dict[bool, list[Left]] = {}
    for guarded in (False, True):
        with Site(case, guarded=guarded, url=redis_server).open() as site:
            before = site.session()
            left[guarded] = [site.post(), site.post()]
    (bare, bare_again), (first, again) = left[False], left[True]
    expected = Expected(case)
    is_same_first(expected, bare, first, before)
    assert expected.is_interrupted_without_guard or told(first) == told(bare)
    is_right_again(expected, first, again, bare_again)


def is_same_first(expected: Expected, bare: Left, first: Left, before: dict) -> None:
    """See that the first request leaves what an unguarded one leaves, but for what is meant."""
    case = expected.case
    assert first.runs == bare.runs
    assert first.bodies == bare.bodies
    if expected.is_rolled_back:
        assert (first.rows, first.hooks) == ([], [])
    else:
        assert (first.rows, first.hooks) == (bare.rows, bare.hooks)
    if expected.is_interrupted_without_guard:
        assert (bare.answer.status, first.session) == (400, before)
        return
    assert plain(first.answer) == plain(bare.answer), first.logged
    if expected.is_session_restored:
        assert expected.is_session_lost or first.session == before
        return
    assert first.session == bare.session
    ours = {"sessionid"} if case.scope == "session" else set()  # a token is drawn into it
    assert first.answer.cookies.keys() - ours == bare.answer.cookies.keys() - ours


def is_right_again(expected: Expected, first: Left, again: Left, bare_again: Left) -> None:
    """See that a duplicate after the first request is answered as it is to be."""
    if expected.is_session_lost:
        return
    if not expected.is_guarded:
        if expected.case.key != "none" and not expected.has_owner:
            assert again.answer.status == 400  # who is asking is known without a store
            return
        assert again.runs == bare_again.runs
        assert plain(again.answer) == plain(bare_again.answer)
        assert again.answer.headers.get("Idempotency-Replayed") is None
    elif not expected.has_owner:
        assert again.answer.status == 400
        assert (again.runs, again.rows) == (first.runs, first.rows)
    elif expected.is_done_without_answer:
        assert (again.answer.status, again.runs) == (409, first.runs)
        assert (again.rows, again.session) == (first.rows, first.session)
    elif expected.is_replayed:
        is_replay(first, again)
        assert told(again) == told(first)
    else:
        assert again.runs == bare_again.runs
        assert expected.is_interrupted_without_guard or (
            plain(again.answer) == plain(bare_again.answer)
        )


def is_replay(first: Left, again: Left) -> None:
    """See that a duplicate got the first answer, and left nothing behind."""
    assert again.answer.headers["Idempotency-Replayed"] == "true"
    assert plain(again.answer) == plain(first.answer)
    assert (again.runs, again.rows, again.hooks) == (first.runs, first.rows, first.hooks)
    assert again.session == first.session
    assert again.answer.cookies.keys() <= {"messages"}


#: The cases whose requests can be cut off, and come together.
TWICE = [
    case
    for case in CASES
    if Expected(case).is_guarded and case.server != "testcase" and case.middleware != "retrying"
]


@pytest.mark.parametrize("case", TWICE, ids=str)
def test_duplicate_at_once(case, redis_server):
    """Two clicks: the second one comes while the first one is in its work."""
    expected = Expected(case)
    with Site(case, guarded=False, url=redis_server).open() as site:
        bare = site.post()
    with Site(case, guarded=True, url=redis_server).open() as site:
        before = site.session()
        project, second = site.project, Browser(case, dict(site.browser.cookies))
        project.entered, project.leave = threading.Event(), threading.Event()
        with ThreadPoolExecutor(2) as pool:
            clicks = [pool.submit(on_a_thread, site.browser.post, site.key)]
            try:
                assert project.entered.wait(20)
                clicks.append(pool.submit(on_a_thread, second.post, site.key))
                wait_until(
                    lambda: clicks[1].done() or is_waiting() or is_locked(),
                    seconds=20,
                    what="the second click",
                )
            finally:
                project.leave.set()
            answers = [click.result(30) for click in clicks]
        first, again = site.left(answers[0]), site.left(answers[1])
    if again.answer.status == 400 and case.session in ("rotate", "flush"):
        assert again.runs == 1  # the session is gone already, and with it who is asking
    elif case.wait == "no":
        assert (again.answer.status, again.runs) == (409, 1)
        assert "sessionid" not in again.answer.cookies
    elif expected.is_replayed:
        is_replay(first, again)
    elif expected.is_done_without_answer:
        assert (again.answer.status, again.runs) == (409, 1)
    else:
        assert again.runs in (1, 2)
        return
    is_same_first(expected, bare, first, before)


def on_a_thread(post, key):
    try:
        return post(key)
    finally:
        connections.close_all()


def is_waiting() -> bool:
    """Whether a request waits for another."""
    return any(poller._waiters.values())


def is_locked() -> bool:
    """Whether a request waits for a row that another has changed: that of its session."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT 1 FROM pg_stat_activity"
            " WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        return cursor.fetchone() is not None


@pytest.mark.filterwarnings("ignore:Unclosed file:ResourceWarning")  # of the dead
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("case", TWICE, ids=str)
def test_retry_after_a_death(case, redis_server):
    """The process dies after the work, and a retry comes until it is answered."""
    expected = Expected(case)
    site = Site(case, guarded=True, url=redis_server, lease=0.2)
    with site.open():
        cookies = dict(site.browser.cookies)
        with suppress(Crash), crash_at("after_work"):
            site.post()
        connections.close_all()
        assert site.project.runs == 1
        site.browser.cookies = cookies
        answers: list[Answer] = []

        def answered() -> bool:
            answers.append(site.browser.post(site.key))
            return answers[-1].headers.get("Retry-After") is None or answers[-1].status == 503

        wait_until(answered, seconds=20, what="an answer")
        left = site.left(answers[-1])
    gc.collect()  # what the dead has left open is to be told here, and of no other test
    if answers[-1].status == 400 and case.session in ("rotate", "flush"):
        assert not expected.has_block  # the session of the first one is gone
        return
    assert left.runs == 2
    of_the_dead = 0 if expected.has_block or expected.is_rolled_back else 1
    assert len(left.rows) == of_the_dead + (0 if expected.is_rolled_back else 1)


def told(left: Left) -> list:
    """Return the lines of Django."""
    return sorted(line for line in left.logged if not line[0].startswith("django_idempotency"))
