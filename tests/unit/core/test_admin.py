"""The admin: browsing records, read-only, with hostile keys in them (R80)."""

from __future__ import annotations

import html
import re
import tracemalloc
import uuid
from datetime import datetime, timedelta
from datetime import timezone as zones

import pytest
from django.contrib import admin
from django.contrib.auth.models import Permission
from django.db import connection
from django.http import HttpResponse, JsonResponse
from django.urls import reverse
from django.utils import timezone

import django_idempotency as idempotency
from django_idempotency import admin_search, api, codecs, keys
from django_idempotency.admin_results import shown_result
from django_idempotency.contrib import celery_deliveries
from django_idempotency.http import guard, scopes
from django_idempotency.http.snapshot import SnapshotCodec
from django_idempotency.models import IdempotencyRecord

pytestmark = pytest.mark.django_db

LIST = "/admin/django_idempotency/idempotencyrecord/"
State = IdempotencyRecord.State
HOSTILE = [
    "<script>alert(1)</script>",
    "\"><img src=x onerror='alert(1)'>",
    "';--",
    "{{7*7}}{% debug %}",
    "../../etc/passwd",
    "\\" * 255,
    "%00%0d%0aX: 1",
    "\u202egnp.exe",
]


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
    def test_shows_every_record(self, admin_client):
        add(1)
        add(2, state=State.FAILED)
        response = admin_client.get(LIST)
        assert shown(response) == {1, 2}
        for part in (str(uuid.UUID(int=1)), "key-1", "scope-of-it", "POST shop:pay", "failed"):
            assert part in text(response)

    def test_empty(self, admin_client):
        assert shown(admin_client.get(LIST)) == set()

    @pytest.mark.parametrize(
        ("state", "lease", "said"),
        [
            (State.IN_PROGRESS, 3600, r"3\d\d\d s"),
            (State.IN_PROGRESS, -5, "stale"),
            (State.COMPLETED, None, "-"),
        ],
    )
    def test_lease_left_or_stale(self, admin_client, state, lease, said):
        add(1, state=state, lease=lease)
        [cell] = re.findall(r'field-lease">(.*?)<', text(admin_client.get(LIST)))
        assert re.fullmatch(said, cell)

    @pytest.mark.parametrize(("choice", "found"), [("stale", {2}), ("held", {1}), ("x", {1, 2, 3})])
    def test_R71_filter_by_lease(self, admin_client, choice, found):
        add(1, state=State.IN_PROGRESS, lease=60)
        add(2, state=State.IN_PROGRESS, lease=-60)
        add(3, lease=-60)
        assert shown(admin_client.get(LIST, {"lease": choice})) == found

    def test_times_have_seconds_and_the_scope_is_beside_the_key(self, admin_client):
        record = add(1, created_at=datetime(2026, 3, 4, 5, 6, 7, tzinfo=zones.utc))
        content = text(admin_client.get(LIST))
        assert "2026-03-04 05:06:07" in content
        assert content.index("column-short_scope") < content.index("column-short_key")
        assert "2026-03-04 05:06:07" in text(admin_client.get(page(record)))

    def test_a_list_reads_no_results(self, admin_client, django_assert_max_num_queries):
        add(1, result=b"x" * 1000)
        with django_assert_max_num_queries(8) as captured:
            admin_client.get(LIST)
        column = connection.ops.quote_name("result")
        assert not any(column in query["sql"] for query in captured)

    @pytest.mark.parametrize("state", list(State))
    def test_filter_by_state(self, admin_client, state):
        for number, each in enumerate(State, 1):
            add(number, state=each)
        found = shown(admin_client.get(LIST, {"state__exact": state}))
        assert found == {list(State).index(state) + 1}

    @pytest.mark.parametrize(
        "query",
        [
            {"state__exact": "nonsense"},
            {"id__exact": "nonsense"},
            {"p": "999"},
            {"p": "x"},
            {"o": "99.-1"},
            {"key__contains": "x"},
            {"all": ""},
            {"e": "1"},
        ],
        ids=str,
    )
    def test_R80_a_query_of_nonsense_is_no_500(self, admin_client, query):
        add(1)
        assert admin_client.get(LIST, query, follow=True).status_code in (200, 400)

    def test_counts_the_table_once_at_most(self, admin_client, django_assert_max_num_queries):
        add(1)
        with django_assert_max_num_queries(8) as captured:
            admin_client.get(LIST)
        counts = [query["sql"] for query in captured if "COUNT(" in query["sql"]]
        assert len(counts) <= 1


