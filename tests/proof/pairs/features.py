"""The features, their values, and which of them exclude each other."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import covertable

__all__ = ["FEATURES", "RETRYING", "STATEFUL", "Case", "Possible", "cases", "rows"]

SYNC_VIEWS = ("function", "class", "drf_function", "drf", "viewset", "ninja")
ASYNC_VIEWS = (
    *("async_function", "async_class", "async_drf_function", "async_drf"),
    *("async_viewset", "async_ninja"),
)
PLAIN_VIEWS = ("function", "class", "async_function", "async_class")
#: Class views of REST framework.
REST_CLASSES = ("drf", "viewset", "async_drf", "async_viewset")

#: Each feature and its values. The first value is the plain one.
FEATURES: dict[str, tuple[str, ...]] = {
    "view": SYNC_VIEWS + ASYNC_VIEWS,
    "guard": ("decorator", "mixin", "middleware"),
    "mode": ("default", "joined", "single", "separate", "steps"),
    "uncertain": ("repeat", "refuse"),
    "store": ("database", "other", "memory", "redis"),
    "key": ("header", "form", "none"),
    "wait": ("no", "yes"),
    "scope": ("user", "session", "anyone"),
    "endpoint": ("no", "yes"),
    "session": ("none", "read", "write", "nested", "rotate", "flush"),
    "transactions": ("none", "atomic_requests", "own_atomic", "durable", "caller"),
    "answer": (
        *("json", "template", "file", "stream", "redirect"),
        *("refused", "raised", "error", "exception"),
    ),
    "body": ("json", "form", "multipart", "raw", "chunked_json", "chunked_form", "chunked_large"),
    "server": ("wsgi", "asgi", "async_to_sync", "testcase"),
    "middleware": (
        *("none", "messages", "locale", "gzip", "sliding", "modified"),
        *("retrying", "redispatching"),
    ),
    "encryption": ("no", "yes"),
    "fail_open": ("no", "yes", "down"),
    "isolation": ("read committed", "repeatable read"),
    "autocommit": ("on", "off"),
    "keep": ("default", "queries"),
    "observers": ("none", "raise"),
    "later": ("same", "renamed", "charset", "damaged"),
    "connection": ("plain", "pool", "pooler"),
    "schema": ("none", "tenant"),
}

#: Answers that each kind of view keeps.
SUCCESSES = ("json", "template", "file", "redirect")

#: Who calls a view again after a deadlock: around the guard, and inside of its class.
RETRYING = ("retrying", "redispatching")

#: The features that hold state: of these all triples are covered, not only pairs.
STATEFUL = ("mode", "store", "session", "transactions", "answer", "server")
#: More features whose triples are covered: what a coroutine is in, and where its session is read.
TRIPLES = (("view", "mode", "schema"), ("view", "middleware", "scope"))


@dataclass(frozen=True)
class Case:
    """One value of each feature."""

    view: str
    guard: str
    mode: str
    uncertain: str
    store: str
    key: str
    wait: str
    scope: str
    endpoint: str
    session: str
    transactions: str
    answer: str
    body: str
    server: str
    middleware: str
    encryption: str
    fail_open: str
    isolation: str
    autocommit: str
    keep: str
    observers: str
    later: str
    connection: str
    schema: str

    def __str__(self) -> str:
        told = [f"{name}={value}" for name, value in vars(self).items() if value != PLAIN[name]]
        return ",".join(told).replace(" ", "_") or "plain"

    @property
    def is_async(self) -> bool:
        """Whether the view is a coroutine."""
        return self.view in ASYNC_VIEWS

    @property
    def is_plain(self) -> bool:
        """Whether the view is one of Django alone."""
        return self.view in PLAIN_VIEWS

    @property
    def has_neighbor(self) -> bool:
        """Whether another coroutine writes: none may within a caller's transaction."""
        return self.server == "async_to_sync" and self.transactions != "caller"

    @property
    def is_rest(self) -> bool:
        """Whether the view is one of REST framework."""
        return "drf" in self.view or "viewset" in self.view


