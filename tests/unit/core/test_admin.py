"""The admin: every store, what users may see, and hostile keys that stay text (R80)."""

from __future__ import annotations

import html
import re
import tracemalloc
import uuid
from dataclasses import replace
from datetime import datetime, timedelta
from datetime import timezone as zones

import pytest
from django.contrib.admin import AdminSite
from django.contrib.auth.models import Permission
from django.core.cache import cache
from django.db import connection
from django.http import HttpResponse, JsonResponse
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from django.urls import include, path, reverse
from django.utils import timezone, translation

from django_idempotency import api, codecs, journal, keys
from django_idempotency.admin import IdempotencyRecordAdmin, overviews
from django_idempotency.admin.records import body_of
from django_idempotency.claims import ClaimRequest
from django_idempotency.conf import stores
from django_idempotency.contrib.celery import deliveries as celery_deliveries
from django_idempotency.exceptions import StoreError
from django_idempotency.http import scopes
from django_idempotency.http.snapshot import SnapshotCodec
from django_idempotency.models import IdempotencyRecord
from django_idempotency.operators import search
from django_idempotency.operators.facts import Reading
from django_idempotency.stores.memory import MemoryStore

pytestmark = pytest.mark.django_db(databases=["default", "other"])

LIST = "/admin/django_idempotency/idempotencyrecord/"
MEMORY = f"{LIST}store/memory/"
State = IdempotencyRecord.State
HOSTILE = ["<script>alert(1)</script>", "\"><img src=x onerror='alert(1)'>", "{{7*7}}{% debug %}"]
HOSTILE += ["';--", "\\" * 255, "%00%0d%0aX: 1", "\u202egnp.exe"]
SEEING = ("view_idempotencyrecord", "view_key")
A_MOMENT = timedelta(milliseconds=1)


TOKEN = uuid.UUID("beefbeef-beef-4eef-8eef-beefbeefbeef")


def unsaved(number=1, *, state=State.COMPLETED, lease=None, **fields):
    now = timezone.now()
    ours = {"id": uuid.UUID(int=number), "scope": "scope-of-it", "key": f"key-{number}"}
    ours |= {"operation": "POST shop:pay", "fingerprint": b"\x01" * 32, "state": state}
    ours |= {"epoch": 5, "token": TOKEN, "created_at": now, "updated_at": now}
    ours |= {"lease_until": None if lease is None else now + timedelta(seconds=lease)}
    ours |= {"expires_at": now + timedelta(hours=1)}
    return IdempotencyRecord(**{**ours, **fields})


def add(number=1, **fields):
    record = unsaved(number, **fields)
    record.save(force_insert=True)
    return record


def answered(response):
    """What is kept of a view's answer."""
    return codecs.pack(SnapshotCodec(), response, max_bytes=1_000_000)


def page(record):
    return f"{LIST}{record.pk}/change/"


def text(response):
    assert response.status_code == 200
    return response.content.decode()


@pytest.fixture
def listed(admin_client):
    """``listed(query)``: the numbers of the records that the list shows; a string is searched."""

    def listed(query=""):
        asked = {"q": query} if isinstance(query, str) else query
        response = admin_client.get(LIST, asked)
        assert response.status_code == 200
        return {row.record.record_id.int for row in response.context["rows"]}

    return listed


@pytest.fixture
def clerk(client, django_user_model):
    """``clerk(permission, …)``: a user who has these permissions, and is logged in."""
    user = django_user_model.objects.create_user("clerk", is_staff=True)
    client.force_login(user)

    def permit(*names):
        user.user_permissions.set(Permission.objects.filter(codename__in=names))

    return permit


@pytest.fixture
def memory():
    """The memory store, with a record of its own."""
    store = stores["memory"]
    request = ClaimRequest(keys.record_id("call", "billing", "m-1"), "billing", "m-1", "charge")
    store.claim(request)
    return store


# The list.


