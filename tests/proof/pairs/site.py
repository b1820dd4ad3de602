"""A site of a case: its settings, its databases and a browser, and what a request leaves there."""
# mypy: ignore-errors

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from unittest import mock
from uuid import uuid4

from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY, get_user_model
from django.core.signals import request_finished, request_started
from django.db import close_old_connections, transaction
from django.test import override_settings

from django_idempotency.conf import stores
from django_idempotency.contrib.metrics import Metrics
from django_idempotency.http.problems import PROBLEM_TYPE
from django_idempotency.models import IdempotencyRecord
from tests.app.models import Effect
from tests.proof.pairs.client import Answer, Browser
from tests.proof.pairs.databases import connected, empty, go_to, scope_of
from tests.proof.pairs.features import Case
from tests.proof.pairs.project import MIDDLEWARE, Project, keep

__all__ = ["Left", "Servers", "Site"]

BACKENDS = {
    "database": {},
    "other": {"OPTIONS": {"using": "other"}},
    "memory": {"BACKEND": "django_idempotency.stores.memory.MemoryStore"},
}
#: Middleware of ours in tests, by the feature's value.
MORE = {
    "locale": ["django.middleware.locale.LocaleMiddleware"],
    "gzip": ["django.middleware.gzip.GZipMiddleware"],
    "modified": ["tests.proof.pairs.site.session_is_modified"],
}


class Broken(Metrics):
    """Metrics whose instruments raise."""

    def counter(self, *declared):
        return mock.Mock(side_effect=OSError("the disk is full"))

    gauge = histogram = counter


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


@dataclass(frozen=True)
class Servers:
    """What is started once for all sites."""

    redis: str
    pooler_port: int


class Site:
    """A project under settings of the case, and a browser with a user's session."""

    def __init__(self, case: Case, *, guarded: bool, servers: Servers, lease: float = 60) -> None:
        self.case, self.guarded, self.servers, self.lease = case, guarded, servers, lease
        self.project = Project(case, guarded)
        self.browser = Browser(case)
        self.key = f"key-{uuid4().hex}"
        self.logged: list[tuple[str, str]] = []
        #: Blocks that were entered and not left.
        self.entered: list[transaction.Atomic] = []

    def settings(self) -> dict:
        case = self.case
        middleware = [*MORE.get(case.middleware, ()), *MIDDLEWARE]
        if case.middleware == "modified":
            middleware = [MIDDLEWARE[0], *MORE["modified"], *MIDDLEWARE[1:]]
        if case.transactions == "caller" and case.guard == "middleware":
            middleware.append("tests.proof.pairs.project.in_atomic")
        if self.guarded and case.guard == "middleware":
            middleware.append("django_idempotency.http.middleware.IdempotencyMiddleware")
        if case.schema == "tenant":
            middleware.insert(0, "tests.proof.pairs.databases.tenant")
        store = BACKENDS.get(case.store)
        if store is None:
            url = "redis://127.0.0.1:1/0" if case.fail_open == "down" else self.servers.redis
            store = {
                "BACKEND": "django_idempotency.stores.redis.RedisStore",
                "OPTIONS": {"url": url, "prefix": f"pairs-{uuid4().hex}:"},
            }
        policy = {"LEASE": self.lease, "WAIT": 10 if case.wait == "yes" else 0}
        if case.mode not in ("default", "steps"):  # which no alias may have
            policy["TRANSACTION"] = case.mode
        if case.encryption == "yes":
            policy["ENCRYPTION_KEYS"] = [bytes(32)]
        http = {
            "SCOPE": scope_of(case),
            "SCOPE_ENDPOINT": case.endpoint == "yes",
            "FAIL_OPEN": case.fail_open != "no",
            "KEEP": keep if case.keep == "queries" else "default",
        }
        return {
            "DATA_UPLOAD_MAX_MEMORY_SIZE": 50 if case.body == "chunked_large" else 2_500_000,
            "MIDDLEWARE": ["tests.proof.pairs.client.without_csrf", *middleware],
            "ROOT_URLCONF": self.project.urlconf,
            "SESSION_SAVE_EVERY_REQUEST": case.middleware == "sliding",
            "IDEMPOTENCY": {"default": {**store, **policy, "HTTP": http}},
        }

    @contextmanager
    def open(self) -> Iterator[Site]:
        """Be under the project's settings, with a user who is logged in."""
        case = self.case
        with ExitStack() as stack:
            stack.callback(stores.reset)
            stack.enter_context(override_settings(**self.settings()))
            stack.callback(empty, case)
            stack.enter_context(connected(case, self.servers.pooler_port))
            stack.enter_context(self._wrapped())
            if case.observers == "raise":
                (metrics := Broken()).connect()
                stack.callback(metrics.disconnect)
            if case.server == "testcase":
                stack.enter_context(within_testcase())
            logging.getLogger().addHandler(handler := _Kept(self.logged))
            stack.callback(logging.getLogger().removeHandler, handler)
            self.log_in()
            attributes = [set(vars(api)) for api in self.project.apis]
            yield self
            assert [set(vars(api)) for api in self.project.apis] == attributes
        assert self.entered == [], "blocks are entered and not left"

    @contextmanager
    def _wrapped(self) -> Iterator[None]:
        """Wrap Atomic as caches of the ORM do."""
        enter, leave = transaction.Atomic.__enter__, transaction.Atomic.__exit__

        @functools.wraps(enter)
        def entering(block):
            enter(block)
            self.entered.append(block)

        @functools.wraps(leave)
        def leaving(block, *error):
            self.entered.remove(block)
            return leave(block, *error)

        wrapped = {"__enter__": entering, "__exit__": leaving}
        with mock.patch.multiple(transaction.Atomic, **wrapped):
            yield

    def log_in(self) -> None:
        """Give the browser a session of the user."""
        user, _ = get_user_model().objects.get_or_create(username=f"user of {self.key}")
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

    def change(self) -> None:
        """Make different what is different at the next request."""
        match self.case.later:
            case "renamed":
                self.project.rename_url()
            case "charset":
                self.browser.charset = "; charset=latin-1"
            case "damaged":
                alias = "other" if self.case.store == "other" else "default"
                IdempotencyRecord.objects.using(alias).update(fingerprint=b"")

    def left(self, answer: Answer) -> Left:
        """Return what has been left behind by now, beside this answer."""
        if answer.headers["Content-Type"] == PROBLEM_TYPE:  # no key is safer than the one it has
            assert json.loads(answer.body)["safe_new_key"] is (self.case.key == "none")
        if self.case.schema == "tenant":
            go_to(self.browser.tenant)
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
