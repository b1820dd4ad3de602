"""An operator's decisions in the admin: what they take, what they are conditional on, the log."""

from __future__ import annotations

import html
import json
import re
import uuid
from datetime import timedelta
from unittest.mock import Mock

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission
from django.db import connection
from django.http import HttpResponse
from django.test import Client, override_settings
from django.urls import include, path
from django.views import View

from django_idempotency import codecs, journal, keys
from django_idempotency.admin.decisions import signed
from django_idempotency.claims import ClaimRequest
from django_idempotency.conf import stores
from django_idempotency.exceptions import LeaseLost, StoreError
from django_idempotency.http import IdempotencyViewMixin, idempotent
from django_idempotency.leases import Lease
from django_idempotency.operators.decisions import Seen
from django_idempotency.operators.facts import Reading
from django_idempotency.records import State

pytestmark = pytest.mark.django_db

LIST = "/admin/django_idempotency/idempotencyrecord/"
ALIASES = ["default", "memory"]


def claim(
    alias, key="key-1", kind="http", operation="POST shop:pay", state=State.IN_PROGRESS, **given
):
    record_id = keys.record_id(kind, "billing", key)
    lease = stores[alias].claim(ClaimRequest(record_id, "billing", key, operation, **given))
    assert isinstance(lease, Lease)
    if state is State.FAILED:
        stores[alias].fail(lease, "builtins.ValueError")
    if state is State.COMPLETED:
        stores[alias].complete(lease, packed({"id": 1}), retention=60)
    return lease


def packed(value):
    return codecs.pack(codecs.JSONCodec(), value, max_bytes=1000)


class Operator:
    """A user in the admin of one store, as a browser is: it sends what a form has."""

    def __init__(self, client, alias):
        self.client, self.alias, self.url = client, alias, f"{LIST}store/{alias}/decide/"

    def seen(self, *leases):
        """What the list has signed for these records."""
        url = LIST if self.alias == "default" else f"{LIST}store/{self.alias}/"
        rows = self.client.get(url).context["rows"]
        found = {row.record.record_id: row.seen for row in rows}
        return [found[lease.record_id] for lease in leases]

    def ask(self, action, seen, **more):
        return self.client.post(self.url, {"action": action, "seen": seen, **more})

    def decide(self, action, seen, reason="asked the bank", **more):
        data = {"action": action, "seen": seen, "reason": reason, "confirm": "x", **more}
        return self.client.post(self.url, data, follow=True)


@pytest.fixture(params=ALIASES)
def operator(request, admin_client):
    stores.reset()
    return Operator(admin_client, request.param)


def told(response):
    assert response.status_code == 200
    return html.unescape(response.content.decode())


def test_a_decision_takes_a_reason_and_stands_in_the_log_and_its_owner_is_refused(operator):
    lease, store = claim(operator.alias), stores[operator.alias]
    seen = operator.seen(lease)
    asked = told(operator.ask("release", seen))
    for part in ("The running attempt loses its lease", "End the running attempt", "key-1"):
        assert part in asked
    assert "This field is required" in told(operator.decide("release", seen, reason=" "))
    assert "An attempt is running" in told(operator.decide("release", seen))
    assert (store.get(lease.record_id).state, LogEntry.objects.count()) == (State.IN_PROGRESS, 0)
    content = told(operator.decide("release", seen, reason="<b>bank</b>", force="on"))
    assert "Released: 1 record." in content
    assert "with a running attempt: <b>bank</b>" in content  # the page of the record has the log
    assert store.get(lease.record_id).state is State.RELEASED
    with pytest.raises(LeaseLost):
        store.complete(lease, packed({}), retention=60)
    [entry] = LogEntry.objects.all()
    said = (entry.object_id, entry.user.username, entry.get_change_message())
    reason = f"Released in the store {operator.alias}, with a running attempt: <b>bank</b>"
    assert said == (str(lease.record_id), "admin", reason)
    assert "changed since you saw it" in told(operator.decide("expire", seen))