def test_R71_the_list_shows_every_record_and_filters_them(admin_client, listed, admin_user):
    long_ago = datetime(2026, 3, 4, 5, 6, 7, tzinfo=zones.utc)
    add(1, state=State.IN_PROGRESS, lease=3600, operation="POST shop:refund")
    add(2, state=State.IN_PROGRESS, lease=-60, expires_at=None)
    add(3, lease=-60, scope=scopes.of_user(admin_user))
    add(4, state=State.FAILED, created_at=long_ago)
    content, four = text(admin_client.get(LIST)), str(uuid.UUID(int=4))
    parts = ("key-4", "scope-of-it", "POST shop:pay", "failed", "2026-03-04 05:06:07", four)
    assert [part for part in parts if part not in content] == []
    cells = " ".join(re.findall(r'field-lease">(.*?)<', content))
    assert sorted(re.sub(r"3\d\d\d s", "left", cells).split()) == ["left", "stale"]
    for query, found in [
        ({}, {1, 2, 3, 4}),
        ({"state": "stale"}, {2}),
        ({"state": "running"}, {1}),
        ({"state": "held"}, {2}),
        ({"state": "held", "q": four}, set()),
        ({"state": "IN_PROGRESS"}, {1, 2}),
        ({"state": "FAILED", "q": four}, {4}),
        ({"state": "COMPLETED", "q": four}, set()),
        ({"operation": "POST shop:refund"}, {1}),
        ({"q": "POST shop:refund"}, {1}),
        ({"scope": "admin"}, {3}),
        ({"scope": "scope-of-it", "age": "over-1d"}, {4}),
        ({"age": "10m"}, {1, 2, 3}),
        ({"q": "admin"}, {3}),
        ({"q": "admin", "state": "FAILED"}, set()),
        ({"q": "admin", "operation": "POST shop:pay"}, {3}),
        ({"q": "admin", "scope": "scope-of-it"}, set()),
        ({"q": "scope-of-it"}, set()),  # which is of the filter by scope
        ({"state": "nonsense"}, set()),
    ]:
        assert listed(query) == found, query
    assert "Select a valid choice" in text(admin_client.get(LIST, {"state": "nonsense"}))


def test_a_filter_looks_at_the_newest_records_says_so_and_goes_on_from_there(
    admin_client, listed, monkeypatch
):
    monkeypatch.setattr(search, "NEWEST", 3)
    add(99, state=State.IN_PROGRESS, lease=-60, expires_at=None)
    for number in range(1, 9):
        failed = State.FAILED if number in (2, 6) else State.COMPLETED
        add(number, state=failed, expires_at=timezone.now() + timedelta(hours=number))
    found, url = [], f"{LIST}?state=FAILED"
    while url is not None:
        response = admin_client.get(url)
        assert "Looked for among 3 records at most" in text(response)
        found.append([row.record.record_id.int for row in response.context["rows"]])
        url = response.context["next"] and LIST + response.context["next"]
    assert found == [[], [6], [2]]
    for cursor in ("x", "[1]", f'["9999-12-31T23:59:59-12:00", "{"0" * 32}"]'):
        assert "Begin anew" in text(admin_client.get(LIST, {"cursor": cursor}))
    said = "Put the scope, or the user's name, before the key to search them all."
    for key, numbers in (("key-8", {8}), ("key-1", set())):
        assert listed(key) == numbers
        assert (said in html.unescape(text(admin_client.get(LIST, {"q": key})))) is (not numbers)


def test_a_name_finds_nobodys_records_for_who_may_not_see_whose_they_are(
    client, clerk, django_user_model
):
    jane = scopes.of_user(django_user_model.objects.create_user("jane"))
    add(1, scope=jane)
    add(2, scope=scopes.of_tenant("acme", jane))
    for permissions, number in ((SEEING[:1], 0), (SEEING, 1)):
        clerk(*permissions)
        for name in ("jane", "acme jane"):
            response = client.get(LIST, {"q": name})
            assert len(response.context["rows"]) == number
            assert ("So is a user." in text(response)) is (number == 1)


