"""What operators find, what they are told, and what they decide, in words."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any
from unittest.mock import Mock

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.utils import timezone

import django_idempotency as idempotency
from django_idempotency import codecs, journal, keys
from django_idempotency.claims import RESOLUTIONS
from django_idempotency.codecs import JSONCodec
from django_idempotency.codecs.encryption import sealed
from django_idempotency.conf import store_for
from django_idempotency.exceptions import StoreError
from django_idempotency.http.snapshot import SnapshotCodec
from django_idempotency.leases import Lease
from django_idempotency.operators import search
from django_idempotency.operators.decisions import Decision, NotResolved, Seen
from django_idempotency.operators.facts import Reading
from django_idempotency.operators.results import given_result
from django_idempotency.operators.search import find
from django_idempotency.policy import Policy
from django_idempotency.records import KEPT, Filters, Page, Record, State
from django_idempotency.stores.memory import MemoryStore
from django_idempotency.testing import FakeClock
from tests.claims import HOUR, asked, won
from tests.services.processes import ROOT

MEMORY = {"BACKEND": "django_idempotency.stores.memory.MemoryStore"}
#: The result of a step, as it is noted.
PACKED = codecs.pack(JSONCodec(), 1, max_bytes=100)


@pytest.fixture
def clock(settings: Any) -> FakeClock:
    clock = FakeClock()
    settings.IDEMPOTENCY = {"default": {**MEMORY, "OPTIONS": {"clock": clock}}}
    return clock


@pytest.fixture
def store(clock: FakeClock) -> MemoryStore:
    store = store_for()
    assert isinstance(store, MemoryStore)
    return store


def claim(store: MemoryStore, scope: str, key: str, kind: str = "call", **fields: Any) -> Lease:
    of = keys.record_id(kind, scope, key)
    return won(store.claim(replace(asked(key, scope=scope, **fields), record_id=of)))


def seen(store: MemoryStore, lease: Lease) -> Record:
    record = store.get(lease.record_id)
    assert record is not None
    return record


def encrypted(lease: Lease, name: str, payload: bytes) -> bytes:
    """The result of a step under a key that the alias has not."""
    secrets = Policy(encryption_keys=["B" * 43]).encryption_keys
    return sealed(payload, keys.of_step(lease.record_id, name), secrets)


def decision(store: MemoryStore, record: Record, action: str, force: bool = False) -> Decision:
    return Decision.of(Reading(store, record), action, force=force)


def ended(store: MemoryStore, clock: FakeClock, ending: str, key: str = "key") -> Record:
    """A record in each of the states in which an operator may find it."""
    lease = claim(store, "scope", key, on_stale="refuse" if ending == "kept stale" else "take_over")
    if ending in ("completed", "expired"):
        store.complete(lease, codecs.pack(JSONCodec(), 1, max_bytes=10), retention=HOUR)
    elif ending == "not kept":
        store.complete(lease, codecs.unavailable(JSONCodec()), retention=HOUR)
    elif ending in ("failed", "released"):
        store.fail(lease, "why") if ending == "failed" else store.release(lease)
    if ending in ("expired", "stale", "kept stale"):
        clock.advance(HOUR if ending == "expired" else 61)
    return seen(store, lease)


# The search.


@pytest.mark.django_db
def test_a_record_is_found_by_what_an_operator_has_of_it(
    store: MemoryStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice = User.objects.create_user("alice")
    mine, tenants = f"user:auth.user:{alice.pk}", f"tenant:4:acme:user:auth.user:{alice.pk}"
    kinds = {mine: "http", tenants: "http", "shop.tasks.pay": "task", "billing": "call"}
    by = {}
    for number, (scope, kind) in enumerate(kinds.items()):
        by[scope] = claim(store, scope, f"order {number}", kind).record_id
        clock.advance(1)
    for term, scope, found in (
        (f" {by[mine]} ", None, mine),
        (by[mine].hex, None, mine),
        (keys.short(by[mine]), None, mine),
        (str(by["billing"])[:8], None, "billing"),
        (f"{mine} order 0", None, mine),
        ("alice order 0", None, mine),
        ("order 0", "alice", mine),
        ("acme alice order 1", None, tenants),
        ("order 1", "acme alice", tenants),
        ("shop.tasks.pay order 2", None, "shop.tasks.pay"),
        ("order 3", None, "billing"),
    ):
        [record] = find(store, term, scope=scope).records
        assert record.record_id == by[found], term
    for term, scope in (
        ("order 9", None),
        ("order 3", "alice"),
        (str(by["billing"])[:7], None),
        ("\x00", None),
        ("\udcff", None),
        ("order", "nobody\x00"),
    ):
        assert find(store, term, scope=scope) == search.Found()
    monkeypatch.setattr(search, "NEWEST", 3)
    for term, number in (("order 3", 1), ("order 0", 0), (keys.short(by[mine]), 0)):
        found_now = find(store, term)
        assert (len(found_now.records), found_now.more) == (number, True), term
    assert find(store, "alice order 0").records  # computed, so it is found among all


def test_a_window_is_told_unless_the_record_is_found(
    store: MemoryStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, key in enumerate(["old", "twice", "twice", "new"]):
        claim(store, f"scope {number}", key)
        clock.advance(1)
    monkeypatch.setattr(search, "NEWEST", 3)
    for key, is_told in (("new", False), ("twice", True), ("old", True)):
        assert ("records were searched" in manage("show", key)[1]) is is_told, key


def test_a_search_ends_in_its_time_and_a_record_that_is_browsed_twice_is_one(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        claim(store, "scope", f"key-{number}")
    pages = [*store.browse().records]
    steps = {None: Page((pages[0], pages[1]), "next"), "next": Page((pages[1], pages[2]))}

    def look_on(filters: Filters, cursor: str | None, *room: Any) -> tuple[Page, int]:
        matching = tuple(filter(filters.match, steps[cursor].records))
        return replace(steps[cursor], records=matching), 2

    monkeypatch.setattr(store, "look_on", look_on)

    for key, seconds, found in (
        (pages[1].key, 9, search.Found((pages[1],))),
        ("another", 9, search.Found()),
        ("another", 0, search.Found((), more=True)),
    ):
        assert find(store, key, seconds=seconds) == found


# What a record means, and what a decision will do.


@pytest.mark.parametrize(
    ("ending", "said", "obstacles"),
    [
        ("live", "refused: in progress (409). The lease lasts for 60 s", "running running running"),
        ("stale", "take over and run", "- - -"),
        ("kept stale", "refused: stale (409), until an operator", "- - -"),
        ("failed", "run again", "- - -"),
        ("released", "whatever it asks for", "released released -"),
        ("completed", "the stored result", "completed completed -"),
        ("not kept", "result unavailable", "completed completed -"),
        ("expired", "would run: the record has expired", "expired expired expired"),
    ],
)
def test_R71_what_a_duplicate_is_told_and_what_can_be_decided(
    store: MemoryStore, clock: FakeClock, ending: str, said: str, obstacles: str
) -> None:
    record = ended(store, clock, ending)

    assert said in Reading(store, record).told
    assert ("mismatch (422)" in Reading(store, record).told) is (
        ending not in ("released", "expired")
    )
    for action, word in zip(("release", "complete", "expire"), obstacles.split(), strict=True):
        decided = decision(store, record, action)
        why = decided.obstacle
        assert (why is None) if word == "-" else (why is not None and word in why)
        assert ("loses its lease" in decided.consequence) is (ending in LEASED)
        again = ending in ("completed", "expired", "not kept")
        assert ("runs a second time" in decided.consequence) is again
        result = b"" if action == "complete" else None
        if why is None:
            replace(decided, result=result).carry_out()
            record = ended(store, clock, ending, f"another than before {action}")
        else:
            with pytest.raises(NotResolved, match=keys.short(record.record_id)) as refused:
                replace(decided, result=result).carry_out()
            assert why in str(refused.value)


LEASED = ("live", "stale", "kept stale")


def seen_again(store: MemoryStore, record: Record) -> Record:
    found = store.get(record.record_id)
    assert found is not None
    return found


@pytest.mark.parametrize("action", RESOLUTIONS)
def test_R71_a_decision_is_about_what_was_seen_and_can_be_forced(
    store: MemoryStore, clock: FakeClock, action: str, caplog: pytest.LogCaptureFixture
) -> None:
    result = b"given" if action == "complete" else None
    before = ended(store, clock, "failed")
    owner = claim(store, "scope", "key")
    with pytest.raises(NotResolved, match="it is in progress now"):
        replace(decision(store, before, action, force=True), result=result).carry_out()
    running = seen(store, owner)
    with pytest.raises(NotResolved, match="lasts for 60 s unless renewed"):
        replace(decision(store, running, action), result=result).carry_out()
    assert caplog.records == []

    reason = "charged by hand\nWARNING forged"
    forced = decision(store, running, action, force=True)
    replace(forced, result=result).carry_out(who="ann", reason=reason)

    assert store.renew([owner], timedelta(seconds=60)) == set()
    [line] = caplog.messages
    assert line == (
        f"Record {keys.short(owner.record_id)}: {action} by ann. Reason: charged by hand�WARNING "
        f"forged (store default)"
    )
    assert caplog.records[0].levelno == logging.WARNING
    gone = replace(running, record_id=keys.new_token())
    with pytest.raises(NotResolved, match="gone from the store"):
        replace(decision(store, gone, action, force=True), result=result).carry_out()


# The results that an operator gives.


def test_a_given_result_is_in_the_form_of_its_adapter(store: MemoryStore) -> None:
    of_view, of_task, of_call = (
        Reading(store, seen(store, claim(store, "scope", "key", kind, operation="tests.pay")))
        for kind in keys.KINDS
    )
    assert [it.kind for it in (of_view, of_task, of_call)] == [*keys.KINDS]
    assert Reading(store, replace(of_view.record, scope="cut short")).kind is None

    given = given_result(of_view, status=201, body=b"{}")
    answer = codecs.unpack(SnapshotCodec(), given)
    assert (answer.status, answer.body) == (201, b"{}")
    assert answer.headers == (("Content-Type", "application/json"),)
    with pytest.raises(ValueError, match="200 to 599"):
        given_result(of_view, status=101)

    value = given_result(of_call, value='{"id": 7}')
    assert codecs.unpack(JSONCodec(), value) == {"id": 7}
    with pytest.raises(ValueError, match=r"no guarded task with the operation tests\.pay"):
        given_result(of_task, value="7")
    assert of_task.record.state is State.IN_PROGRESS


@pytest.mark.django_db
def test_a_given_body_is_in_the_charset_of_its_content_type(
    store: MemoryStore, clock: FakeClock
) -> None:
    lease = claim(store, "scope", "key", "http")
    clock.advance(3661)
    said = ["--body", "é", "--content-type", "text/plain; charset=latin-1"]

    code, text = manage("complete", str(lease.record_id), "--status", "200", *said, "--yes")

    assert code == 0, text
    assert codecs.unpack(SnapshotCodec(), seen(store, lease).result).body == b"\xe9"


@pytest.mark.parametrize("media_type", ["application/json", "application/problem+json; charset=x"])
@pytest.mark.parametrize("body", ["{bad", b"{'a': 1}", b"\xff", " "])
def test_a_given_body_that_says_it_is_json_is_json(store: MemoryStore, media_type, body) -> None:
    about = Reading(store, seen(store, claim(store, "scope", "key", "http")))
    with pytest.raises(ValueError, match="This is no JSON: "):
        given_result(about, status=200, body=body, content_type=media_type)
    for other in ("text/plain", "application/x-ndjson"):
        assert given_result(about, status=200, body=body, content_type=other)
    for right in ("", b"", "[1, NaN]", '{"a": 1}'.encode("utf-16")):
        assert given_result(about, status=200, body=right)
    with pytest.raises(ValueError, match="has a content type"):
        given_result(about, status=200, body=body, content_type=" ; charset=utf-8")


# The commands; what each does to a store is told in tests/integration/core/test_commands.py.


def manage(command: str, *words: str, stdout: Any = None) -> tuple[int, str]:
    """Run a command; return its exit code, and what it has written."""
    out, written = stdout or io.StringIO(), io.StringIO()
    try:
        call_command(f"idempotency_{command}", *words, stdout=out, stderr=written)
    except CommandError as error:
        return error.returncode, f"{written.getvalue()}{out.getvalue()}{error}"
    return 0, f"{written.getvalue()}{out.getvalue()}"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("complete RECORD", "--status for a view, or else --value"),
        ("complete RECORD --status 200 --value 1", "--status for a view, or else --value"),
        ("complete RECORD --status 200", "the record of a call: give --value"),
        ("complete RECORD --value {", "cannot be kept. It is no JSON: Expecting"),
        ("complete RECORD --value L-17", """A text stands in double quotes: '"L-17"'."""),
        (f"complete RECORD --value {'[' * 100_000}", "cannot be kept. maximum recursion"),
        ("complete RECORD --value 1 --retention 0", "--retention is a number of seconds above 0"),
        ("complete RECORD --value 1 --retention inf", "and at most 100 years"),
        ("release", "Name a record"),
        ("release RECORD --erase", "--erase takes a --scope"),
        ("release --erase --scope scope --epoch 1", "and no record or --epoch"),
        ("show", "Name a record, or give --stale or --held"),
        ("show RECORD --stale", "--stale and --held take no record"),
        ("show RECORD --held", "--stale and --held take no record"),
        ("show --stale --scope scope", "--stale and --held take no record"),
        ("show RECORD --older-than 2h", "go with --stale or --held"),
        ("resume RECORD --step charge", "--step goes with --done or --not-done"),
        ("resume COMPLETED --step charge", "--step goes with --done or --not-done"),
        ("show RECORD --store defualt", "has no alias 'defualt'. Did you mean 'default'"),
        ("show RECORD --schema \udcff", "What is given for schema is no text"),
        ("show \udcff", "What is given for record is no text"),
    ],
)
def test_wrong_usage_is_told_with_what_to_write(
    store: MemoryStore, clock: FakeClock, words: str, said: str
) -> None:
    completed = ended(store, clock, "completed", "other")
    record = ended(store, clock, "stale", "usage")
    words = words.replace("COMPLETED", str(completed.record_id))

    yes = [] if words.startswith("show") else ["--yes"]
    code, text = manage(*words.replace("RECORD", str(record.record_id)).split(), *yes)

    assert (code, said in text) == (2, True), text
    assert seen_again(store, record).state is State.IN_PROGRESS


def test_all_stale_leases_are_listed_however_many_newer_records_there_are(
    store: MemoryStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the alert's runbook says: filters of the admin look at the newest records alone."""
    monkeypatch.setattr(search, "_MOST", 2)
    monkeypatch.setattr(search, "NEWEST", 2)
    stale = [claim(store, "scope", f"key {n}", operation="charge") for n in range(3)]
    claim(store, "scope", "other", operation="mail")
    clock.advance(3661)
    young = claim(store, "scope", "young", operation="charge")
    clock.advance(61)
    for number in range(5):
        claim(store, "scope", f"live {number}", operation="charge")

    code, text = manage("show", "--stale", "--operation", "charge")
    assert code == 0
    for lease in [*stale, young]:
        assert f"{lease.record_id}  stale  charge" in text
    assert text.splitlines()[-1] == "4 leases are stale. The oldest was claimed 1 h 2 min ago."

    code, text = manage("show", "--stale", "--json")
    assert (code, len(json.loads(text)["records"])) == (0, 5)