@pytest.mark.parametrize("change", ["taken over", "gone", "another state"])
def test_a_decision_is_conditional_on_what_the_operator_saw(operator, change):
    lease, store = claim(operator.alias, state=State.FAILED), stores[operator.alias]
    seen = operator.seen(lease)
    if change == "gone":
        stores.reset()  # the memory store forgets
        if operator.alias == "default":
            from django_idempotency.models import IdempotencyRecord

            IdempotencyRecord.objects.all().delete()
    else:
        owner = claim(operator.alias)
        if change == "another state":
            store.complete(owner, packed({}), retention=60)
    content = told(operator.ask("release", seen))
    assert ("gone from the store" if change == "gone" else "changed since you saw it") in content
    assert 'name="confirm"' not in content
    operator.decide("release", seen, force="on")
    assert LogEntry.objects.count() == 0


def test_nothing_is_decided_in_the_moment_between_reading_and_writing(operator, monkeypatch):
    lease, store = claim(operator.alias, state=State.FAILED), stores[operator.alias]
    seen, resolve = operator.seen(lease), store.resolve

    def taken_over_first(*given):
        claim(operator.alias)
        return resolve(*given)

    monkeypatch.setattr(store, "resolve", taken_over_first)
    assert "It has changed since you saw it" in told(operator.decide("release", seen))
    assert store.get(lease.record_id).state is not State.RELEASED
    assert LogEntry.objects.count() == 0

    def down(*given):
        raise StoreError("no answer")

    monkeypatch.setattr(store, "resolve", down)
    assert "no answer" in told(operator.decide("expire", operator.seen(lease), force="on"))
    # Rolled back in the database of the entry; elsewhere the answer alone may be lost.
    entries = [entry.get_change_message() for entry in LogEntry.objects.all()]
    unknown = "Expired in the store memory, with a running attempt: asked the bank"
    expected = f"{unknown} (It may have been done: look at it again.)"
    assert entries == ([] if operator.alias == "default" else [expected])


@pytest.mark.django_db(databases=["default", "other"])
def test_a_decision_with_a_lost_answer_on_another_database_than_the_log_stands_there(
    admin_client, monkeypatch
):
    stores.reset()
    operator, lease = Operator(admin_client, "other"), claim("other", state=State.FAILED)
    seen = operator.seen(lease)
    monkeypatch.setattr(stores["other"], "resolve", Mock(side_effect=StoreError("no answer")))
    assert "no answer" in told(operator.decide("release", seen))
    [entry] = LogEntry.objects.all()
    assert "It may have been done" in entry.get_change_message()


def test_several_are_released_or_expired_together(operator):
    leases = [claim(operator.alias, f"key-{n}", state=State.FAILED) for n in range(2)]
    completed = claim(operator.alias, "done", state=State.COMPLETED)
    store, seen = stores[operator.alias], operator.seen(*leases, completed)
    assert "can only be expired" in told(operator.ask("release", seen))
    content = told(operator.decide("release", seen))
    assert "Released: 2 records." in content
    assert f"Record {keys.short(completed.record_id)}: It is completed" in content
    expired = told(operator.decide("expire", operator.seen(*leases, completed)))
    assert "Expired: 3 records." in expired
    assert store.get(completed.record_id).expired
    assert LogEntry.objects.count() == 5
    assert "Decide about one record at a time" in told(operator.decide("complete", seen))


def test_a_state_in_an_operators_sentence_is_translated(admin_client, settings):
    settings.LANGUAGE_CODE = "de"
    operator, completed = Operator(admin_client, "default"), claim("default", state=State.COMPLETED)
    content = told(operator.ask("release", operator.seen(completed)))
    assert "Er ist abgeschlossen und kann nur noch ablaufen." in content


def test_of_several_the_entry_of_the_one_that_ran_says_so(operator):
    running = claim(operator.alias, "running")
    ended = claim(operator.alias, "ended", state=State.FAILED)
    decided = operator.decide("release", operator.seen(running, ended), force="on")
    assert "Released: 2 records." in told(decided)
    said = {entry.object_id: entry.get_change_message() for entry in LogEntry.objects.all()}
    assert said == {
        str(running.record_id): f"Released in the store {operator.alias}, with a running attempt: "
        "asked the bank",
        str(ended.record_id): f"Released in the store {operator.alias}: asked the bank",
    }


