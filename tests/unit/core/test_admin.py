"""The admin: browsing records, read-only, with hostile keys in them (R80)."""

from __future__ import annotations

import html
import itertools
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
HOSTILE = ["<script>alert(1)</script>", "\"><img src=x onerror='alert(1)'>", "';--"]
HOSTILE += ["{{7*7}}{% debug %}", "../../etc/passwd", "\\" * 255, "%00%0d%0aX: 1", "\u202egnp.exe"]


def add(number=1, *, state=State.COMPLETED, lease=None, **fields):
    now = timezone.now()
    return IdempotencyRecord.objects.create(
        **{
            "id": uuid.UUID(int=number),
            "scope": "scope-of-it",
            "key": f"key-{number}",
            "operation": "POST shop:pay",
            "fingerprint": b"\x01" * 32,
            "state": state,
            "epoch": 5,
            "token": uuid.UUID(int=0xBEEF),
            "lease_until": None if lease is None else now + timedelta(seconds=lease),
            "created_at": now,
            "updated_at": now,
            "expires_at": now + timedelta(hours=1),
            **fields,
        }
    )


def answered(response):
    """What is kept of a view's answer."""
    return codecs.pack(SnapshotCodec(), response, max_bytes=10_000)


def page(record):
    return f"{LIST}{record.pk}/change/"


def shown(response):
    """The ids of the records that a list shows."""
    assert response.status_code == 200
    return {record.pk.int for record in response.context["cl"].result_list}


def text(response):
    assert response.status_code == 200
    return response.content.decode()


class TestList:
    def test_shows_every_record_with_the_scope_beside_its_key(self, admin_client):
        assert shown(admin_client.get(LIST)) == set()
        add(1)
        add(2, state=State.FAILED, created_at=datetime(2026, 3, 4, 5, 6, 7, tzinfo=zones.utc))
        response = admin_client.get(LIST)
        assert shown(response) == {1, 2}
        content = text(response)
        parts = ("key-1", "scope-of-it", "POST shop:pay", "failed", "2026-03-04 05:06:07")
        assert [part for part in (str(uuid.UUID(int=1)), *parts) if part not in content] == []
        assert content.index("column-short_scope") < content.index("column-short_key")

    def test_R71_shows_the_lease_left_and_filters_by_lease_and_state(self, admin_client):
        add(1, state=State.IN_PROGRESS, lease=3600)
        add(2, state=State.IN_PROGRESS, lease=-60)
        add(3, lease=-60)
        add(4, state=State.FAILED)
        cells = re.findall(r'field-lease">(.*?)<', text(admin_client.get(LIST)))
        assert [re.sub(r"3\d\d\d s", "left", cell) for cell in sorted(cells)] == [
            *("-", "-", "left", "stale")
        ]
        state, four = "state__exact", str(uuid.UUID(int=4))
        for query, found in [
            ({"lease": "stale"}, {2}),
            ({"lease": "held"}, {1}),
            ({"lease": "x"}, {1, 2, 3, 4}),
            ({state: State.IN_PROGRESS}, {1, 2}),
            ({state: State.COMPLETED}, {3}),
            ({state: State.FAILED, "q": four}, {4}),
            ({state: State.COMPLETED, "q": four}, set()),
        ]:
            assert shown(admin_client.get(LIST, query)) == found, query

    def test_reads_no_results_and_counts_the_table_once_at_most(
        self, admin_client, django_assert_max_num_queries
    ):
        add(1, result=b"x" * 1000)
        with django_assert_max_num_queries(8) as captured:
            admin_client.get(LIST)
        column = connection.ops.quote_name("result")
        assert not any(column in query["sql"] for query in captured)
        assert sum("COUNT(" in query["sql"] for query in captured) <= 1


