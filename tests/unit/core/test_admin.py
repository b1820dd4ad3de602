"""The admin: browsing records, read-only, with hostile keys in them (R80)."""

from __future__ import annotations

import html
import re
import tracemalloc
import uuid
from datetime import datetime, timedelta
from datetime import timezone as zones

import pytest
from django.contrib.auth.models import Permission
from django.db import connection
from django.http import HttpResponse, JsonResponse
from django.urls import reverse
from django.utils import timezone

from django_idempotency import api, codecs, keys
from django_idempotency.admin import search
from django_idempotency.admin.results import shown_result
from django_idempotency.contrib.celery import deliveries as celery_deliveries
from django_idempotency.http import guard, scopes
from django_idempotency.http.snapshot import SnapshotCodec
from django_idempotency.models import IdempotencyRecord

pytestmark = pytest.mark.django_db

LIST = "/admin/django_idempotency/idempotencyrecord/"
State = IdempotencyRecord.State
HOSTILE = ["<script>alert(1)</script>", "\"><img src=x onerror='alert(1)'>", "{{7*7}}{% debug %}"]
HOSTILE += ["';--", "\\" * 255, "%00%0d%0aX: 1", "\u202egnp.exe"]


def add(number=1, *, state=State.COMPLETED, lease=None, **fields):
    now = timezone.now()
    ours = {"id": uuid.UUID(int=number), "scope": "scope-of-it", "key": f"key-{number}"}
    ours |= {"operation": "POST shop:pay", "fingerprint": b"\x01" * 32, "state": state}
    ours |= {"epoch": 5, "token": uuid.UUID(int=0xBEEF), "created_at": now, "updated_at": now}
    ours |= {"lease_until": None if lease is None else now + timedelta(seconds=lease)}
    ours |= {"expires_at": now + timedelta(hours=1)}
    return IdempotencyRecord.objects.create(**{**ours, **fields})


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
        return {record.pk.int for record in response.context["cl"].result_list}

    return listed


@pytest.fixture
def clerk(client, django_user_model):
    """``clerk(permission, …)``: a user who has these permissions, and is logged in."""
    user = django_user_model.objects.create_user("clerk", is_staff=True)
    client.force_login(user)

    def permit(*names):
        user.user_permissions.set(Permission.objects.filter(codename__in=names))

    return permit


# The list.


def test_R71_the_list_shows_every_record_and_filters_by_lease_and_state(admin_client, listed):
    long_ago = datetime(2026, 3, 4, 5, 6, 7, tzinfo=zones.utc)
    add(1, state=State.IN_PROGRESS, lease=3600)
    add(2, state=State.IN_PROGRESS, lease=-60)
    add(3, lease=-60)
    add(4, state=State.FAILED, created_at=long_ago)
    content, four = text(admin_client.get(LIST)), str(uuid.UUID(int=4))
    parts = ("key-4", "scope-of-it", "POST shop:pay", "failed", "2026-03-04 05:06:07", four)
    assert [part for part in parts if part not in content] == []
    assert content.index("column-short_scope") < content.index("column-short_key")
    cells = sorted(re.findall(r'field-lease">(.*?)<', content))
    assert re.sub(r"3\d\d\d s", "left", " ".join(cells)) == "- - left stale"
    for query, found in [
        ({"lease": "stale"}, {2}),
        ({"lease": "held"}, {1}),
        ({"lease": "x"}, {1, 2, 3, 4}),
        ({"state__exact": State.IN_PROGRESS}, {1, 2}),
        ({"state__exact": State.FAILED, "q": four}, {4}),
        ({"state__exact": State.COMPLETED, "q": four}, set()),
    ]:
        assert listed(query) == found, query


def test_the_list_reads_no_results_and_a_search_goes_by_the_primary_key(
    admin_client, django_assert_max_num_queries
):
    record, quote = add(1, result=b"x" * 1000), connection.ops.quote_name
    with django_assert_max_num_queries(8) as captured:
        admin_client.get(LIST)
    assert not any(quote("result") in query["sql"] for query in captured)
    assert sum("COUNT(" in query["sql"] for query in captured) <= 1
    with django_assert_max_num_queries(10) as captured:
        admin_client.get(LIST, {"q": str(record.pk)})
    searches = [q["sql"] for q in captured if "idempotency_record" in q["sql"]]
    column = f"{quote('idempotency_record')}.{quote('id')}"
    assert any(f"WHERE {column} BETWEEN" in sql for sql in searches)
    assert not any("LIKE" in sql.upper() for sql in searches)