def test_pages_of_the_list_have_each_record_once(admin_client, monkeypatch):
    monkeypatch.setattr("django_idempotency.admin.lists._PAGE", 4)
    together = timezone.now() + timedelta(hours=3)
    for number in range(1, 12):
        add(number, expires_at=None if number > 9 else together)
    ids = [uuid.UUID(int=number) for number in range(20, 27)]
    for record_id in ids:  # at times of the store's own
        stores["default"].claim(ClaimRequest(record_id, "billing", str(record_id), "charge"))
    found, url = [], LIST
    while url is not None:
        response = admin_client.get(url)
        found.append([row.record.record_id.int for row in response.context["rows"]])
        url = response.context["next"] and LIST + response.context["next"]
    assert [len(numbers) for numbers in found] == [4, 4, 4, 4, 2]
    in_order = [number for numbers in found for number in numbers]
    assert (in_order[:2], in_order[-9:]) == ([11, 10], [9, 8, 7, 6, 5, 4, 3, 2, 1])
    assert sorted(in_order[2:9]) == list(range(20, 27))


def test_the_list_reads_no_results_and_counts_nothing(admin_client):
    record, quote = add(1, result=b"x" * 1000), connection.ops.quote_name
    for query, most in (({}, 8), ({"q": str(record.pk)}, 10), ({"q": "acme alice key 1"}, 24)):
        with CaptureQueriesContext(connection) as captured:
            admin_client.get(LIST, query)
        assert sum("SAVEPOINT" not in each["sql"] for each in captured) <= most
        asked = [each["sql"] for each in captured if "idempotency_record" in each["sql"]]
        assert not any(quote("result") in sql for sql in asked)
        assert not any("COUNT(" in sql or "LIKE" in sql.upper() for sql in asked)


@pytest.mark.parametrize("indexed", ["key", "operation"])
def test_an_index_of_the_project_searches_all(admin_client, listed, monkeypatch, indexed):
    monkeypatch.setattr(search, "NEWEST", 1)
    for number in (1, 2, 3):
        lasts = timezone.now() + timedelta(hours=number)
        add(number, operation=f"operation-{number}", expires_at=lasts)
    asked = {"q": "key-1"} if indexed == "key" else {"operation": "operation-1"}
    assert listed(asked) == set()
    monkeypatch.setattr(stores["default"], "has_index", indexed.__eq__)
    assert listed(asked) == {1}


def test_kinds_of_adapters_are_those_whose_ids_the_search_computes():
    assert ("http", celery_deliveries._KIND, api._KIND) == keys.KINDS


# Other stores.


def test_every_store_has_a_list_and_pages_of_its_own(admin_client, memory):
    add(1, key="in the database")
    content = text(admin_client.get(MEMORY))
    assert "m-1" in content
    assert "in the database" not in content
    for alias, url in (("default", LIST), ("other", f"{LIST}store/other/"), ("memory", MEMORY)):
        assert f'href="{url}"' in content, alias
    assert "1 record." in content
    record_id = keys.record_id("call", "billing", "m-1")
    for query in ("m-1", "billing m-1", str(record_id), str(record_id)[:12], "charge"):
        response = admin_client.get(MEMORY, {"q": query})
        assert [row.record.record_id for row in response.context["rows"]] == [record_id], query
    assert "those that the store gives in 5 seconds" in text(
        admin_client.get(MEMORY, {"state": "FAILED"})
    )
    assert "m-1" in text(admin_client.get(f"{MEMORY}{record_id}/"))
    led = admin_client.get(f"{LIST}{record_id}/change/")  # as an entry of the admin log does
    assert led.url == f"{MEMORY}{record_id}/"
    assert "this is the one of memory" in text(admin_client.get(led.url))
    assert admin_client.get(f"{LIST}store/nowhere/").status_code == 404
    assert admin_client.get(f"{MEMORY}{uuid.UUID(int=9)}/").url == MEMORY


class Down(MemoryStore):
    """A store that cannot be reached, and whose error has what a stranger wrote."""

    def get(self, record_id):
        raise StoreError("connection refused <b>by host</b>")

    browse = get