class TestSearch:
    def test_R79_by_record_id_or_the_beginning_that_a_log_line_names(self, admin_client):
        for beginning in ("01234566", "01234568"):
            add(uuid.UUID(f"{beginning}-89ab-8cde-8f01-23456789abcd").int)
        wanted = add(uuid.UUID("01234567-89ab-8cde-8f01-23456789abcd").int)
        text = str(wanted.pk)
        for term in (f"  {text} ", wanted.pk.hex, text.upper(), text[:8], text[:12]):
            assert shown(admin_client.get(LIST, {"q": term})) == {wanted.pk.int}, term
        other = add(uuid.UUID("01234567-89ab-8cde-8f01-ffffffffffff").int)
        both = {wanted.pk.int, other.pk.int}
        assert shown(admin_client.get(LIST, {"q": "01234567-89a"})) == both
        for term in ("0123456", str(uuid.UUID(int=2))):  # less than 8 digits, and an id of none
            assert shown(admin_client.get(LIST, {"q": term})) == set(), term

    def test_R80_by_a_key_alone(self, admin_client):
        add(1)
        for number, key in enumerate(["two words", "0123456789abcdef", *HOSTILE[:3]], 10):
            add(number, key=key)
            assert shown(admin_client.get(LIST, {"q": f" {key} "})) == {number}, key

    def test_a_key_alone_is_looked_for_among_the_newest_and_the_page_says_so(
        self, admin_client, monkeypatch
    ):
        monkeypatch.setattr(search, "NEWEST", 2)
        for number in (1, 2, 3):
            add(number, expires_at=timezone.now() + timedelta(hours=number))
        said = "Put its scope, or the user's name, before it to search them all."

        response = admin_client.get(LIST, {"q": "key-2"})
        assert (shown(response), said in html.unescape(text(response))) == ({2}, False)
        response = admin_client.get(LIST, {"q": "key-1"})
        assert (shown(response), said in html.unescape(text(response))) == (set(), True)

    @pytest.mark.parametrize("kind", keys.KINDS)
    def test_by_scope_and_key_among_all(self, admin_client, monkeypatch, kind):
        assert (guard._KIND, celery_deliveries._KIND, api._KIND) == keys.KINDS
        monkeypatch.setattr(search, "NEWEST", 0)
        scope = "12:POST shop:pay:anyone"
        for key in ("key-7", "two words"):
            record = add(keys.record_id(kind, scope, key).int, scope=scope, key=key)
            assert shown(admin_client.get(LIST, {"q": f"{scope} {key}"})) == {record.pk.int}
        assert shown(admin_client.get(LIST, {"q": f"{scope} other"})) == set()

    @pytest.mark.parametrize("whose", ["admin", "acme admin", "user:auth.user:{pk}"])
    def test_by_user_and_key_or_with_their_tenant(
        self, admin_client, admin_user, monkeypatch, rf, whose
    ):
        monkeypatch.setattr(search, "NEWEST", 0)
        request = rf.get("/")
        request.user = admin_user
        of_tenant = scopes.tenant_and_user(lambda request: "acme")
        scope = of_tenant(request) if "acme" in whose else scopes.user(request)
        wanted = keys.record_id("http", scope, "key-7")
        add(wanted.int, scope=scope, key="key-7")

        response = admin_client.get(LIST, {"q": f"{whose.format(pk=admin_user.pk)} key-7"})

        assert shown(response) == {wanted.int}

    def test_goes_by_the_primary_key(self, admin_client, django_assert_max_num_queries):
        record = add(1)
        with django_assert_max_num_queries(10) as captured:
            admin_client.get(LIST, {"q": str(record.pk)})
        searches = [q["sql"] for q in captured if "idempotency_record" in q["sql"]]
        column = '"idempotency_record"."id"'.replace('"', connection.ops.quote_name("x")[0])
        assert any(f"WHERE {column} BETWEEN" in sql for sql in searches)
        assert not any("LIKE" in sql.upper() for sql in searches)


class TestDetail:
    def test_shows_the_record_and_no_token_and_nothing_to_type_in(self, admin_client):
        record = add(1, state=State.FAILED, error="builtins.ValueError", attempts=3)
        content = text(admin_client.get(page(record)))
        for part in ("key-1", "scope-of-it", "failed", "builtins.ValueError", "01" * 32):
            assert part in content
        assert "beef" not in content
        form = content[content.index('id="idempotencyrecord_form"') :]
        assert not re.findall(r'<(?:input|textarea|select)(?![^>]*type="hidden")', form)

    @pytest.mark.parametrize("permitted", [True, False])
    def test_the_stored_answer_takes_a_permission_of_its_own(self, client, clerk, permitted):
        names = ["view_idempotencyrecord", *(["view_result"] if permitted else [])]
        clerk.user_permissions.set(Permission.objects.filter(codename__in=names))
        record = add(1, result=answered(HttpResponse("the secret result", status=202)))

        content = text(client.get(page(record)))

        assert ("the secret result" in content) == permitted
        assert ("<strong>202</strong>" in content) == permitted
        assert ("It takes the permission" in content) == (not permitted)
        assert f"{len(record.result)} bytes" in content

    def test_the_url_filters_by_nothing_that_no_page_shows(self, client, clerk):
        clerk.user_permissions.add(Permission.objects.get(codename="view_idempotencyrecord"))
        add(1, result=answered(HttpResponse("secret")))

        for lookup in ("result__contains", "result__gt", "token__startswith"):
            assert client.get(LIST, {lookup: b"secret".hex()}).status_code == 400
        assert shown(client.get(LIST, {"key__startswith": "key-"})) == {1}

    def test_R80_no_more_is_indented_than_is_shown(self):
        deep = b"[" * 200 + b",".join([b"0"] * 40_000) + b"]" * 200
        response = HttpResponse(deep, content_type="application/json")
        envelope = codecs.pack(SnapshotCodec(), response, max_bytes=1_000_000)
        tracemalloc.start()
        try:
            assert "\n  [\n    [" in shown_result(envelope)
            assert tracemalloc.get_traced_memory()[1] < 10_000_000
        finally:
            tracemalloc.stop()

    @pytest.mark.parametrize(
        ("result", "said"),
        [
            (
                answered(JsonResponse({"paid": [1]}, status=201, headers={"Location": "/p/1/"})),
                '201|Location: /p/1/|application/json|{\n  "paid": [\n    1\n  ]\n}',
            ),
            (
                answered(HttpResponse(rb'{"name": "\ud800"}', content_type="application/json")),
                r'"name": "\ud800"',
            ),
            (
                answered(HttpResponse(b"\x89PNG\xff", content_type="image/png")),
                "5 bytes, image/png",
            ),
            (codecs.pack(codecs.JSONCodec(), {"id": 7}, max_bytes=100), '"id": 7'),
            (codecs.unavailable(SnapshotCodec()), "It was not kept."),
            (b"\x01", "damaged"),
            (b"", "damaged"),
            (b"no envelope", "newer release"),
        ],
        ids=["JSON", "half", "binary", "call", "not kept", "short", "empty", "nonsense"],
    )
    def test_R80_results_are_told_whatever_they_are(self, admin_client, result, said):
        content = html.unescape(text(admin_client.get(page(add(1, result=result)))))
        assert [part for part in said.split("|") if part not in content] == []