class TestSearch:
    @pytest.mark.parametrize(
        "form", [str, lambda pk: pk.hex, lambda pk: f"  {pk} ", lambda pk: str(pk).upper()]
    )
    def test_by_record_id(self, admin_client, form):
        add(1)
        wanted = add(0xABC)
        assert shown(admin_client.get(LIST, {"q": form(wanted.pk)})) == {0xABC}

    def test_an_id_that_is_not_there_finds_nothing(self, admin_client):
        add(1)
        assert shown(admin_client.get(LIST, {"q": uuid.UUID(int=2)})) == set()

    @pytest.mark.parametrize(
        "term", ["KEY-1", "1", "scope-of-it", "%", "_", "a b c", "1" * 5000, *HOSTILE]
    )
    def test_R80_any_other_term_finds_nothing_and_is_no_500(self, admin_client, term):
        add(1)
        assert shown(admin_client.get(LIST, {"q": term})) == set()

    def test_R80_NUL_is_no_500(self, admin_client):
        assert admin_client.get(LIST, {"q": "\x00"}).status_code == 200

    @pytest.mark.parametrize("length", [8, 9, 12, 24, 35])
    def test_R79_by_the_beginning_of_an_id_that_a_log_line_names(self, admin_client, length):
        wanted = add(uuid.UUID("01234567-89ab-8cde-8f01-23456789abcd").int)
        add(uuid.UUID("01234566-89ab-8cde-8f01-23456789abcd").int)
        add(uuid.UUID("01234568-89ab-8cde-8f01-23456789abcd").int)
        assert shown(admin_client.get(LIST, {"q": str(wanted.pk)[:length]})) == {wanted.pk.int}

    def test_R79_the_beginning_may_be_that_of_several(self, admin_client):
        ids = [uuid.UUID(f"01234567-89ab-8cde-8f01-{last}").int for last in ("0" * 12, "f" * 12)]
        for number in ids:
            add(number)
        assert shown(admin_client.get(LIST, {"q": "01234567-89a"})) == set(ids)

    @pytest.mark.parametrize("key", ["key-7", "two words", "0123456789abcdef", *HOSTILE])
    def test_R80_by_a_key_alone(self, admin_client, key):
        add(1)
        add(7, key=key)
        assert shown(admin_client.get(LIST, {"q": f" {key} "})) == {7}

    def test_a_key_alone_is_looked_for_among_the_newest_and_the_page_says_so(
        self, admin_client, monkeypatch
    ):
        monkeypatch.setattr(admin_search, "NEWEST", 2)
        for number in (1, 2, 3):
            add(number, expires_at=timezone.now() + timedelta(hours=number))
        said = "Put its scope, or the user's name, before it to search them all."

        response = admin_client.get(LIST, {"q": "key-2"})
        assert (shown(response), said in html.unescape(text(response))) == ({2}, False)
        response = admin_client.get(LIST, {"q": "key-1"})
        assert (shown(response), said in html.unescape(text(response))) == (set(), True)

    @pytest.mark.parametrize("kind", keys.KINDS)
    @pytest.mark.parametrize("key", ["key-7", "two words"])
    def test_by_scope_and_key_among_all(self, admin_client, monkeypatch, kind, key):
        monkeypatch.setattr(admin_search, "NEWEST", 0)
        scope = "12:POST shop:pay:anyone"
        add(keys.record_id(kind, scope, key).int, scope=scope, key=key)

        assert len(shown(admin_client.get(LIST, {"q": f"{scope} {key}"}))) == 1
        assert shown(admin_client.get(LIST, {"q": f"{scope} other"})) == set()

    @pytest.mark.parametrize("whose", ["admin", "acme admin", "user:auth.user:{pk}"])
    def test_by_user_and_key_or_with_their_tenant(
        self, admin_client, admin_user, monkeypatch, rf, whose
    ):
        monkeypatch.setattr(admin_search, "NEWEST", 0)
        request = rf.get("/")
        request.user = admin_user
        of_tenant = scopes.tenant_and_user(lambda request: "acme")
        scope = of_tenant(request) if "acme" in whose else scopes.user(request)
        wanted = keys.record_id("http", scope, "key-7")
        add(wanted.int, scope=scope, key="key-7")

        response = admin_client.get(LIST, {"q": f"{whose.format(pk=admin_user.pk)} key-7"})

        assert shown(response) == {wanted.int}

    def test_each_adapter_has_its_kind_searched(self):
        kinds = (guard._KIND, celery_deliveries._KIND, api._KIND)
        assert kinds == keys.KINDS

    def test_less_than_8_digits_find_nothing(self, admin_client):
        add(1)
        assert shown(admin_client.get(LIST, {"q": "0000000"})) == set()

    def test_goes_by_the_primary_key(self, admin_client, django_assert_max_num_queries):
        record = add(1)
        with django_assert_max_num_queries(10) as captured:
            admin_client.get(LIST, {"q": str(record.pk)})
        searches = [q["sql"] for q in captured if "idempotency_record" in q["sql"]]
        column = '"idempotency_record"."id"'.replace('"', connection.ops.quote_name("x")[0])
        assert any(f"WHERE {column} BETWEEN" in sql for sql in searches)
        assert not any("LIKE" in sql.upper() for sql in searches)

    def test_works_with_the_filter(self, admin_client):
        record = add(1, state=State.FAILED)
        for state, found in ((State.FAILED, {1}), (State.COMPLETED, set())):
            response = admin_client.get(LIST, {"q": str(record.pk), "state__exact": state})
            assert shown(response) == found