def test_a_store_that_is_down_shows_its_error_and_the_others_work(admin_client, settings):
    down = {"BACKEND": f"{__name__}.Down"}
    wrong = {"BACKEND": "no.such.Store"}
    settings.IDEMPOTENCY = {**settings.IDEMPOTENCY, "down": down, "wrong": wrong}
    Down.browse = lambda self, **asked: self.get(None)
    record = add(1)
    for alias, said in (("down", "refused &lt;b&gt;by host"), ("wrong", "cannot be imported")):
        for rest in ("", "?q=key", "?state=stale", "overview/", f"{record.pk}/"):
            assert said in text(admin_client.get(f"{LIST}store/{alias}/{rest}")), (alias, rest)
    for url in (LIST, page(record), f"{MEMORY}overview/"):
        assert "errornote" not in text(admin_client.get(url))
    assert admin_client.get(f"{LIST}{uuid.UUID(int=9)}/change/").url == LIST


site = AdminSite(name="office")
site.register(IdempotencyRecord, IdempotencyRecordAdmin)
urlpatterns = [path("office/", site.urls), path("", include("tests.app.urls"))]


@override_settings(ROOT_URLCONF=__name__)
def test_a_site_of_the_projects_own_leads_nowhere_else(admin_client, memory):
    add(1)
    base = "/office/django_idempotency/idempotencyrecord/"
    record_id = keys.record_id("call", "billing", "m-1")
    for url in ("", f"{uuid.UUID(int=1)}/change/", "store/memory/", "store/memory/overview/"):
        assert 'href="/admin/' not in text(admin_client.get(base + url))
    assert f"{base}store/memory/{record_id}/" in text(admin_client.get(f"{base}store/memory/"))


def test_the_overview_counts_what_it_looked_at(admin_client, monkeypatch):
    now = timezone.now()
    add(1, state=State.IN_PROGRESS, lease=60, updated_at=now - timedelta(seconds=90))
    add(2, state=State.IN_PROGRESS, lease=60)
    add(3, state=State.IN_PROGRESS, lease=-60, created_at=now - timedelta(hours=5))
    add(4, expires_at=now - timedelta(hours=1))
    for number in range(5, 26):
        add(number, operation=f"{number} <b>", state=State.FAILED)
    response = admin_client.get(f"{LIST}store/default/overview/")
    overview, content = response.context["overview"], text(response)
    assert [number for _, _, number in overview["states"]] == [3, 1, 21, 0]
    assert (overview["stale"], overview["oldest"].record_id.int) == (1, 1)
    assert (overview["held"], overview["oldest_held"]) == (0, None)
    assert (overview["looked"], overview["more"], overview["backlog"]) == (25, False, 1)
    assert overview["operations"][0] == ("POST shop:pay", [3, 1, 0, 0])
    assert (len(overview["operations"]), overview["others"]) == (20, [0, 0, 2, 0])
    assert "<b>" not in content
    assert re.search(r"1 min \d+ s</bdi></strong>\s+oldest lease", content)
    monkeypatch.setattr(overviews, "_NEWEST", 2)
    content = text(admin_client.get(f"{LIST}store/default/overview/"))
    assert "Of the 2 newest records; the store has more." in content
    assert "stale leases: count them in all records" in content


def test_stale_leases_are_those_of_the_whole_store(admin_client, monkeypatch, memory):
    """The alert tells of them when newer records have come, so no number of a window is shown."""
    monkeypatch.setattr(overviews, "_NEWEST", 2)
    monkeypatch.setattr(search, "NEWEST", 2)
    for number in range(1, 4):
        add(number, state=State.IN_PROGRESS, lease=-60, expires_at=timezone.now())
    for number in range(4, 8):
        add(number)
    overview = f"{LIST}store/default/overview/"
    cache.clear()
    assert admin_client.get(overview).context["overview"]["stale"] is None
    content = text(admin_client.get(f"{overview}?count=waiting"))
    assert "oldest stale" not in content
    assert re.search(r"<strong>3</strong> stale leases, counted 0\sminutes ago", content)
    response = admin_client.get(LIST, {"state": "stale"})
    assert len(response.context["rows"]) == 3
    IdempotencyRecord.objects.filter(state=State.IN_PROGRESS).delete()
    for url in (overview, f"{overview}?count=waiting"):  # they are counted once a minute at most
        assert admin_client.get(url).context["overview"]["stale"] == 3
    cache.clear()
    assert "All records of the store are looked at, for 5 seconds a page." in text(response)