@pytest.mark.parametrize(("age", "found"), [("90s", 2), ("30min", 1), ("2h", 1), ("1d", 0)])
def test_stale_leases_are_listed_by_their_age(store: MemoryStore, age: str, found: int) -> None:
    for key, hours in {"old": 3, "young": 0.25}.items():
        created = timezone.now() - timedelta(hours=hours)
        lease = claim(store, "scope", key)
        store._records[lease.record_id] = replace(
            seen(store, lease), created_at=created, lease_until=created
        )

    code, text = manage("show", "--stale", "--older-than", age, "--json")

    assert (code, len(json.loads(text)["records"])) == (0, found)
    assert "write 90s, 30min, 2h or 1d" in manage("show", "--stale", "--older-than", "2 hours")[1]


def test_no_stale_lease_is_no_error_and_a_store_that_is_down_is_one(
    settings: Any, store: MemoryStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim(store, "scope", "live")
    assert manage("show", "--stale") == (0, "No lease is stale.\n")
    settings.IDEMPOTENCY = {**settings.IDEMPOTENCY, "same": settings.IDEMPOTENCY["default"]}
    clock.advance(61)
    down = store_for("same")
    monkeypatch.setattr(down, "browse", Mock(side_effect=StoreError("It is down.")))
    code, text = manage("show", "--stale")
    assert (code, "same: It is down." in text) == (1, True)


@pytest.mark.django_db
@pytest.mark.parametrize("command", ["release", "erase"])
@pytest.mark.parametrize("answer", ["y", "", EOFError, KeyboardInterrupt])
def test_R71_an_operator_at_a_terminal_agrees_to_what_is_told(
    store: MemoryStore,
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    answer: Any,
) -> None:
    record = ended(store, clock, "stale", "\x1b[2Jkey")
    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("builtins.input", Mock(side_effect=[answer]))
    words = ["release", str(record.record_id)]
    if command == "erase":
        words = ["release", "--erase", "--scope", "scope"]

    code, text = manage(*words, stdout=Terminal())

    assert code == (0 if answer == "y" else 1)
    said = "It would take over and run" if command == "release" else "runs the work again"
    assert said in text
    assert "\x1b" not in text
    if answer == "y" and command == "erase":
        assert "\rdefault: 1 records looked at, 1 erased" in text
    elif answer != "y":
        assert text.replace("\n", "").endswith("[y/N] Nothing was changed.")
        assert seen_again(store, record) == record


READ_BY_NOBODY = """
import django
from django.conf import settings
settings.configure(
    IDEMPOTENCY={"default": %r}, SECRET_KEY="s", INSTALLED_APPS=["django_idempotency"]
)
from django.core.management import execute_from_command_line
execute_from_command_line(["manage.py", "idempotency_sweep", "--dry-run"])
"""


@pytest.mark.processes
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_command_ends_quietly_where_the_reader_of_its_output_is_gone(unbuffered: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-c", READ_BY_NOBODY % MEMORY],
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        cwd=ROOT,
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.processes
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_a_command_whose_output_is_closed_writes_nowhere(closed: str) -> None:
    words = [sys.executable, "-c", READ_BY_NOBODY % MEMORY]
    shell = ["sh", "-c", f'exec "$@" {closed}', "sh", *words]
    done = subprocess.run(shell, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.django_db
@pytest.mark.parametrize("action", RESOLUTIONS)
def test_R71_an_owner_that_completes_while_the_operator_reads_keeps_its_result(
    store: MemoryStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    """And the operator, who saw it in progress, is refused."""
    lease = claim(store, "scope", "key")
    result = codecs.pack(JSONCodec(), "the owner's", max_bytes=100)

    def agree() -> str:
        store.complete(lease, result, retention=HOUR)
        return "yes"

    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("builtins.input", agree)
    given = ["--value", "1"] if action == "complete" else []

    code, text = manage(action, "scope key", "--force", *given)

    assert code == 1
    assert "It has changed since you saw it: it is completed now." in text
    assert seen(store, lease).result == result


@pytest.mark.django_db
def test_results_that_are_encrypted_are_shown_and_given(settings: Any) -> None:
    settings.IDEMPOTENCY = {"default": {**MEMORY, "ENCRYPTION_KEYS": ["A" * 43]}}
    store = store_for()
    assert isinstance(store, MemoryStore)
    idempotency.run(lambda lease: "paid by card", key="key", scope="scope")
    [record] = store.browse().records
    assert b"card" not in (record.result or b"")
    assert manage("show", "scope key", "--result")[1].endswith('\n\n"paid by card"\n')
    claim(store, "scope", "other", fingerprints=())
    assert manage("complete", "scope other", "--value", '"by hand"', "--force", "--yes")[0] == 0
    assert all(b"hand" not in (record.result or b"") for record in store.browse().records)
    outcome = idempotency.run(lambda lease: None, key="other", scope="scope")
    assert (outcome.result, outcome.replayed) == ("by hand", True)


# The steps that a record has noted.


def noted(store: MemoryStore, lease: Lease, **results: Any) -> Record:
    """The record of an attempt that has noted these results, under the names of its steps."""
    for name, result in results.items():
        entry = journal.entry(name, codecs.pack(JSONCodec(), result, max_bytes=1000))
        store.note(lease, entry, duration=timedelta(seconds=60), held=False)
    return seen(store, lease)


@pytest.mark.django_db
def test_S15_the_steps_of_a_record_are_shown_and_their_results_where_they_are_asked_for(
    store: MemoryStore,
) -> None:
    record = noted(store, claim(store, "scope", "key"), order={"id": 17}, charge="ch_1")
    [browsed] = store.browse().records
    assert browsed.steps == record.steps

    assert manage("show", "scope other")[0] == 1
    text = manage("show", "scope key")[1]
    assert "  steps        2 noted, 54 bytes\n    order   16 bytes\n    charge  13 bytes\n" in text
    assert "ch_1" not in text
    assert manage("show", "scope key", "--result")[1].endswith(
        '\n\norder: {"id":17}\ncharge: "ch_1"\n'
    )

    [plain] = json.loads(manage("show", "scope key", "--json")[1])["records"]
    told = {"record_id", "now", "store", "stale", "held", "expired", "kind", "told"}
    assert plain.keys() == {*KEPT} - {"token"} | told
    noted_ = [{"name": "order", "bytes": 16}, {"name": "charge", "bytes": 13}]
    assert plain["steps"] == {"bytes": 54, "damage": "", "noted": noted_, "uncertain": []}
    [opened] = json.loads(manage("show", "scope key", "--json", "--result")[1])["records"]
    assert [(it["name"], it["body"]) for it in opened["steps"]["noted"]] == [
        ("order", '{"id":17}'),
        ("charge", '"ch_1"'),
    ]


@pytest.mark.django_db
def test_T18_results_of_steps_that_are_encrypted_are_shown(settings: Any) -> None:
    settings.IDEMPOTENCY = {"default": {**MEMORY, "ENCRYPTION_KEYS": ["A" * 43]}}

    def work(lease: Any) -> None:
        lease.step("charge", lambda: "paid by card")
        raise KeyError

    with pytest.raises(KeyError):
        idempotency.run(work, key="key", scope="scope", transaction="steps")

    [record] = store_for().browse().records
    assert b"card" not in (record.steps or b"")
    assert manage("show", "scope key", "--result")[1].endswith('\n\ncharge: "paid by card"\n')
    moved = (record.steps or b"").replace(b"charge", b"charme")
    steps = Reading(store_for(), replace(record, steps=moved)).steps
    assert steps is not None
    assert "it was not encrypted for this record" in steps.noted["charme"].note


@pytest.mark.django_db
@pytest.mark.parametrize("damaged", [b"\x00", journal.entry("order", b"x")[:-1]])
def test_S16_a_damaged_journal_says_so(store: MemoryStore, damaged: bytes) -> None:
    lease = claim(store, "scope", "key")
    store.note(lease, damaged, duration=timedelta(seconds=60), held=False)
    store.fail(lease, "why")

    code, text = manage("show", "scope key", "--result")

    assert code == 0
    assert "steps        The journal of the record's steps is damaged" in text
    assert "refused: store unavailable (503), the steps cannot be read" in text
    [facts] = json.loads(manage("show", "scope key", "--json", "--result")[1])["records"]
    assert (facts["steps"]["noted"], "damaged" in facts["steps"]["damage"]) == ([], True)
    told_ = decision(store, seen(store, lease), "release").consequence
    assert "cannot be read, and is forgotten" in told_


@pytest.mark.parametrize(
    ("ending", "said"),
    [
        ("live", "refused: in progress (409). The lease"),
        ("stale", "go on after 2 steps"),
        ("kept stale", "refused: stale (409), until an operator"),
        ("failed", "go on after 2 steps"),
    ],
)
def test_S8_S10_a_duplicate_goes_on_behind_the_steps_unless_its_code_has_none(
    store: MemoryStore, clock: FakeClock, ending: str, said: str
) -> None:
    lease = claim(
        store, "scope", "key", on_stale="refuse" if ending == "kept stale" else "take_over"
    )
    held = ending == "kept stale"
    for name in ("order", "charge"):
        entry = journal.entry(name, codecs.pack(JSONCodec(), 1, max_bytes=10))
        store.note(lease, entry, duration=timedelta(seconds=60), held=held)
    if ending == "failed":
        store.fail(lease, "why")
    elif ending != "live":
        clock.advance(61)

    text = Reading(store, seen(store, lease)).told

    assert said in text
    assert ("Code without steps is refused: stale (409)." in text) is ("go on" in said)


def test_S9_a_decision_says_which_steps_it_forgets(store: MemoryStore) -> None:
    record = noted(store, claim(store, "scope", "key"), order=17, charge="ch_1")
    few = "These steps were done, are forgotten, and run again: order, charge."
    for action, found in {"release": True, "expire": True, "complete": False}.items():
        assert (few in decision(store, record, action, force=True).consequence) is found, action
    done = "These steps were done, and what comes after them never runs: order, charge."
    assert done in decision(store, record, "complete", force=True).consequence
    rows = {f"rows-{number}": number for number in range(12)}
    record = noted(store, claim(store, "scope", "many"), **rows)
    assert "rows-8, rows-9 and 2 more." in decision(store, record, "release", True).consequence
    record = seen(store, claim(store, "scope", "none"))
    assert "steps" not in decision(store, record, "release", True).consequence


# The calls of which nobody knows whether they were made.


def half_done(*calls: str, key: str = "key", **options: Any) -> Record:
    """The record of work whose step is noted, and whose calls were answered by nobody."""

    def work(lease: Any) -> None:
        lease.step("order", lambda: 17)
        for name in calls:
            with suppress(TimeoutError):
                lease.external(name, Mock(side_effect=TimeoutError), uncertain="refuse")
        raise TimeoutError

    with pytest.raises(TimeoutError):
        idempotency.run(work, key=key, scope="scope", transaction="steps", **options)
    return half_done_record(key)


def half_done_record(key: str = "key") -> Record:
    record = store_for().get(keys.record_id("call", "scope", key))
    assert record is not None
    return record


def go_on(*calls: str, key: str = "key", **options: Any) -> tuple[Any, list[str]]:
    """Run the work again; return what its calls have returned, and the names of those made."""
    made: list[str] = []

    def call(name: str) -> str:
        made.append(name)
        return f"new {name}"

    def work(lease: Any) -> Any:
        lease.step("order", Mock(side_effect=ZeroDivisionError))
        return [
            lease.external(name, lambda key, name=name: call(name), uncertain="refuse")
            for name in calls
        ]

    outcome = idempotency.run(work, key=key, scope="scope", transaction="steps", **options)
    return outcome.result, made


@pytest.mark.django_db
def test_S13_uncertain_calls_are_shown_and_what_they_mean_for_a_duplicate(
    store: MemoryStore, clock: FakeClock
) -> None:
    record = half_done("charge", "mail")
    text = manage("show", "scope key")[1]
    assert "  steps        1 noted, 2 uncertain, 45 bytes\n    order   9 bytes\n" in text
    assert "    charge  uncertain\n    mail    uncertain\n" in text
    assert "  expires      never\n" in text
    for said in ("go on after 1 step", "were made: charge, mail", "refused: stale (409), until"):
        assert said in Reading(store, record).told
    [facts] = json.loads(manage("show", "scope key", "--json")[1])["records"]
    assert facts["held"] is True
    assert facts["steps"]["uncertain"] == ["charge", "mail"]
    assert len(facts["steps"]["noted"]) == 1

    clock.advance(timedelta(days=30).total_seconds())
    assert store.sweep() == 0
    with pytest.raises(idempotency.Uncertain):
        go_on("charge", "mail")


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("words", "calls", "result", "made"),
    [
        ([], [], None, []),
        (["--not-done"], ["charge"], ["new charge"], ["charge"]),
        (["--done", '"ch_1"'], ["charge"], ["ch_1"], []),
        (["--done", "null"], ["charge"], [None], []),
        (["--done", '{"#decimal": "1.50"}'], ["charge"], [Decimal("1.50")], []),
        (["--done", '{"##decimal": "1.50"}'], ["charge"], [{"#decimal": "1.50"}], []),
    ],
)
@pytest.mark.parametrize("secret", [False, True])
def test_S18_a_resumed_record_goes_on_with_what_the_operator_has_said(
    settings: Any,
    clock: FakeClock,
    caplog: pytest.LogCaptureFixture,
    words: list[str],
    calls: list[str],
    result: Any,
    made: list[str],
    secret: bool,
) -> None:
    alias = {**MEMORY, "OPTIONS": {"clock": clock}, "RETENTION": 7200}
    alias |= {"ENCRYPTION_KEYS": ["A" * 43]} if secret else {}
    settings.IDEMPOTENCY = {"default": alias}
    before = half_done("charge")
    clock.advance(timedelta(days=2).total_seconds())
    caplog.clear()

    code, text = manage("resume", "scope key", *words, "--yes", "--reason", "Asked the bank.")

    assert code == 0, text
    record = seen_again(store_for(), before)  # type: ignore[arg-type]
    assert (record.state, record.epoch) == (State.FAILED, before.epoch + 1)
    assert (record.token != before.token, record.fingerprint) == (True, before.fingerprint)
    said = {"--done": " ('charge' was done)", "--not-done": " ('charge' was not done)"}
    about = said[words[0]] if words else ""
    assert f"Record {keys.short(record.record_id)}: resume{about} by " in caplog.text
    assert caplog.text.count("Asked the bank.") == 1
    assert "ch_1" not in caplog.text
    assert b"ch_1" not in (record.steps or b"") or not secret
    assert f"Record {keys.short(record.record_id)} is resumed. " in text
    if not words:
        assert record.held
        assert "These calls stay uncertain, and the record does not expire: charge." in text
        with pytest.raises(idempotency.Uncertain):
            go_on("charge")
        return
    assert record.expires_at == record.now + timedelta(hours=2)
    with pytest.raises(idempotency.FingerprintMismatch):
        go_on(payload=8)
    assert go_on(*calls) == (result, made)


@pytest.mark.parametrize(
    ("calls", "ending", "step", "said"),
    [
        (["charge"], "failed", "charge", None),
        (["charge"], "failed", None, None),
        (["charge"], "failed", "order", "no uncertain call order. Uncertain are: charge."),
        (["charge", "mail"], "failed", "", "Uncertain are: charge, mail."),
        ([], "failed", None, None),
        ([], "failed", "charge", "None of its calls is uncertain."),
        ([], "no steps", None, None),
        ([], "no steps", "charge", "None of its calls is uncertain."),
        ([], "damaged", None, "Its steps cannot be read. The journal of the"),
        (["charge"], "another key", "charge", "Its steps cannot be read. The stored result is enc"),
        ([], "released", None, "It is released, and such a record"),
        ([], "completed", "charge", "It is completed, and such a record"),
        (["charge"], "live", "charge", "An attempt is running"),
        (["charge"], "stale", "charge", None),
    ],
)
def test_S18_what_stands_against_a_decision_to_resume(
    store: MemoryStore,
    clock: FakeClock,
    calls: list[str],
    ending: str,
    step: str | None,
    said: str | None,
) -> None:
    lease = claim(store, "scope", "key")
    entries = [journal.intent(name) for name in calls] if ending != "no steps" else []
    if ending in ("failed", "damaged", "another key"):
        payload = PACKED if ending == "failed" else encrypted(lease, "order", PACKED)
        entries.append(b"\x00" if ending == "damaged" else journal.entry("order", payload))
    for entry in entries:
        store.note(lease, entry, duration=timedelta(seconds=60), held=bool(calls))
    if ending in ("failed", "no steps", "damaged", "another key"):
        store.fail(lease, "why", held=bool(calls))
    elif ending == "released":
        store.release(lease)
    elif ending == "completed":
        store.complete(lease, b"", retention=HOUR)
    elif ending == "stale":
        clock.advance(61)
    record = seen(store, lease)
    decided = replace(decision(store, record, "resume"), step=step, not_done=step is not None)

    why = decided.obstacle

    assert (said in why) if said and why else (why is said), why
    if said is None:
        decided.carry_out()
        assert seen(store, lease).state is State.FAILED


@pytest.mark.django_db
def test_T8_a_large_step_is_read_up_to_the_limit_for_steps(settings: Any) -> None:
    settings.IDEMPOTENCY = {"default": {**MEMORY, "MAX_STEPS_BYTES": 2**22}}
    with pytest.raises(TimeoutError):
        idempotency.run(half_a_large_one, key="key", scope="scope", transaction="steps")
    assert "It would go on after 1 step" in manage("show", "scope key")[1]
    assert manage("resume", "scope key", "--yes")[0] == 0


def half_a_large_one(lease: Any) -> None:
    lease.step("large", lambda: "x" * 2**21)
    raise TimeoutError


@pytest.mark.django_db
def test_S18_a_decision_is_about_the_journal_that_was_shown(
    store: MemoryStore, clock: FakeClock
) -> None:
    lease = claim(store, "scope", "key")
    minute = timedelta(seconds=60)
    store.note(lease, journal.intent("charge"), duration=minute, held=True)
    clock.advance(61)
    shown = seen(store, lease)
    for entry in (journal.withdrawn("charge"), journal.intent("charge")):  # it begins anew
        store.note(lease, entry, duration=timedelta(0), held=True)
    words = ("--not-done", "--yes", "--epoch", str(shown.epoch), "--noted")

    decided = replace(decision(store, shown, "resume"), step="charge", not_done=True)
    with pytest.raises(NotResolved, match="It has changed since you saw it: it is in progress"):
        decided.carry_out()
    assert manage("resume", "scope key", *words, str(len(shown.steps or b"")))[0] == 1
    assert seen(store, lease).epoch == shown.epoch
    now = seen(store, lease)
    assert manage("release", "scope key", "--yes", "--epoch", str(shown.epoch))[0] == 2
    for action in RESOLUTIONS:
        why = replace(decision(store, shown, action), found=Reading(store, now)).obstacle
        assert "It has changed since you saw it" in str(why)
    assert manage("resume", "scope key", *words, str(len(now.steps or b"")))[0] == 0


@pytest.mark.django_db
@pytest.mark.parametrize("action", RESOLUTIONS)
@pytest.mark.parametrize("ending", ["live", "lapsed"])
def test_S18_force_ends_an_attempt_that_notes_on_after_it_was_shown(
    store: MemoryStore, clock: FakeClock, action: str, ending: str
) -> None:
    lease = claim(store, "scope", "key")
    shown = Seen.of(seen(store, lease))
    store.note(lease, journal.intent("charge"), duration=timedelta(seconds=60), held=True)
    if ending == "lapsed":
        clock.advance(61)
    record = seen(store, lease)
    decided = Decision(
        store, action, shown.to_end(record, action), Reading(store, record), force=True
    )
    is_told = "What its steps do until then is forgotten, too." in decided.consequence
    assert is_told is (ending == "live" and action in ("release", "expire"))
    if ending == "lapsed" or action == "resume":
        assert "It has changed since you saw it" in str(decided.obstacle)
    else:
        assert decided.obstacle is None
        replace(decided, result=PACKED if action == "complete" else None).carry_out()
        assert seen(store, lease).epoch == lease.fencing_token + 1


@pytest.mark.django_db
def test_S13_a_record_that_is_held_without_a_question_says_how_that_ends(
    store: MemoryStore,
) -> None:
    lease = claim(store, "scope", "key")
    for entry in (journal.intent("charge"), journal.withdrawn("charge")):
        store.note(lease, entry, duration=timedelta(seconds=60), held=True)
    store.fail(lease, "why", held=True)
    text = manage("show", "scope key")[1]
    assert "No call is uncertain: the record is held until then, or until it is resumed." in text
    assert manage("resume", "scope key", "--not-done", "--yes")[0] == 1
    assert manage("resume", "scope key", "--yes")[0] == 0
    assert seen(store, lease).expires_at is not None


@pytest.mark.django_db(transaction=True)
def test_a_record_that_two_aliases_share_is_decided_about_under_that_of_its_work(
    settings: Any,
) -> None:
    words = ("resume", "scope key", "--done", '"ch_1"', "--yes")
    settings.IDEMPOTENCY = {"default": {}, "keyed": {"ENCRYPTION_KEYS": ["A" * 43]}}

    def charge(lease: Any) -> Any:
        return lease.external("charge", Mock(side_effect=TimeoutError), uncertain="refuse")

    of_key = {"key": "key", "scope": "scope", "transaction": "steps", "store": "keyed"}
    with pytest.raises(TimeoutError):
        idempotency.run(charge, **of_key)
    code, text = manage(*words)
    assert (code, "The stores default, keyed share this record and have" in text) == (2, True)
    text = manage("complete", "scope key", "--value", "1", "--yes")[1]
    assert "Name that of its work: idempotency_complete --store." in text
    assert manage(*words, "--store", "keyed")[0] == 0
    record = half_done_record()
    assert journal.read(record.steps).uncertain == ()
    assert b"ch_1" not in (record.steps or b"")


@pytest.mark.django_db
def test_S9_S13_a_decision_says_what_it_means_for_uncertain_calls(store: MemoryStore) -> None:
    record = half_done("charge", "mail")
    for action, said in {
        "release": "whether these calls were made, and they are made again: charge, mail.",
        "expire": "whether these calls were made, and they are made again: charge, mail.",
        "complete": "whether these calls were made, and no attempt asks again: charge, mail.",
        "resume": "stay uncertain, and the record does not expire: charge, mail.",
    }.items():
        assert said in decision(store, record, action).consequence
        assert (
            "and skips the steps that are done" in decision(store, record, action).consequence
        ) is (action == "resume")
    about = replace(decision(store, record, "resume"), step="mail")
    told_ = "The call mail counts as made, and has the result that you give."
    assert about.consequence.startswith(f"{told_} These calls stay uncertain")
    told_ = "The call mail counts as not made: the next attempt makes it."
    assert told_ in replace(about, not_done=True).consequence
    assert "does not expire: charge." in about.consequence
    assert "made again" not in decision(store, half_done(key="other"), "release").consequence


@pytest.mark.django_db
def test_S13_a_release_that_is_not_asked_about_names_what_it_forgets(store: MemoryStore) -> None:
    half_done("charge")
    code, text = manage("release", "scope key", "--yes")
    assert code == 0
    forgotten = "These steps were done, are forgotten, and run again: order. "
    assert f"is released. {forgotten}" in text
    assert "and they are made again: charge." in text

    half_done("charge", key="another")
    said = json.loads(manage("release", "scope another", "--yes", "--json")[1])
    assert said["steps"].startswith(forgotten)


@pytest.mark.django_db
def test_T8_a_result_of_a_call_is_what_run_can_keep_and_fits_the_journal(settings: Any) -> None:
    settings.IDEMPOTENCY = {"default": {**MEMORY, "MAX_STEPS_BYTES": 66}}
    assert len(half_done("charge").steps or b"") == 34
    bad = (
        "{",
        "{'a': 1}",
        '{"#uuid": 1}',
        '{"#decimal": "x"}',
        '{"#timedelta": null}',
        '{"id": 1, "id": 2}',
        "NaN",
        "[-Infinity]",
        "1e999",
        "1" * 5000,
        "[" * 10**5,
    )
    for value in bad:
        code, text = manage("resume", "scope key", "--done", value, "--yes")
        assert (code, "This result cannot be kept" in text) == (2, True), value
    for length, code in ((65, 2), (64, 0)):  # in quotes; what was noted before does not count
        done = manage("resume", "scope key", "--done", json.dumps("x" * length), "--yes")
        assert done[0] == code, done
        assert ("more bytes than max_steps_bytes allows, which are 66" in done[1]) is (code == 2)


@pytest.mark.django_db
def test_S18_the_call_is_named_where_several_are_uncertain(store: MemoryStore) -> None:
    record = half_done("charge", "mail")
    assert manage("resume", "scope key", "--done", "1", "--yes") == (
        2,
        "Name the call by --step: charge, mail.",
    )
    code, text = manage("resume", "scope key", "--done", "1", "--step", "order", "--yes")
    assert (code, "no uncertain call order. Uncertain are: charge, mail." in text) == (1, True)
    assert seen_again(store, record) == record
    assert manage("resume", "scope key", "--step", "mail", "--done", "1", "--yes")[0] == 0
    assert seen_again(store, record).held
    assert manage("resume", "scope key", "--not-done", "--yes")[0] == 0  # the one that is left
    assert go_on("charge", "mail") == (["new charge", 1], ["charge"])
    code, text = manage("resume", "scope key", "--not-done", "--yes")
    assert (code, "It is completed" in text) == (1, True)


@pytest.mark.django_db
def test_held_records_are_listed_but_those_of_running_attempts(
    store: MemoryStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_MOST", 2)
    monkeypatch.setattr(search, "NEWEST", 2)
    assert manage("show", "--held") == (0, "No record is held.\n")
    held = half_done("charge", operation="checkout")
    ended(store, clock, "kept stale", "stale")
    claim(store, "scope", "live", on_stale="refuse")
    for number in range(5):
        claim(store, "scope", f"key {number}")

    code, text = manage("show", "--held")

    assert code == 0
    lines = text.splitlines()
    assert any("  stale  " in line and "key stale" in line for line in lines[:2])
    assert any(line.startswith(f"{held.record_id}  FAILED  checkout") for line in lines[:2])
    assert lines[2:] == ["2 records are held. The oldest was claimed 1 min 1 s ago."]
    assert "1 record is held." in manage("show", "--held", "--operation", "checkout")[1]
    assert "No record" in manage("show", "--held", "--older-than", "2h")[1]


@pytest.mark.django_db
def test_a_store_that_is_down_hides_no_record_of_another(
    store: MemoryStore, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.IDEMPOTENCY = {
        "default": {"BACKEND": "django_idempotency.stores.database.DatabaseStore"},
        "shared": {},
        "memory": MEMORY,
    }

    def down(*arguments: Any, **more: Any) -> Any:
        raise StoreError("The store does not answer.")

    there = store_for("memory")
    assert isinstance(there, MemoryStore)
    lease = claim(there, "scope", "key")
    words = ["scope key"]
    assert manage("show", *words)[0] == 0
    both = keys.record_id("call", "scope", "both")
    won(store_for().claim(replace(asked("both"), record_id=both)))
    assert manage("show", "scope both")[1].count("Record ") == 1
    monkeypatch.setattr(store_for(), "browse", down)
    code, text = manage("show", *words)
    assert (code, str(lease.record_id) in text) == (0, True)
    assert "default: The store does not answer.\n" in text
    for one in ([], ["--store", "memory"]):
        code, text = manage("release", *words, "--yes", "--force", *one)
        assert (code, "Not every store could be searched" in text) == (int(not one), not one)
    monkeypatch.setattr(there, "browse", down)
    monkeypatch.setattr(store_for("shared"), "browse", down)
    assert manage("show", *words)[0] == 1


@pytest.mark.django_db
def test_an_erasure_that_ends_halfway_stands_in_the_log(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for key in "abc":
        store.release(claim(store, "scope", key))
    answers = iter([True, True])

    def erase(record_id: Any, *, force: bool) -> bool:
        if next(answers, None) is None:
            raise StoreError("The store is gone.")
        return True

    monkeypatch.setattr(store, "erase", erase)
    code, text = manage("release", "--erase", "--scope", "scope", "--yes", "--reason", "Asked to.")

    assert (code, text) == (1, "default: The store is gone. Run the command again.")
    assert "Erased 2 records of one scope by" in caplog.text
    assert "Reason: Asked to. (store default" in caplog.text


@pytest.mark.django_db
def test_a_character_that_the_output_cannot_have_is_an_escape(store: MemoryStore) -> None:
    idempotency.run(lambda lease: "caf\u00e9", key="key", scope="\u5b57")
    written = io.BytesIO()
    out = io.TextIOWrapper(written, encoding="latin-1", write_through=True)
    call_command("idempotency_show", "key", "--result", stdout=out)
    assert b"scope        \\u5b57\n" in written.getvalue()
    assert written.getvalue().endswith(b'"caf\xe9"\n')


@pytest.mark.django_db
def test_a_user_who_is_called_like_a_scope_takes_nothing_of_it_along(store: MemoryStore) -> None:
    """Users choose their names."""
    names = ("alice", "billing", "acme alice", "user:auth.user:0")
    alice, billing, tenant, colon = (User.objects.create_user(name) for name in names)
    scopes = [f"user:auth.user:{user.pk}" for user in (alice, billing, tenant, colon)]
    for scope in ("billing", "user:auth.user:0", f"tenant:4:acme:{scopes[0]}", *scopes[1:]):
        store.release(claim(store, scope, "key"))
    words = ["release", "--yes", "--erase", "--json", "--scope"]
    for meant, erased in (
        ("billing", scopes[1]),
        (f"tenant:4:acme:{scopes[0]}", f"tenant:4:acme:{scopes[0]}"),
    ):
        code, text = manage(*words, meant)
        assert (code, json.loads(text)["default"]["erased"]) == (0, {erased: 1})
    code, text = manage(*words, "acme alice")
    assert code == 2
    assert text == f"--scope may mean {scopes[2]} or tenant:4:acme:{scopes[0]}: give one of them."
    assert manage(*words, "user:auth.user:0")[0] == 0
    assert {record.scope for record in store.browse().records} == {"billing", *scopes[2:]}