# The search.


def test_R79_by_record_id_or_the_beginning_that_a_log_line_names(listed):
    ids = [uuid.UUID(f"{it}-89ab-8cde-8f01-23456789abcd") for it in ("01234566", "01234567")]
    ids.append(uuid.UUID("01234567-89ab-8cde-8f01-ffffffffffff"))
    for it in ids[:2]:
        add(it.int)
    text = str(ids[1])
    for term in (f"  {text} ", ids[1].hex, text.upper(), text[:8], text[:12]):
        assert listed(term) == {ids[1].int}, term
    add(ids[2].int)
    assert listed("01234567-89a") == {ids[1].int, ids[2].int}
    for term in ("0123456", str(uuid.UUID(int=2))):  # less than 8 digits, and an id of none
        assert listed(term) == set(), term


def test_R80_by_a_key_alone_among_the_newest_and_the_page_says_so(
    admin_client, listed, monkeypatch
):
    for number, key in enumerate(["two words", "0123456789abcdef", *HOSTILE[:2]], 10):
        add(number, key=key)
        assert listed(f" {key} ") == {number}, key
    for term in ("TWO WORDS", "1", "scope-of-it", "%", "a b c", "1" * 5000):
        assert listed(term) == set(), term
    assert listed("\x00")  # which is no term
    monkeypatch.setattr(search, "NEWEST", 2)
    for number in (1, 2, 3):
        add(number, expires_at=timezone.now() + timedelta(hours=number + 1))
    said = "Put its scope, or the user's name, before it to search them all."
    for key, found in (("key-2", {2}), ("key-1", set())):
        assert listed(key) == found
        shown = html.unescape(text(admin_client.get(LIST, {"q": key})))
        assert (said in shown) is (not found)


def test_by_scope_and_key_among_all(listed, monkeypatch):
    assert (guard._KIND, celery_deliveries._KIND, api._KIND) == keys.KINDS
    monkeypatch.setattr(search, "NEWEST", 0)
    scope = "12:POST shop:pay:anyone"
    for kind in keys.KINDS:
        key = f"two {kind}"
        record = add(keys.record_id(kind, scope, key).int, scope=scope, key=key)
        assert listed(f"{scope} {key}") == {record.pk.int}
    assert listed(f"{scope} other") == set()


def test_by_user_and_key_or_with_their_tenant(listed, admin_user, monkeypatch, rf):
    monkeypatch.setattr(search, "NEWEST", 0)
    request = rf.get("/")
    request.user = admin_user
    of_user, of_tenant = scopes.user, scopes.tenant_and_user(lambda request: "acme")
    by_id = f"user:auth.user:{admin_user.pk}"
    for whose, scope in (("admin", of_user), (by_id, of_user), ("acme admin", of_tenant)):
        wanted = keys.record_id("http", scope(request), whose)
        add(wanted.int, scope=scope(request), key=whose)
        assert listed(f"{whose} {whose}") == {wanted.int}


# The page of a record.


def test_shows_the_record_and_no_token_and_nothing_to_type_in(admin_client):
    record = add(1, state=State.FAILED, error="builtins.ValueError", attempts=3)
    content = text(admin_client.get(page(record)))
    for part in ("key-1", "scope-of-it", "failed", "builtins.ValueError", "01" * 32):
        assert part in content
    assert "beef" not in content
    form = content[content.index('id="idempotencyrecord_form"') :]
    assert not re.findall(r'<(?:input|textarea|select)(?![^>]*type="hidden")', form)


def test_pages_take_a_permission_and_the_stored_answer_one_of_its_own(client, clerk):
    record = add(1, result=answered(HttpResponse("the secret result", status=202)))
    assert [client.get(url).status_code for url in (LIST, page(record))] == [403, 403]
    for names in (["view_idempotencyrecord"], ["view_idempotencyrecord", "view_result"]):
        clerk(*names)
        content, permitted = text(client.get(page(record))), len(names) > 1
        for part in ("the secret result", "<strong>202</strong>"):
            assert (part in content) == permitted
        assert ("It takes the permission" in content) == (not permitted)
        assert f"{len(record.result)} bytes" in content
    clerk("view_idempotencyrecord")
    for lookup in ("result__contains", "result__gt", "token__startswith"):  # which would tell
        assert client.get(LIST, {lookup: b"secret".hex()}).status_code == 400
    assert "key-1" in text(client.get(LIST, {"key__startswith": "key-"}))
    client.logout()
    assert client.get(LIST).status_code == 302