def held_of(client, url, query=""):
    """What an overview says of held records, and the number of the oldest one."""
    found = client.get(f"{url}{query}").context["overview"]
    oldest = found["oldest_held"]
    return found["held"], None if oldest is None else oldest.record_id.int


def test_S13_held_records_are_those_of_the_whole_table_but_of_running_attempts(
    admin_client, listed, monkeypatch
):
    """The index gives them first, so that a look at the table finds all of them."""
    overview, now = f"{LIST}store/default/overview/", timezone.now()
    cache.clear()
    add(50, state=State.IN_PROGRESS, lease=60, expires_at=None)
    assert held_of(admin_client, overview) == (0, None)
    for number, hours in ((1, 30), (2, 49), (3, 1)):
        created = now - timedelta(hours=hours)
        add(number, state=State.FAILED, expires_at=None, created_at=created)
    add(4, state=State.IN_PROGRESS, lease=-60, expires_at=None)
    for number in range(60, 65):
        add(number)
    assert held_of(admin_client, overview) == (4, 2)
    content = text(admin_client.get(overview))
    assert re.search(r"state=held\"><strong>4</strong> held records", content)
    assert re.search(r"0002/change/\">.*2 d 1 h</bdi></strong> oldest held record", content)
    assert listed({"state": "held"}) == {1, 2, 3, 4}
    monkeypatch.setattr(search, "NEWEST", 6)
    assert held_of(admin_client, overview) == (4, 2)  # the sixth does expire
    assert listed({"state": "held"}) == {1, 2, 3, 4}
    monkeypatch.setattr(search, "NEWEST", 3)
    assert held_of(admin_client, overview) == (None, None)
    assert "held records: count them in all records" in text(admin_client.get(overview))
    assert held_of(admin_client, overview, "?count=waiting") == (4, 2)
    IdempotencyRecord.objects.filter(pk=uuid.UUID(int=2)).delete()
    assert held_of(admin_client, overview) == (4, None)  # they are counted once a minute at most
    cache.clear()
    assert held_of(admin_client, overview, "?count=waiting") == (3, 1)


def test_S13_held_records_of_a_store_without_an_order_are_counted_when_they_are_asked_for(
    admin_client, monkeypatch, memory
):
    overview = f"{LIST}store/memory/overview/"
    cache.clear()
    for number in range(2, 6):
        held = "refuse" if number < 4 else "take_over"
        request = ClaimRequest(
            uuid.UUID(int=number), "billing", f"m-{number}", "charge", on_stale=held, lease=A_MOMENT
        )
        memory.claim(request)
    assert held_of(admin_client, overview) == (2, 2)
    monkeypatch.setattr(search, "NEWEST", 2)
    looks, browse = [], memory.browse
    monkeypatch.setattr(memory, "browse", lambda **asked: looks.append(asked) or browse(**asked))
    assert held_of(admin_client, overview) == (None, None)
    assert len(looks) == 1
    assert held_of(admin_client, overview, "?count=waiting") == (2, 2)
    assert (len(looks), looks[-1]["seconds"]) == (3, 5)  # stale and held ones by one more
    assert held_of(admin_client, overview, "?count=waiting") == (2, 2)
    assert len(looks) == 4
    cache.clear()


def test_the_overview_shows_ages_of_leases_that_there_are(admin_client):
    add(1)
    overview, now = f"{LIST}store/default/overview/", timezone.now()
    assert "oldest" not in text(admin_client.get(overview))
    for number, minutes in ((2, 5), (3, 7), (4, 3)):
        claimed = now - timedelta(minutes=minutes)
        add(number, state=State.IN_PROGRESS, lease=-60, updated_at=claimed)
    content = text(admin_client.get(overview))
    assert re.search(r"0003/change/\">.*7 min \d+ s</bdi></strong> oldest stale lease", content)
    assert "oldest lease" not in content