def test_an_expired_record_leads_to_no_record_of_another_store(operator):
    """Where each has one of this id, one's page after a decision about the other misleads."""
    leases = {alias: claim(alias, state=State.FAILED) for alias in ALIASES}
    seen, store = operator.seen(leases[operator.alias]), stores[operator.alias]
    expired = operator.decide("expire", seen)
    assert "Expired: 1 record." in told(expired)
    [(led, _)] = expired.redirect_chain
    assert led == (LIST if operator.alias == "default" else f"{LIST}store/memory/")
    if operator.alias == "memory":
        assert store.erase(leases["memory"].record_id)
        deep = operator.client.get(f"{led}{leases['memory'].record_id}/", follow=True)
        assert "memory has no record" in told(deep)
        assert deep.redirect_chain == [(led, 302)]


def test_a_form_of_one_store_decides_about_no_other(operator):
    """Though what it says that the operator saw is true of the other's record, too."""
    other = "memory" if operator.alias == "default" else "default"
    lease = claim(other, state=State.FAILED)
    seen = signed(Seen.of(stores[other].get(lease.record_id)), operator.alias)
    assert 'class="error"' in told(Operator(operator.client, other).decide("release", [seen]))
    assert stores[other].get(lease.record_id).state is State.FAILED
    assert LogEntry.objects.count() == 0


def test_an_entry_stands_whatever_becomes_of_the_next_decision(operator, monkeypatch):
    """With ATOMIC_REQUESTS, too: Redis would keep the decision, and the log would forget it."""
    leases = [claim(operator.alias, f"key-{n}", state=State.FAILED) for n in range(2)]
    seen, resolve = operator.seen(*leases), stores[operator.alias].resolve
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)

    def fail_the_second(*given):
        monkeypatch.setattr(stores[operator.alias], "resolve", Mock(side_effect=ZeroDivisionError))
        return resolve(*given)

    monkeypatch.setattr(stores[operator.alias], "resolve", fail_the_second)
    with pytest.raises(ZeroDivisionError):
        operator.decide("release", seen)
    [entry] = LogEntry.objects.all()
    assert entry.object_id == str(leases[0].record_id)
    assert stores[operator.alias].get(leases[0].record_id).state is State.RELEASED


ANSWER = {"status": "201", "content_type": "application/json", "body": '{"paid": true}'}


@pytest.mark.parametrize(
    ("kind", "given", "refused"),
    [
        ("http", ANSWER, {**ANSWER, "body": "{"}),
        ("http", ANSWER, {**ANSWER, "status": "99"}),
        ("http", ANSWER, {**ANSWER, "content_type": "text/plain\x00"}),
        ("call", {"value": '{"paid": true}'}, {"value": "{"}),
        ("call", {"value": "null"}, {"value": ""}),
    ],
)
def test_a_record_is_completed_with_what_duplicates_are_to_get(operator, kind, given, refused):
    lease = claim(operator.alias, kind=kind, operation="charge", state=State.FAILED)
    seen = operator.seen(lease)
    assert "Each duplicate gets the given result" in told(operator.ask("complete", seen))
    assert 'class="errorlist"' in told(operator.decide("complete", seen, **refused))
    assert "Completed: 1 record." in told(operator.decide("complete", seen, **given))
    record = stores[operator.alias].get(lease.record_id)
    answer = Reading(stores[operator.alias], record).answer
    wanted = given.get("body", given.get("value"))
    assert json.loads(answer.text) == json.loads(wanted)
    assert answer.status == (201 if kind == "http" else None)