class TestHostileInput:
    """R80: what a stranger could choose is text in each page, and never a 500."""

    def test_R80_is_escaped_wherever_it_stands(self, admin_client):
        """In the list, which has the beginning of what is long, in the page and in answers."""
        records = {}
        kinds = itertools.cycle(("text/html", "application/json", "image/svg+xml"))
        for number, hostile in enumerate(HOSTILE, 1):
            result = answered(HttpResponse(hostile, content_type=next(kinds)))
            texts = dict.fromkeys(("key", "scope", "operation", "error"), hostile)
            records[hostile] = add(number, result=result, **texts)
        table = text(admin_client.get(LIST))
        for hostile, record in records.items():
            content = text(admin_client.get(page(record)))
            assert hostile == html.escape(hostile) or hostile not in content + table
            assert html.unescape(content).count(hostile) >= 5
            assert html.unescape(table).count(hostile[:20]) >= 3

    def test_R80_any_other_term_finds_nothing(self, admin_client):
        add(1)
        for term in ("KEY-1", "1", "scope-of-it", "%", "_", "a b c", "1" * 5000, HOSTILE[0]):
            assert shown(admin_client.get(LIST, {"q": term})) == set(), term
        assert admin_client.get(LIST, {"q": "\x00"}).status_code == 200

    def test_R80_a_query_or_an_id_of_nonsense_is_no_500(self, admin_client):
        add(1)
        queries = ["state__exact=nonsense", "id__exact=nonsense", "p=999", "p=x", "o=99.-1"]
        for query in (*queries, "key__contains=x", "all=", "e=1"):
            response = admin_client.get(f"{LIST}?{query}", follow=True)
            assert response.status_code in (200, 400), query
        for pk in (*HOSTILE[:3], "1", "None", str(uuid.UUID(int=9))):
            url = reverse("admin:django_idempotency_idempotencyrecord_change", args=[pk])
            response = admin_client.get(url, follow=True)
            assert response.status_code in (200, 404), pk
            content = response.content.decode()
            assert not any(tag in content for tag in ("<script>alert", "<img src=x"))


class TestReadOnly:
    def test_nothing_can_be_added_changed_deleted_or_acted_on(self, admin_client):
        record = add(1)
        delete = f"{LIST}{record.pk}/delete/"
        assert admin_client.get(f"{LIST}add/").status_code == 403
        assert admin_client.post(f"{LIST}add/", {"key": "x"}).status_code == 403
        assert admin_client.post(page(record), {"state": "RELEASED"}).status_code == 403
        assert admin_client.get(delete).status_code == 403
        assert admin_client.post(delete, {"post": "yes"}).status_code == 403
        selected = {"action": "delete_selected", "_selected_action": [str(record.pk)]}
        admin_client.post(LIST, {**selected, "post": "yes"})
        assert IdempotencyRecord.objects.get().state == State.COMPLETED
        content = text(admin_client.get(LIST))
        assert f'href="{LIST}add/"' not in content
        assert 'name="action"' not in content


@pytest.fixture
def clerk(client, django_user_model):
    user = django_user_model.objects.create_user("clerk", is_staff=True)
    client.force_login(user)
    return user


def test_pages_take_the_permission_to_view(client, clerk):
    urls = (LIST, page(add(1)))
    assert [client.get(url).status_code for url in urls] == [403, 403]
    clerk.user_permissions.add(Permission.objects.get(codename="view_idempotencyrecord"))
    assert [client.get(url).status_code for url in urls] == [200, 200]
    client.logout()
    assert client.get(LIST).status_code == 302
