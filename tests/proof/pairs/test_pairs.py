"""Each case is asked: does the guard change what a request leaves behind, and is it done once?"""
# mypy: ignore-errors

from __future__ import annotations

import gc
import itertools
import json
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from unittest import mock

import pytest
from django.db import connection, connections

from django_idempotency.engine.renewal import lease_renewer
from django_idempotency.engine.waiting import poller
from django_idempotency.testing import crash_at
from django_idempotency.testing.crash import Crash
from tests.proof.pairs.client import Answer, Browser
from tests.proof.pairs.databases import PUBLIC, TENANTS, drop_schemas, make_schemas, pooler
from tests.proof.pairs.expected import OURS, Expected
from tests.proof.pairs.features import RETRYING, cases
from tests.proof.pairs.site import Left, Servers, Site
from tests.services import or_skip
from tests.services.processes import wait_until
from tests.services.redis import redis_url

pytestmark = [
    pytest.mark.django_db(transaction=True, databases=["default", "other"]),
    # A file under ASGI: Django says it, and does it.
    pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume:Warning"),
]


#: A dead process leaves files and cursors open.
of_the_dead = pytest.mark.filterwarnings(
    "ignore:Unclosed file:ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


@pytest.fixture(scope="module")
def servers(django_db_setup, django_db_blocker) -> Iterator[Servers]:
    """A Redis and a pooler, and a schema for each tenant."""
    with ExitStack() as stack:
        url = stack.enter_context(redis_url("valkey9"))
        port = or_skip(lambda: stack.enter_context(pooler())).port
        with django_db_blocker.unblock():
            make_schemas()
        yield Servers(url, port)
    with django_db_blocker.unblock():
        drop_schemas()


@pytest.fixture(autouse=True)
def no_error_is_kept(caplog) -> Iterator[None]:
    """Let no line of the log keep an error, and so the threads of event loops."""
    yield
    caplog.clear()


def plain(answer: Answer) -> tuple:
    """Return what of an answer the guard leaves as it is."""
    fields = {name: value for name, value in answer.headers.items() if name not in OURS}
    return answer.status, answer.body, fields


CASES = cases(os.environ["PAIRS_SEED"])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_guard_changes_nothing_and_a_later_duplicate_gets_the_answer(case, servers):
    expected = Expected(case)
    left: dict[bool, list[Left]] = {}
    for guarded in (False, True):
        asked = case if guarded else expected.bare
        with Site(asked, guarded=guarded, servers=servers).open() as site:
            before = site.session()
            first = site.post()
            site.change()
            left[guarded] = [first, site.post()]
    (bare, bare_again), (first, again) = left[False], left[True]
    if expected.denial is not None:
        assert first.answer.status == again.answer.status == expected.denial
        assert (again.runs, again.rows, again.hooks) == (0, [], [])
        return
    is_same_first(expected, bare, first, before)
    if expected.may_be_interrupted and first.answer.status == 400:
        return
    if not (expected.is_interrupted_without_guard or expected.is_told_twice):
        assert told(first) == told(bare)
    is_right_again(expected, first, again, bare_again)
    is_done_once(expected, again)


def is_same_first(expected: Expected, bare: Left, first: Left, before: dict) -> None:
    """See that the first request leaves what an unguarded one leaves, but for what is meant."""
    case = expected.case
    assert first.runs == bare.runs
    assert first.bodies == bare.bodies
    if expected.is_rolled_back:
        assert (first.rows, first.hooks) == (expected.rows, [])
    else:
        assert (first.rows, first.hooks) == (bare.rows, bare.hooks)
    if expected.may_be_interrupted and first.answer.status == 400:
        return
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
    if expected.refusal is not None:
        assert again.answer.status == expected.refusal
        assert (again.runs, again.rows) == (first.runs, first.rows)
        return
    if not expected.is_guarded:
        if expected.case.key != "none" and not expected.has_owner:
            assert again.answer.status == 400  # who is asking is known without a store
            return
        assert again.runs == bare_again.runs
        assert expected.is_interrupted_without_guard or (
            plain(again.answer) == plain(bare_again.answer)
        )
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


def is_done_once(expected: Expected, left: Left) -> None:
    """See that steps are done once, however often the view ran (T1)."""
    if expected.has_steps:
        hooks = [] if expected.case.server == "testcase" else ["hook"]  # which never commits
        assert (len(rows_of_work(left)), left.hooks) == (1, [*hooks, "call"])


def rows_of_work(left: Left) -> list[str]:
    """Return the rows of the view itself."""
    return [row for row in left.rows if row.startswith("run")]


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
    if Expected(case).is_guarded and case.server != "testcase" and case.middleware not in RETRYING
]


@pytest.mark.parametrize("case", TWICE, ids=str)
def test_duplicate_at_once(case, servers):
    """Two clicks: the second one comes while the first one is in its work."""
    expected = Expected(case)
    with Site(expected.bare, guarded=False, servers=servers).open() as site:
        bare = site.post()
    with Site(case, guarded=True, servers=servers).open() as site:
        before = site.session()
        first, again = two_clicks(site)
    is_done_once(expected, again)
    if again.answer.status == 400 and case.session in ("rotate", "flush"):
        assert again.runs == 1  # the session is gone already, and with it who is asking
    elif not expected.waits:
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


def two_clicks(site: Site, *, until: threading.Event | None = None) -> list[Left]:
    """Send two requests at once; the first one is in its work until the second waits, or ends."""
    project, second = site.project, Browser(site.case, dict(site.browser.cookies))
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
            assert until is None or until.wait(20)
        finally:
            project.leave.set()
        answers = [click.result(30) for click in clicks]
    return [site.left(answer) for answer in answers]


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