def test_an_answer_is_kept_in_the_charset_that_it_names(operator):
    lease = claim(operator.alias, state=State.FAILED)
    seen = operator.seen(lease)
    given = {"status": "200", "body": "für 5 €", "content_type": "text/plain; charset="}
    for charset, why in (("latin-1", "codec can't encode"), ("nonesuch", "unknown encoding")):
        refused = {**given, "content_type": f"text/plain; charset={charset}"}
        assert why in told(operator.decide("complete", seen, **refused))
    assert LogEntry.objects.count() == 0
    given["content_type"] += "cp1252"
    assert "Completed: 1 record." in told(operator.decide("complete", seen, **given))
    record = stores[operator.alias].get(lease.record_id)
    assert Reading(stores[operator.alias], record).answer.body == given["body"].encode("cp1252")


def test_what_cannot_be_completed_says_why(operator):
    task = claim(operator.alias, kind="task", operation="no.such.task", state=State.FAILED)
    content = told(operator.decide("complete", operator.seen(task), value="1"))
    assert "no guarded task with the operation no.such.task" in content
    long = ClaimRequest(uuid.UUID(int=8), "s" * 255, "long", "charge")
    lease = stores[operator.alias].claim(long)
    assert "not stored whole" in told(operator.ask("complete", operator.seen(lease)))
    assert LogEntry.objects.count() == 0


def test_a_decision_takes_the_permission_a_post_and_a_signed_form(operator, django_user_model):
    lease = claim(operator.alias, state=State.FAILED)
    [seen] = operator.seen(lease)
    other = "memory" if operator.alias == "default" else "default"
    led = operator.client.get(operator.url).url  # as a login does that comes in between
    assert led == (LIST if operator.alias == "default" else f"{LIST}store/memory/")
    for action, forged in (("release", seen + "x"), ("delete", seen), ("release", []), ("", seen)):
        assert 'class="error"' in told(operator.decide(action, forged))
    assert 'class="error"' in told(Operator(operator.client, other).decide("release", seen))
    clerk = django_user_model.objects.create_user("clerk", is_staff=True)
    viewing, resolving = (
        Permission.objects.get(codename=name)
        for name in ("view_idempotencyrecord", "resolve_record")
    )
    client = Client()
    client.force_login(clerk)
    for permissions, status in (([viewing], 403), ([resolving], 403), ([viewing, resolving], 200)):
        clerk.user_permissions.set(permissions)
        assert Operator(client, operator.alias).ask("release", seen).status_code == status
    assert "key-1" not in told(Operator(client, operator.alias).ask("release", seen))
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(clerk)
    assert Operator(strict, operator.alias).decide("release", seen).status_code == 403
    assert stores[operator.alias].get(lease.record_id).state is State.FAILED


# The calls of which nobody knows whether they were made.

HOUR = timedelta(hours=1)
HOSTILE = "<script>alert(1)</script>"


def half_done(alias, *calls, key="key-1", state=State.FAILED, **given):
    """A record whose step is noted, and whose calls are uncertain."""
    lease, store = claim(alias, key, **given), stores[alias]
    for entry in (journal.entry("order", packed(17)), *map(journal.intent, calls)):
        store.note(lease, entry, duration=given.get("lease", HOUR), held=bool(calls))
    if state is State.FAILED:
        store.fail(lease, "builtins.TimeoutError", held=bool(calls))
    return lease


def page_of(operator, lease):
    url = f"{LIST}store/{operator.alias}/{lease.record_id}/"
    return told(operator.client.get(url))


def buttons(content):
    """What the buttons of a page would do."""
    return re.findall(r'name="action" value="(\w+)"', content)