def test_numbers_have_the_separators_of_the_language(admin_client, settings):
    add(0, attempts=1234, result=b"x" * 1500)
    IdempotencyRecord.objects.bulk_create(unsaved(number) for number in range(1, 1201))
    overview, one = f"{LIST}store/default/overview/", IdempotencyRecord(pk=uuid.UUID(int=0))
    for language, dot in (("en", ","), ("de", ".")):
        settings.LANGUAGE_CODE = language
        content = text(admin_client.get(overview))
        assert f"<strong>1{dot}201</strong>" in content  # of the state
        assert content.count(f"1{dot}201") == 3  # of all, and of the operation
        assert f"10{dot}000 " in text(admin_client.get(LIST, {"state": "FAILED"}))
        content = text(admin_client.get(page(one)))
        assert f"<dd>1{dot}234</dd>" in content
        assert re.search(rf"1\{dot}500 bytes in the store|1\{dot}500 Bytes im Speicher", content)


# The page of a record.


def test_times_are_those_of_the_zone_and_the_record_has_utc_beside_them(admin_client, settings):
    summer = datetime(2026, 7, 8, 9, 10, 11, tzinfo=zones.utc)
    record = add(1, created_at=summer)
    assert text(admin_client.get(page(record))).count("2026-07-08") == 1
    settings.TIME_ZONE = "Europe/Berlin"
    both = "2026-07-08 11:10:11 CEST = 2026-07-08 09:10:11 UTC"
    assert both in text(admin_client.get(page(record)))
    content = text(admin_client.get(LIST))
    assert "2026-07-08 11:10:11" in content
    assert "Created<br>Europe/Berlin</th>" in content


def test_shows_the_record_and_no_token(admin_client, admin_user):
    scope = scopes.of_tenant("acme", scopes.of_user(admin_user))
    record = add(1, state=State.FAILED, error="builtins.ValueError", attempts=3, scope=scope)
    content = html.unescape(text(admin_client.get(page(record))))
    for part in ("key-1", scope, "failed", "builtins.ValueError", "01" * 32, "Claimed again"):
        assert part in content
    assert "It would run again: the last attempt failed." in content
    assert f'<a href="/admin/auth/user/{admin_user.pk}/change/">admin</a>' in content
    assert str(TOKEN) not in content
    assert TOKEN.hex not in content
    assert not re.findall(r"<(?:textarea|select)", content)
    add(2, state=State.IN_PROGRESS, lease=-5, expires_at=None, scope="user:auth.user:x")
    content = text(admin_client.get(page(IdempotencyRecord(pk=uuid.UUID(int=2)))))
    for part in ("The lease lapsed", "an operator decides", "stale (409)", "None is stored"):
        assert part in content


def test_pages_mask_what_the_user_may_not_see(client, clerk, django_user_model):
    record = add(1, result=answered(HttpResponse("the secret result", status=202)))
    urls = (LIST, page(record), f"{LIST}store/default/overview/")
    assert [client.get(url).status_code for url in urls] == [403] * 3
    clerk("view_idempotencyrecord")
    content = "".join(text(client.get(url)) for url in urls)
    for part in (
        "key-1",
        "scope-of-it",
        "the secret result",
        "<strong>202</strong>",
        'name="seen"',
    ):
        assert part not in content
    for part in ("•••••", "Can view stored results", "Can view scopes and keys", "bytes"):
        assert part in content
    assert (
        not client.get(LIST, {"scope": "no such"}).context["form"].is_filtered
    )  # which would tell
    clerk(*SEEING)
    content = "".join(text(client.get(url)) for url in urls)
    assert ("key-1" in content, "the secret result" in content) == (True, False)
    named = add(2, scope=scopes.of_user(django_user_model.objects.create_user("jane")))
    content = text(client.get(page(named)))
    assert ("key-2" in content, "jane" in content) == (True, False)
    clerk(*SEEING, "view_user")
    assert "jane" in text(client.get(page(named)))
    clerk("view_idempotencyrecord", "view_result")
    content = text(client.get(page(record)))
    assert "the secret result" in content
    assert "<strong>202</strong>" in content
    assert "key-1" not in content
    client.logout()
    assert client.get(LIST).status_code == 302