@of_the_dead
@pytest.mark.parametrize("case", TWICE, ids=str)
def test_retry_after_a_death(case, servers):
    """The process dies after the work, and a retry comes until it is answered."""
    expected = Expected(case)
    left = retried_after_a_death(case, servers, "after_work")
    if left.answer.status == 400 and case.session in ("rotate", "flush"):
        assert not expected.has_block  # the session of the first one is gone
        return
    assert left.runs == 2
    assert len(rows_of_work(left)) == expected.leaves_row_of_dead + expected.leaves_row
    is_done_once(expected, left)


#: The cases whose work is done in steps.
STEPS = [case for case in TWICE if Expected(case).has_steps]


@of_the_dead
@pytest.mark.parametrize("case", STEPS, ids=str)
def test_T1_retry_after_a_death_in_a_step(case, servers):
    """The process dies before the note: work that its store commits with that is rolled back."""
    left = retried_after_a_death(case, servers, "before_note")
    assert left.runs == 2
    done = 1 if case.store == "database" else 2
    assert (len(rows_of_work(left)), left.hooks) == (done, [*["hook"] * done, "call"])


@of_the_dead
@pytest.mark.parametrize("case", STEPS, ids=str)
def test_T12_retry_after_a_death_in_a_call(case, servers):
    """The process dies when another service was called: that is done again, or refused."""
    left = retried_after_a_death(case, servers, "in_call")
    assert (left.runs, len(rows_of_work(left))) == (2, 1)
    if Expected(case).is_uncertain:
        assert (left.answer.status, json.loads(left.answer.body)["code"]) == (409, "stale")
        assert left.hooks == ["hook", "call"]
    else:
        assert left.hooks == ["hook", "call", "call"]


def retried_after_a_death(case, servers: Servers, point: str) -> Left:
    """Let the process die there, and send the request until it is answered."""
    site = Site(case, guarded=True, servers=servers, lease=0.2)
    with site.open():
        cookies = dict(site.browser.cookies)
        with suppress(Crash), crash_at("in_work" if point == "in_call" else point) as crash:
            site.project.in_call = crash if point == "in_call" else bool
            site.post()
        site.project.in_call = bool
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
    return left


@pytest.mark.parametrize("case", [case for case in TWICE if case.schema == "tenant"], ids=str)
def test_I10_R98_the_same_key_of_another_tenant_runs_on_its_own(case, servers):
    expected = Expected(case)
    left: dict[str, list[Left]] = {name: [] for name in TENANTS}
    with Site(case, guarded=True, servers=servers).open() as site:
        mine, cookies = site.browser, dict(site.browser.cookies)
        others = Browser(case, cookies, TENANTS[1])
        for site.browser in (mine, others, mine, others):
            if site.browser is others and not site.session():
                site.log_in()  # the first one has flushed or changed the session of both
            left[site.browser.tenant].append(site.post())
    (first, again), (other, other_again) = left.values()
    assert (other.runs, other.rows) == (2, [row.replace("1", "2") for row in first.rows])
    assert other.answer.headers.get("Idempotency-Replayed") is None
    assert other.answer.status == first.answer.status
    if expected.is_replayed and expected.has_owner:
        assert (again.rows, other_again.rows) == (first.rows, other.rows)
        for answer in (again.answer, other_again.answer):
            assert answer.headers["Idempotency-Replayed"] == "true"


#: The cases of tenants whose requests wait in their schemas.
WAITING = [case for case in TWICE if case.schema == "tenant" and Expected(case).waits]


@pytest.mark.parametrize("case", WAITING, ids=str)
def test_R69_R98_a_tenant_waits_for_long_work_and_gets_its_own_answer(case, servers):
    """The key has been used before where a new session looks, and the work needs a renewal."""
    expected = Expected(case)
    with Site(case, guarded=True, servers=servers, lease=1).open() as site, ExitStack() as stack:
        site.browser.tenant = PUBLIC
        site.post()
        if not site.session():
            site.log_in()
        site.browser.tenant = TENANTS[0]
        renewed = None
        if expected.is_renewed:
            renewed = stack.enter_context(renewals())
        first, again = two_clicks(site, until=renewed)
    assert first.answer.headers.get("Idempotency-Replayed") is None
    assert first.runs == 2 or not expected.is_replayed
    if again.answer.status == 400 and case.session in ("rotate", "flush"):
        return  # the session is gone already, and with it who is asking
    if expected.is_replayed:
        is_replay(first, again)


@contextmanager
def renewals() -> Iterator[threading.Event]:
    """Tell when the lease has been renewed for longer than it lasts."""
    renewed, renew, calls = threading.Event(), lease_renewer._renew, itertools.count(1)

    def renewing(*args):
        renew(*args)
        if next(calls) == 4:  # each comes after a third of it
            renewed.set()

    with mock.patch.object(lease_renewer, "_renew", renewing):
        yield renewed


CALLED = [case for case in CASES if Expected(case).refused_modes]


@pytest.mark.parametrize("case", CALLED, ids=str)
def test_a_mode_that_commits_is_refused_within_a_transaction_of_the_caller(case, servers):
    for mode in Expected(case).refused_modes:
        with Site(replace(case, mode=mode), guarded=True, servers=servers).open() as site:
            left = site.post()
        assert left.answer.status == 500
        assert (left.runs, left.rows, left.hooks) == (0, [], [])


def told(left: Left) -> list:
    """Return the lines of Django."""
    return sorted(line for line in left.logged if not line[0].startswith("django_idempotency"))
