"""The admin: browsing records, read-only, with hostile keys in them (R80)."""

from __future__ import annotations

import html
import re
import uuid
from datetime import timedelta

import pytest
from django.contrib import admin
from django.contrib.auth.models import Permission
from django.db import connection
from django.urls import reverse
from django.utils import timezone

import django_idempotency as idempotency
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
        "term", ["key-1", "1", "scope-of-it", "%", "_", "a b c", "1" * 5000, *HOSTILE]
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

    def test_never_the_result_or_the_token(self, admin_client):
        record = add(1, result=b"the secret result")
        content = text(admin_client.get(page(record)))
        assert "secret" not in content
        assert "17 bytes" in content
        assert "beef" not in content

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