def test_S15_S16_the_page_of_a_record_lists_its_steps_and_says_if_they_are_damaged(
    client, clerk, memory
):
    record_id = keys.record_id("call", "billing", "m-2")
    lease = memory.claim(ClaimRequest(record_id, "billing", "m-2", "charge"))
    url = f"{MEMORY}{record_id}/"
    clerk("view_idempotencyrecord", "view_result")
    assert "idempotency-steps" not in text(client.get(url))

    for name, result in {"order": {"id": 17}, HOSTILE[0]: b"\x00"}.items():
        entry = journal.entry(name, codecs.pack(codecs.JSONCodec(), result, max_bytes=1000))
        memory.note(lease, entry, duration=60, held=False)
    content = text(client.get(url))
    assert [part for part in ("order", "Result", "#bytes", "16") if part not in content] == []
    assert '{\n  "id": 17\n}' in html.unescape(content)
    assert HOSTILE[0] not in content
    assert html.unescape(content).count(HOSTILE[0]) == 2
    memory.note(lease, journal.intent(HOSTILE[1]), duration=60, held=True)
    content = text(client.get(url))
    assert HOSTILE[1] not in content
    assert html.unescape(content).count(HOSTILE[1]) == 1
    assert re.search(r"uncertain</span></td>", content)
    clerk("view_idempotencyrecord")
    response = client.get(url)
    content = text(response)
    assert [body for *_told, body, _note in response.context["noted"]] == [None, None]
    assert ("order" in content, "17" in content.split("idempotency-steps")[1]) == (True, False)
    assert "Their results take the permission" in content

    clerk("view_idempotencyrecord", "view_result")
    memory.note(lease, journal.entry("torn", b"\x01")[:-1], duration=60, held=False)
    content = html.unescape(text(client.get(url)))
    assert "The journal of the record's steps is damaged" in content
    assert "order" not in content


def test_R80_no_more_is_indented_than_is_shown(monkeypatch, memory):
    monkeypatch.setattr("django_idempotency.admin.records._SHOWN", 1000)
    deep = b"[" * 100 + b",".join([b"0"] * 5000) + b"]" * 100
    result = answered(HttpResponse(deep, content_type="application/json"))
    answer = Reading(memory, replace(memory.browse().records[0], result=result)).answer
    body_of(answer)
    tracemalloc.start()
    try:
        assert "\n  [\n    [" in body_of(answer)[0]
        assert tracemalloc.get_traced_memory()[1] < 500_000  # all of it would be 1 000 000
    finally:
        tracemalloc.stop()


#: JSON that would read otherwise with a member to each line.
EXACT = (
    '{"paid": 1.10}',
    '{"paid": 0.1000000000000000055511}',
    '{"paid": 1, "paid": 2}',
    "[1e999]",
)


def test_R80_results_are_told_whatever_they_are(memory):
    paid = JsonResponse({"paid": [1]}, status=201, headers={"Location": "/p/1/"})
    half = HttpResponse(rb'{"name": "\ud800"}', content_type="application/json")
    for result, said in (
        (
            answered(paid),
            "201|'Location', '/p/1/'|application/json|{\n  \"paid\": [\n    1\n  ]\n}",
        ),
        (answered(half), r'"name": "\ud800"'),
        *((answered(HttpResponse(it, content_type="text/json")), it) for it in EXACT),
        (answered(HttpResponse(b"\x89P\xff", content_type="image/png")), "3 bytes, image/png"),
        (codecs.pack(codecs.JSONCodec(), {"id": 7}, max_bytes=100), '"id": 7'),
        (codecs.unavailable(SnapshotCodec()), "It was not kept."),
        *((damaged, "damaged") for damaged in (b"\x01", b"")),
        (b"no envelope", "newer release"),
    ):
        answer = Reading(memory, replace(memory.browse().records[0], result=result)).answer
        body, note = body_of(answer)
        shown = f"{answer.status} {answer.headers} {body} {note}"
        assert [part for part in said.split("|") if part not in shown] == []