@pytest.mark.parametrize(
    ("action", "given", "said", "payload"),
    [
        ("done", {"value": '{"id": "ch_1"}'}, "Resumed (charge was done)", {"id": "ch_1"}),
        ("not_done", {}, "Resumed (charge was not done)", None),
    ],
)
def test_S18_an_operator_says_of_a_call_whether_it_was_made(
    operator, action, given, said, payload, settings
):
    alias = {**settings.IDEMPOTENCY[operator.alias], "ENCRYPTION_KEYS": ["A" * 43]}
    settings.IDEMPOTENCY = {**settings.IDEMPOTENCY, operator.alias: alias}
    lease = half_done(operator.alias, "charge", "mail")
    store, seen = stores[operator.alias], operator.seen(lease)
    content = page_of(operator, lease)
    assert buttons(content) == [
        "release",
        "complete",
        "expire",
        "resume",
        *2 * ["done", "not_done"],
    ]
    assert content.count('aria-label="charge"') == 1
    asked = told(operator.ask(action, seen, step="charge"))
    assert "Was the work done?" not in asked
    for part in ("The call charge counts as", "record does not expire: mail", 'value="charge"'):
        assert part in asked
    assert ("Result, as JSON" in asked) is (action == "done")
    if given:
        for wrong in ("{", '{"#uuid": 1}', json.dumps("x" * 70_000)):
            refused = operator.decide(action, seen, step="charge", value=wrong)
            assert 'class="errorlist"' in told(refused)
    assert store.get(lease.record_id).epoch == lease.fencing_token

    content = told(operator.decide(action, seen, step="charge", **given))

    assert f"{said}: 1 record." in content
    [entry] = LogEntry.objects.all()
    assert entry.get_change_message() == f"{said} in the store {operator.alias}: asked the bank"
    record = store.get(lease.record_id)
    assert (record.state, record.held, record.epoch) == (
        State.FAILED,
        True,
        lease.fencing_token + 1,
    )
    _results, uncertain = journal.read(record.steps)
    assert uncertain == ("mail",)
    assert b"ch_1" not in record.steps
    if payload is not None:
        answer = Reading(store, record).steps.noted["charge"]
        assert json.loads(answer.text) == payload
    assert "changed since you saw it" in told(operator.ask("done", seen, step="mail"))


def test_a_record_with_steps_goes_on_and_one_without_is_not_asked_to(operator):
    lease, plain = half_done(operator.alias), claim(operator.alias, "plain", state=State.FAILED)
    live = half_done(operator.alias, "charge", key="live", state=State.IN_PROGRESS)
    stale = half_done(
        operator.alias, key="stale", state=State.IN_PROGRESS, lease=A_MOMENT, operation="POST none"
    )
    assert buttons(page_of(operator, lease)) == ["release", "complete", "expire", "resume"]
    assert buttons(page_of(operator, plain)) == ["release", "complete", "expire"]
    assert buttons(page_of(operator, live)) == ["release", "complete", "expire"]
    content = page_of(operator, stale)
    assert buttons(content) == ["complete", "release", "resume", "expire"]
    assert "It was half done: the same request goes on behind its steps." in content
    seen = operator.seen(lease)
    assert "skips the steps that are done" in told(operator.ask("resume", seen))
    assert "Resumed: 1 record." in told(operator.decide("resume", seen))
    record = stores[operator.alias].get(lease.record_id)
    assert [*journal.read(record.steps).results] == ["order"]
    assert record.expires_at is not None


@pytest.mark.parametrize("step", ["order", "", HOSTILE, "x\x00", None])
def test_a_call_that_is_not_uncertain_is_not_decided_about(operator, step):
    lease = half_done(operator.alias, "charge")
    seen, given = operator.seen(lease), {} if step is None else {"step": step}
    asked = operator.ask("not_done", seen, **given)
    assert "It has no uncertain call" in told(asked)
    assert 'name="confirm"' not in told(asked)
    assert HOSTILE not in asked.content.decode()
    assert "It has no uncertain call" in told(operator.decide("not_done", seen, **given))
    assert LogEntry.objects.count() == 0
    both = [*seen, *operator.seen(half_done(operator.alias, "charge", key="key-2"))]
    about = operator.decide("not_done", both, step="charge")
    assert "Decide about one record at a time." in told(about)


def test_S18_force_ends_an_attempt_that_notes_on_after_it_was_shown(operator):
    live = half_done(operator.alias, "charge", state=State.IN_PROGRESS)
    store, seen = stores[operator.alias], operator.seen(live)
    store.note(live, journal.intent("mail"), duration=HOUR, held=True)
    assert "What its steps do until then is forgotten" in told(operator.ask("release", seen))
    assert "It has changed since" in told(operator.decide("not_done", seen, step="charge"))
    assert "An attempt is running" in told(operator.decide("release", seen))
    operator.decide("release", seen, force="on")
    assert store.get(live.record_id).state is State.RELEASED