def test_R80_no_more_is_indented_than_is_shown(monkeypatch):
    monkeypatch.setattr("django_idempotency.admin.results._SHOWN", 1000)
    deep = b"[" * 100 + b",".join([b"0"] * 5000) + b"]" * 100
    envelope = answered(HttpResponse(deep, content_type="application/json"))
    shown_result(envelope)
    tracemalloc.start()
    try:
        assert "\n  [\n    [" in shown_result(envelope)
        assert tracemalloc.get_traced_memory()[1] < 500_000  # all of it would be 1 000 000
    finally:
        tracemalloc.stop()


def test_R80_results_are_told_whatever_they_are():
    paid = JsonResponse({"paid": [1]}, status=201, headers={"Location": "/p/1/"})
    half = HttpResponse(rb'{"name": "\ud800"}', content_type="application/json")
    for result, said in (
        (answered(paid), '201|Location: /p/1/|application/json|{\n  "paid": [\n    1\n  ]\n}'),
        (answered(half), r'"name": "\ud800"'),
        (answered(HttpResponse(b"\x89P\xff", content_type="image/png")), "3 bytes, image/png"),
        (codecs.pack(codecs.JSONCodec(), {"id": 7}, max_bytes=100), '"id": 7'),
        (codecs.unavailable(SnapshotCodec()), "It was not kept."),
        *((damaged, "damaged") for damaged in (b"\x01", b"")),
        (b"no envelope", "newer release"),
    ):
        shown = html.unescape(shown_result(result))
        assert [part for part in said.split("|") if part not in shown] == []


def test_R80_what_a_stranger_could_choose_is_escaped_wherever_it_stands(admin_client):
    """In the list, which has the beginning of what is long, in the page and in answers."""
    kinds = ("text/html", "application/json", "image/svg+xml")
    texts = [(number, hostile) for number, hostile in enumerate(HOSTILE, 1)]
    for number, hostile in texts:
        result = answered(HttpResponse(hostile, content_type=kinds[number % 3]))
        chosen = dict.fromkeys(("key", "scope", "operation", "error"), hostile)
        add(number, result=result, **chosen)
    table = text(admin_client.get(LIST))
    for number, hostile in texts:
        content = text(admin_client.get(f"{LIST}{uuid.UUID(int=number)}/change/"))
        assert hostile == html.escape(hostile) or hostile not in content + table
        assert html.unescape(content).count(hostile) >= 5
        assert html.unescape(table).count(hostile[:20]) >= 3


def test_R80_a_query_or_an_id_of_nonsense_is_no_500(admin_client):
    for query in ("state__exact=nonsense", "id__exact=x", "p=999", "p=x", "o=99.-1", "all=", "e=1"):
        response = admin_client.get(f"{LIST}?{query}", follow=True)
        assert response.status_code in (200, 400), query
    for pk in (HOSTILE[0], "1", str(uuid.UUID(int=9))):
        url = reverse("admin:django_idempotency_idempotencyrecord_change", args=[pk])
        response = admin_client.get(url, follow=True)
        assert response.status_code in (200, 404), pk
        assert "<script>alert" not in response.content.decode()


def test_nothing_can_be_added_changed_deleted_or_acted_on(admin_client):
    record = add(1)
    delete = f"{LIST}{record.pk}/delete/"
    for url in (f"{LIST}add/", delete):
        assert admin_client.get(url).status_code == 403
    for url, data in ((f"{LIST}add/", {"key": "x"}), (page(record), {"state": "RELEASED"})):
        assert admin_client.post(url, data).status_code == 403
    assert admin_client.post(delete, {"post": "yes"}).status_code == 403
    selected = {"action": "delete_selected", "_selected_action": [str(record.pk)]}
    admin_client.post(LIST, {**selected, "post": "yes"})
    assert IdempotencyRecord.objects.get().state == State.COMPLETED
    content = text(admin_client.get(LIST))
    assert f'href="{LIST}add/"' not in content
    assert 'name="action"' not in content