def test_R80_what_a_stranger_could_choose_is_escaped_wherever_it_stands(admin_client):
    """In the list, which has the beginning of what is long, in the page and in answers."""
    kinds = ("text/html", "application/json", "image/svg+xml")
    texts = [(number, hostile) for number, hostile in enumerate(HOSTILE, 1)]
    for number, hostile in texts:
        result = answered(HttpResponse(hostile, content_type=kinds[number % 3]))
        chosen = dict.fromkeys(("key", "scope", "operation", "error"), hostile)
        add(number, result=result, **chosen)
    overview = text(admin_client.get(f"{LIST}store/default/overview/"))
    table = text(admin_client.get(LIST)) + overview
    for number, hostile in texts:
        content = text(admin_client.get(f"{LIST}{uuid.UUID(int=number)}/change/"))
        assert hostile == html.escape(hostile) or hostile not in content + table
        assert html.unescape(content).count(hostile) >= 5
        assert html.unescape(table).count(hostile[:20]) >= 4


def test_R80_a_query_or_an_id_of_nonsense_is_no_500(admin_client):
    for query in ("state=nonsense", "q=%00", "operation=%00", "scope=%00", "age=x", "cursor=%00"):
        response = admin_client.get(f"{LIST}?{query}", follow=True)
        assert response.status_code == 200, query
    for pk in (HOSTILE[0], "1", str(uuid.UUID(int=9))):
        url = reverse("admin:django_idempotency_idempotencyrecord_change", args=[pk])
        response = admin_client.get(url, follow=True)
        assert response.status_code in (200, 404), pk
        assert "<script>alert" not in response.content.decode()


def test_nothing_can_be_added_changed_or_deleted(admin_client):
    record = add(1)
    delete = f"{LIST}{record.pk}/delete/"
    for url in (f"{LIST}add/", delete):
        assert admin_client.post(url, {"post": "yes"}).status_code == 404
    assert admin_client.post(page(record), {"state": "RELEASED"}).status_code == 403
    selected = {"action": "delete_selected", "_selected_action": [str(record.pk)]}
    admin_client.post(LIST, {**selected, "post": "yes"})
    assert IdempotencyRecord.objects.get().state == State.COMPLETED
    assert f'href="{LIST}add/"' not in text(admin_client.get(LIST))
    [app] = admin_client.get("/admin/django_idempotency/").context["app_list"]
    [model] = app["models"]
    assert model["perms"] == {"add": False, "change": False, "delete": False, "view": True}


def test_the_pages_are_german_and_leave_the_words_of_projects_alone(admin_client, settings):
    settings.LANGUAGE_CODE = "de"
    record = add(1, state=State.FAILED)
    told = "Sie würde noch einmal ausgeführt: Der letzte Versuch ist gescheitert."
    said = {
        LIST: (
            "<bdi>Idempotenz</bdi>",
            "<h1>Idempotenz-Datensätze</h1>",
            "100 Datensätze.",
            "Nächste Seite",
            "gescheitert",
            "Vorgang",
        ),
        page(record): ("Eine Wiederholung jetzt:", told, "Zeitverlauf", "Freigeben", "Vorgang"),
        f"{LIST}store/default/overview/": ("mehr hat der Speicher nicht", "Vorgänge"),
    }
    for number in range(2, 103):
        add(number)
    for url, words in said.items():
        content = text(admin_client.get(f"{url}?operation=POST+shop%3Apay"))
        assert [word for word in words if word not in content] == [], url
    with translation.override("de"):
        assert translation.gettext("completed") == "completed"