class TestDetail:
    def test_shows_the_record(self, admin_client):
        record = add(1, state=State.FAILED, error="builtins.ValueError", attempts=3)
        content = text(admin_client.get(page(record)))
        for part in ("key-1", "scope-of-it", "failed", "builtins.ValueError", "01" * 32):
            assert part in content

    @pytest.mark.parametrize("permitted", [True, False])
    def test_the_stored_answer_takes_a_permission_of_its_own(
        self, client, django_user_model, permitted
    ):
        clerk = django_user_model.objects.create_user("clerk", is_staff=True)
        names = ["view_idempotencyrecord", *(["view_result"] if permitted else [])]
        clerk.user_permissions.set(Permission.objects.filter(codename__in=names))
        client.force_login(clerk)
        record = add(1, result=answered(HttpResponse("the secret result", status=202)))

        content = text(client.get(page(record)))

        assert ("the secret result" in content) == permitted
        assert ("<strong>202</strong>" in content) == permitted
        assert ("It takes the permission" in content) == (not permitted)
        assert f"{len(record.result)} bytes" in content

    @pytest.mark.parametrize("lookup", ["result__contains", "result__gt", "token__startswith"])
    def test_the_url_filters_by_nothing_that_no_page_shows(self, client, django_user_model, lookup):
        clerk = django_user_model.objects.create_user("clerk", is_staff=True)
        clerk.user_permissions.add(Permission.objects.get(codename="view_idempotencyrecord"))
        client.force_login(clerk)
        add(1, result=answered(HttpResponse("secret")))

        assert client.get(LIST, {lookup: b"secret".hex()}).status_code == 400
        assert shown(client.get(LIST, {"key__startswith": "key-"})) == {1}

    def test_R80_half_a_surrogate_pair_in_an_answer_is_shown(self, admin_client):
        response = HttpResponse(rb'{"name": "\ud800"}', content_type="application/json")
        content = html.unescape(text(admin_client.get(page(add(1, result=answered(response))))))
        assert r'"name": "\ud800"' in content

    def test_R80_no_more_is_indented_than_is_shown(self):
        deep = b"[" * 200 + b",".join([b"0"] * 100_000) + b"]" * 200
        response = HttpResponse(deep, content_type="application/json")
        envelope = codecs.pack(SnapshotCodec(), response, max_bytes=1_000_000)
        tracemalloc.start()
        try:
            assert "\n  [\n    [" in shown_result(envelope)
            assert tracemalloc.get_traced_memory()[1] < 10_000_000
        finally:
            tracemalloc.stop()

    def test_status_fields_and_body_of_an_answer_are_shown(self, admin_client):
        response = JsonResponse({"paid": [1]}, status=201, headers={"Location": "/p/1/"})
        content = html.unescape(text(admin_client.get(page(add(1, result=answered(response))))))
        for part in ("201", "Location: /p/1/", "application/json", '{\n  "paid": [\n    1\n  ]\n}'):
            assert part in content

    @pytest.mark.parametrize("hostile", HOSTILE[:4])
    @pytest.mark.parametrize("kind", ["text/html", "application/json", "image/svg+xml"])
    def test_R80_hostile_answers_stay_text(self, admin_client, hostile, kind):
        response = HttpResponse(hostile, content_type=kind, headers={"X-It": hostile})
        content = text(admin_client.get(page(add(1, result=answered(response)))))
        if hostile != html.escape(hostile):
            assert hostile not in content
        assert html.unescape(content).count(hostile) == 2

    @pytest.mark.parametrize(
        ("result", "said"),
        [
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
        ids=["binary", "call", "not kept", "short", "empty", "nonsense"],
    )
    def test_other_results_are_told(self, admin_client, result, said):
        content = html.unescape(text(admin_client.get(page(add(1, result=result)))))
        assert said in content

    def test_never_the_token(self, admin_client):
        assert "beef" not in text(admin_client.get(page(add(1))))

    def test_nothing_can_be_typed_in(self, admin_client):
        content = text(admin_client.get(page(add(1))))
        form = content[content.index('id="idempotencyrecord_form"') :]
        assert not re.findall(r'<(?:input|textarea|select)(?![^>]*type="hidden")', form)

    @pytest.mark.parametrize("pk", [*HOSTILE[:5], "1", "None", str(uuid.UUID(int=9))])
    def test_R80_an_id_that_is_none_is_no_500(self, admin_client, pk):
        url = reverse("admin:django_idempotency_idempotencyrecord_change", args=[pk])
        response = admin_client.get(url, follow=True)
        assert response.status_code in (200, 404)
        assert "<script>alert" not in response.content.decode()
        assert "<img src=x" not in response.content.decode()

    def test_record_of_a_real_call(self, admin_client):
        outcome = idempotency.run(lambda lease: [1, 2], key="order-7", scope="billing")
        content = text(admin_client.get(f"{LIST}{outcome.record_id}/change/"))
        assert "order-7" in content
        assert "completed" in content


class TestHostileKeys:
    @pytest.mark.parametrize("key", HOSTILE)
    @pytest.mark.parametrize("field", ["key", "scope", "operation", "error"])
    def test_R80_are_escaped(self, admin_client, key, field):
        record = add(1, **{field: key})
        for url in (LIST, page(record)):
            content = text(admin_client.get(url))
            if key != html.escape(key):
                assert key not in content
            if url != LIST:
                assert key in html.unescape(content)
            elif field != "error":  # the list has the beginning of what is long
                assert key[:20] in html.unescape(content)

    def test_R80_are_not_templates(self, admin_client):
        add(1, key="{{7*7}}")
        assert "{{7*7}}" in text(admin_client.get(LIST))


class TestReadOnly:
    def test_no_add(self, admin_client):
        assert admin_client.get(f"{LIST}add/").status_code == 403
        assert admin_client.post(f"{LIST}add/", {"key": "x"}).status_code == 403
        assert f'href="{LIST}add/"' not in text(admin_client.get(LIST))

    def test_no_change(self, admin_client):
        record = add(1)
        assert admin_client.post(page(record), {"state": "RELEASED"}).status_code == 403
        record.refresh_from_db()
        assert record.state == State.COMPLETED

    def test_no_delete(self, admin_client):
        record = add(1)
        url = f"{LIST}{record.pk}/delete/"
        assert admin_client.get(url).status_code == 403
        assert admin_client.post(url, {"post": "yes"}).status_code == 403
        assert IdempotencyRecord.objects.count() == 1

    def test_no_action(self, admin_client):
        record = add(1)
        data = {"action": "delete_selected", "_selected_action": [str(record.pk)], "post": "yes"}
        admin_client.post(LIST, data)
        assert IdempotencyRecord.objects.count() == 1
        assert 'name="action"' not in text(admin_client.get(LIST))

    def test_methods_say_so(self, rf, admin_user):
        request = rf.get(LIST)
        request.user = admin_user
        model_admin = admin.site.get_model_admin(IdempotencyRecord)
        permissions = model_admin.get_model_perms(request)
        assert permissions == {"add": False, "change": False, "delete": False, "view": True}


class TestPermissions:
    @pytest.fixture
    def clerk(self, client, django_user_model):
        user = django_user_model.objects.create_user("clerk", is_staff=True)
        client.force_login(user)
        return user

    def test_without_view_permission_nothing_is_shown(self, client, clerk):
        record = add(1)
        assert client.get(LIST).status_code == 403
        assert client.get(page(record)).status_code == 403

    def test_with_view_permission_both_pages_are(self, client, clerk):
        record = add(1)
        clerk.user_permissions.add(Permission.objects.get(codename="view_idempotencyrecord"))
        assert client.get(LIST).status_code == 200
        assert client.get(page(record)).status_code == 200

    def test_visitors_have_to_log_in(self, client):
        assert client.get(LIST).status_code == 302