def test_who_may_not_decide_sees_no_button_of_a_call(operator, django_user_model):
    lease = half_done(operator.alias, "charge")
    clerk = django_user_model.objects.create_user("clerk", is_staff=True)
    clerk.user_permissions.set(Permission.objects.filter(codename="view_idempotencyrecord"))
    operator.client.force_login(clerk)
    content = page_of(operator, lease)
    assert ("uncertain</span>" in content, buttons(content)) == (True, [])


# What helps to decide.


class Computed(IdempotencyViewMixin, View):
    """Its mode is another for each request."""

    @property
    def idempotency_transaction(self):
        return self.request.headers["X-Mode"]

    def post(self, request):
        return HttpResponse()


def view(request):
    return HttpResponse()


urlpatterns = [
    path("joined/", idempotent(view), name="joined"),
    path("separate/", idempotent(transaction="separate")(view), name="separate"),
    path("memory/", idempotent(store="memory")(view), name="memory"),
    path("computed/", Computed.as_view(), name="computed"),
    path("", include("tests.app.urls")),
]
NONE = "The mode is joined: nothing that the attempt wrote in its transaction is committed."
SOME = "The mode is separate: rows of the attempt may be in the database."
A_MOMENT = timedelta(milliseconds=1)


@override_settings(ROOT_URLCONF=__name__)
@pytest.mark.parametrize(
    ("alias", "name", "said"),
    [
        ("default", "joined", NONE),
        ("default", "separate", SOME),
        ("memory", "memory", SOME),
        ("memory", "joined", ""),  # of another store: the record is older than the policy
        ("default", "computed", ""),
        ("default", "nonesuch", ""),
    ],
)
def test_pages_of_a_stale_record_ask_whether_the_work_was_done(admin_client, alias, name, said):
    stores.reset()
    operator = Operator(admin_client, alias)
    lease = claim(alias, operation=f"POST {name}", lease=A_MOMENT)
    shown = told(admin_client.get(f"{LIST}store/{alias}/{lease.record_id}/"))
    decided = told(operator.ask("complete", operator.seen(lease)))
    for content in (shown, decided):
        assert "Was the work done?" in content
        assert "It was done: each duplicate gets the result that you give." in content
        assert "It was not done: the next duplicate runs it." in content
        assert (said in content, "The mode is" in content) == (True, said != "")
        assert f"POST {name}" in content
        assert re.search(r"claimed \d+ s ago, 1 attempt\b", content)
    assert (f"/{name}/\n  store" in shown) is (said != "" or name == "computed")


def test_the_buttons_of_a_question_lead_to_the_other_decision(operator):
    lease = claim(operator.alias, lease=A_MOMENT)
    seen = operator.seen(lease)
    button = 'class="button {0}" name="action" value="{0}"'
    shown = told(operator.client.get(f"{LIST}store/{operator.alias}/{lease.record_id}/"))
    for content, names in (
        (shown, ("complete", "release", "expire")),
        (told(operator.ask("complete", seen)), ("release",)),
        (told(operator.ask("release", seen)), ("complete",)),
        (told(operator.ask("expire", seen)), ("complete", "release")),
    ):
        found = [it for it in ("complete", "release", "expire") if button.format(it) in content]
        assert (found, content.count('name="action" value=')) == (
            [*names],
            len(names) + (content is not shown),  # the hidden field of the form itself
        )


def test_no_page_asks_about_work_that_runs_is_done_or_may_run_again(operator):
    running, done = claim(operator.alias), claim(operator.alias, "done", state=State.COMPLETED)
    several = [claim(operator.alias, f"key {n}", lease=A_MOMENT) for n in range(2)]
    for action, leases in (("release", [running]), ("expire", [done]), ("release", several)):
        content = told(operator.ask(action, operator.seen(*leases)))
        assert 'name="confirm"' in content
        assert "Was the work done?" not in content