PLAIN = {name: values[0] for name, values in FEATURES.items()}

#: What cannot be: the features, and whether their values can stand together.
Possible = tuple[tuple[str, ...], Callable[..., bool]]
POSSIBLE: tuple[Possible, ...] = (
    # The mixin is REST framework's; ninja's decorator is its own.
    (("guard", "view"), lambda g, v: g != "mixin" or v in REST_CLASSES),
    # The middleware leaves views of REST framework and of ninja to guard themselves.
    (("guard", "view"), lambda g, v: g != "middleware" or v in PLAIN_VIEWS),
    # A decorator on a class view guards its dispatch: REST framework has the mixin.
    (("guard", "view"), lambda g, v: g != "decorator" or v not in REST_CLASSES),
    # Only a database store joins.
    (("mode", "store"), lambda m, s: m not in ("joined", "single") or s in ("database", "other")),
    # Only work in steps has calls of which nobody may know.
    (("uncertain", "mode"), lambda u, m: u == "repeat" or m == "steps"),
    # Our middleware has the policy of an alias, which has no steps; one of a project's may.
    (("mode", "guard"), lambda m, g: m != "steps" or g != "middleware"),
    # Django refuses ATOMIC_REQUESTS around coroutines (R96).
    (("transactions", "view"), lambda t, v: t != "atomic_requests" or v not in ASYNC_VIEWS),
    # Django's own transaction is around the paths of ninja; a mode that is asked for is refused.
    (
        ("transactions", "view", "mode"),
        lambda t, v, m: t != "atomic_requests" or v != "ninja" or m == "default",
    ),
    # There another store completes at that transaction's commit, which no TestCase sees.
    (
        ("transactions", "view", "store", "server"),
        lambda t, v, s, w: (t, v, w) != ("atomic_requests", "ninja", "testcase") or s == "database",
    ),
    # A durable block within another one is Django's error; so it is in a step.
    (("transactions", "mode"), lambda t, m: t != "durable" or m == "separate"),
    (("transactions", "server"), lambda t, s: t != "durable" or s != "testcase"),
    # A key in a form needs a form, and is a plain view's.
    (("key", "body"), lambda k, b: k != "form" or b in ("form", "multipart", "chunked_form")),
    (("key", "view"), lambda k, v: k != "form" or v in PLAIN_VIEWS),
    # Only ASGI has no Content-Length in our clients.
    (("body", "server"), lambda b, s: not b.startswith("chunked") or s == "asgi"),
    # A coroutine of ninja or of adrf may not return a stream of ours in every version.
    (("answer", "view"), lambda a, v: a != "stream" or v not in ASYNC_VIEWS[2:]),
    # A transaction of the caller is around a coroutine where `async_to_sync` enters that. There the
    # default is "single" on the store of that alias, and another choice raises TransactionOpen.
    (
        ("transactions", "view", "server"),
        lambda t, v, s: t != "caller" or v not in ASYNC_VIEWS or s == "async_to_sync",
    ),
    (
        ("transactions", "mode", "store"),
        lambda t, m, s: t != "caller" or m == "default" or (m, s) == ("single", "database"),
    ),
    # A TestCase does not see the commit that another store waits for.
    (
        ("transactions", "store", "server"),
        lambda t, s, w: (t, w) != ("caller", "testcase") or s == "database",
    ),
    # The function that enters a coroutine is what the middleware would guard.
    (("server", "view"), lambda s, v: s != "async_to_sync" or v in ASYNC_VIEWS),
    (("server", "guard"), lambda s, g: s != "async_to_sync" or g != "middleware"),
    # Nobody waits within a TestCase, whose transaction others do not see.
    (("wait", "server"), lambda w, s: w == "no" or s != "testcase"),
    (("isolation", "server"), lambda i, s: i == "read committed" or s != "testcase"),
    # The server of the store is down, and not that of the work.
    (("fail_open", "store"), lambda f, s: f != "down" or s in ("other", "redis")),
    (("fail_open", "server"), lambda f, s: f != "down" or s != "testcase"),
    # A pooler in transaction mode keeps no search path from one transaction to the next.
    (("schema", "connection"), lambda s, c: s == "none" or c != "pooler"),
    # The tenant's schema is chosen on each database, and a test looks for the record in one.
    (("fail_open", "store", "schema"), lambda *row: row != ("down", "other", "tenant")),
    # A pool waits for a server that is down.
    (("fail_open", "store", "connection"), lambda *row: row != ("down", "other", "pool")),
    (("later", "schema"), lambda x, s: x != "damaged" or s == "none"),
    # Whoever retries stands around the guard.
    (("middleware", "guard"), lambda m, g: m != "retrying" or g != "middleware"),
    (("middleware", "answer"), lambda m, a: m not in RETRYING or a == "json"),
    # A dispatch that is called twice finds no stream that a parser has read.
    (("middleware", "view"), lambda m, v: m != "redispatching" or v in ("drf", "viewset")),
    (("middleware", "body"), lambda m, b: m != "redispatching" or b == "raw"),
    # A form that is too large for Django is read in pieces, once.
    (("body", "view"), lambda b, v: b != "chunked_large" or v in PLAIN_VIEWS),
    (("body", "middleware"), lambda b, m: b != "chunked_large" or m not in RETRYING),
    # Work that turns autocommit off commits by itself, and loses what is written after it.
    (("autocommit", "mode"), lambda a, m: a == "on" or m == "separate"),
    (("autocommit", "transactions"), lambda a, t: a == "on" or t == "none"),
    (("autocommit", "server"), lambda a, s: a == "on" or s != "testcase"),
    (("autocommit", "session"), lambda a, s: a == "on" or s in ("none", "read")),
    (("autocommit", "scope"), lambda a, s: a == "on" or s != "session"),
    # There the other coroutine leaves a transaction open, of which the completion would be part.
    (
        ("autocommit", "server", "store"),
        lambda a, w, s: a == "on" or w != "async_to_sync" or s != "database",
    ),
    (("autocommit", "connection"), lambda a, c: a == "on" or c != "pool"),  # which says it
    (("autocommit", "middleware"), lambda a, m: a == "on" or m in ("none", "locale", "gzip")),
    # What shows its completion is a replay.
    (("autocommit", "key"), lambda a, k: a == "on" or k != "none"),
    (("autocommit", "answer"), lambda a, x: a == "on" or x in SUCCESSES),
    (("autocommit", "later"), lambda a, x: a == "on" or x == "same"),
    # What is different at the second request: the name of the URL, or the charset; or the record
    # has been damaged.
    (("later", "answer"), lambda x, a: x == "same" or a == "json"),
    (("later", "key"), lambda x, k: x == "same" or k != "none"),
    (("later", "fail_open"), lambda x, f: x == "same" or f != "down"),
    (("later", "body"), lambda x, b: x != "charset" or b == "json"),
    (("later", "store"), lambda x, s: x != "damaged" or s in ("database", "other")),
)


def cases(seed: str) -> list[Case]:
    """Return the cases of a seed: each possible pair of values, and the triples above."""
    if kept := os.environ.get("PAIRS_CASES"):  # it takes a while to find them
        return [Case(**row) for row in json.loads(Path(kept).read_text())]
    return [Case(**row) for row in rows(FEATURES, (STATEFUL, *TRIPLES), POSSIBLE, seed)]


def rows(
    features: dict[str, tuple[str, ...]],
    triples: Iterable[Iterable[str]],
    possible: Iterable[Possible],
    seed: str,
) -> list[dict[str, Any]]:
    """Return rows with each possible pair of values, and each triple of each group of features."""
    made: list[dict[str, Any]] = covertable.make(
        features,
        strength=2,
        sub_models=[{"fields": list(group), "strength": 3} for group in triples],
        constraints=[
            {"operator": "fn", "requires": list(names), "evaluate": _row(names, function)}
            for names, function in possible
        ],
        salt=seed,
    )
    return made


def _row(names: tuple[str, ...], possible: Callable[..., bool]) -> Callable[[Any], bool]:
    return lambda row: possible(*(row[name] for name in names))
