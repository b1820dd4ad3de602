"""From packages that guard views: old and new processes at once, on the code of the guides."""

from __future__ import annotations

import json
import uuid
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest

from benchmarks.workers import Worker
from tests.pages import DOCS, table_of
from tests.proof.migrating.http_worker import PROJECT
from tests.services.postgres import PostgresServer
from tests.services.processes import wait_until
from tests.services.redis import RedisServer

pytestmark = pytest.mark.processes


@dataclass
class Guide:
    """A guide, and what its package does."""

    name: str
    view: str
    path: str = "payments/"
    #: What makes the time short after which the package takes a request for lost.
    short: dict[str, Any] = field(default_factory=dict)
    #: Whether an old process tells one with both that it works on a key, and the other way round.
    claims: bool = True
    #: The app whose tables are to be removed.
    app: str = ""

    def __str__(self):
        return self.name

    @property
    def page(self):
        return DOCS / "howto" / f"migrating-{self.name}.md"


GUIDES = [
    Guide(
        "drf-idempotency",
        "PaymentView",
        short={"FORMER_IDEMPOTENCY": {"LOCK_TTL_SECONDS": 1}},
        app="drf_idempotency",
    ),
    Guide(
        "drf-idempotencykey",
        "CreateInvoiceView",
        path="api/invoices/",
        short={"IDEMPOTENCY_KEY_EXPIRATION_MINUTES": 1 / 60},
        app="drf_idempotencykey",
    ),
    Guide("django-idempotency-key", "pay", claims=False),
]


class Project:
    """A project that is being migrated: its servers, and the processes of its deployments."""

    def __init__(self, guide, folder, postgres, redis):
        self.guide, self.folder, self.redis = guide, folder, redis
        name = guide.name.replace("-", "_")
        postgres.create_database(name)
        database = {**postgres.django_settings(name), "OPTIONS": {}}
        self.settings = {"DATABASES": {"default": database}}

    def start(self, deployment, **settings):
        """Return a process of a deployment that is ready; a context manager."""
        given = {
            "folder": str(self.folder),
            "redis": self.redis.url,
            "settings": {**self.settings, **settings},
            "view": self.guide.view,
            "path": self.guide.path,
        }
        worker = Worker(
            "tests.proof.migrating.http_worker",
            f"docs/howto/migrating-{self.guide.name}.md {deployment}",
            self.guide.name,
            {PROJECT: json.dumps(given)},
        )
        worker.ask("effects")
        return worker


@pytest.fixture(scope="module")
def servers():
    with PostgresServer(18) as postgres, RedisServer() as redis:
        yield postgres, redis


@pytest.fixture(scope="module", params=GUIDES, ids=str)
def project(request, tmp_path_factory, servers):
    return Project(request.param, tmp_path_factory.mktemp("shop"), *servers)


@pytest.fixture(scope="module")
def processes(project):
    """A process of each deployment, all at once."""
    with ExitStack() as stack:
        names = ("before", "both", "after")
        yield {name: stack.enter_context(project.start(name)) for name in names}


@pytest.fixture
def effects(processes):
    """Return how often the work has been done in this test."""
    before = processes["before"].ask("effects")
    return lambda: processes["before"].ask("effects") - before


def new_key():
    return str(uuid.uuid4())


@pytest.mark.parametrize("form", [False, True], ids=["JSON", "multipart"])
@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("before", ["before", "both"]),
        ("both", ["before", "both", "after"]),
        ("after", ["both", "after"]),
    ],
)
def test_what_one_deployment_has_answered_the_others_know(processes, effects, first, then, form):
    key = new_key()

    status, _, body = processes[first].ask("send", key=key, form=form)
    again = [processes[name].ask("send", key=key, form=form) for name in then]

    assert status < 300
    assert ([answer[2] for answer in again], effects()) == ([body] * len(then), 1)


def while_it_runs(project, first, process, folder):
    """Return the answers to a request of the deployment `first`, and to its retry meanwhile."""
    key = new_key()
    with project.start(first) as running:
        running.tell("send", key=key, hold=str(folder))
        wait_until((folder / "begun").exists, seconds=30, what="the work has begun")
        meanwhile = process.ask("send", key=key)
        (folder / "go on").touch()
        return key, running.answer(), meanwhile


@pytest.mark.parametrize(
    ("first", "then"), [("before", "both"), ("both", "before"), ("both", "both")]
)
def test_what_one_deployment_works_on_the_other_leaves(
    project, processes, effects, tmp_path, first, then
):
    key, done, meanwhile = while_it_runs(project, first, processes[then], tmp_path)

    if project.guide.claims or first == then:
        assert (meanwhile[0], effects()) == (409, 1)
        assert processes[then].ask("send", key=key)[2] == done[2]
    else:
        assert (meanwhile[0], effects()) == (done[0], 2)


#: What the rows of a guide's table are about: what was sent before, and what is sent.
CASES = {
    "the first with a key": (None, {}),
    "its retry": ({}, {}),
    "the key with another body": ({}, {"amount": 9900}),
    "the key of another user": ({}, {"user": "bob"}),
    "without a user": (None, {"user": None}),
    "without a key": (None, {"key": None}),
    "with a key that is no UUID": (None, {"key": "order-1234"}),
    "corrected, after a 400 under the key": ({"body": "{"}, {}),
    "after a 500 under the key": ({"fails": True}, {}),
}


@pytest.mark.parametrize("deployment", ["before", "after"])
def test_clients_see_what_the_guide_says(project, processes, tmp_path, deployment):
    rows = table_of(project.guide.page, "What clients see:\n")
    assert {row[0] for row in rows} >= {*list(CASES)[:6]}
    process = processes[deployment]
    for what, *cells in rows:
        said = cells[deployment == "after"]
        if what == "while the first one runs":
            *_, answer = while_it_runs(project, deployment, process, tmp_path)
        else:
            (before, then), key = CASES[what], new_key()
            if before is not None:
                process.ask("send", key=key, **before)
            answer = process.ask("send", **{"key": key, **then})
        assert f"{answer[0]}" == said[:3], what
        for name in ("Idempotency-Replayed", "Idempotent-Replayed", "Cached-From-Idempotency-Key"):
            assert (f"`{name}`" in said) == (answer[1].get(name, "false") != "false"), what


@pytest.mark.parametrize("dies", ["in the work", "after the commit"])
def test_request_that_killed_a_process_with_both_is_answered_in_the_end(
    project, processes, effects, dies
):
    key = new_key()
    settings = {**project.guide.short, "IDEMPOTENCY": {"default": {"LEASE": 3}}}
    with ExitStack() as stack:
        process = stack.enter_context(project.start("both", **settings))
        killed = stack.enter_context(project.start("both", **settings))
        with pytest.raises(RuntimeError, match="ended with 9"):
            killed.ask("send", key=key, dies=dies)
        if dies == "after the commit":
            assert processes["after"].ask("send", key=key)[0] < 300

        def answered():
            return process.ask("send", key=key)[0] < 300

        wait_until(answered, seconds=20, what="the lease and the lock are over")
    assert effects() == 1


def test_last_deployment_needs_no_tables_of_the_other_package(project, processes):
    key = new_key()
    body = processes["both"].ask("send", key=key)[2]
    processes["after"].ask("manage", words=["check", "--fail-level", "WARNING"])
    if project.guide.app:
        processes["after"].ask("manage", words=["migrate", project.guide.app, "zero"])
    assert processes["after"].ask("send", key=key)[2] == body
