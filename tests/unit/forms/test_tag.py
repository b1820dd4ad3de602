"""R89: the hidden field that the template tag puts into a form."""

from __future__ import annotations

import re
import uuid
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.contrib.sessions.backends.db import SessionStore
from django.template import Context, Template
from django.test import Client, RequestFactory

from tests.unit.forms.conftest import Visitor
from tests.unit.http.conftest import SetPolicy

FIELD = re.compile(r'<input type="hidden" name="([^"]*)" value="([^"]*)">')


def rendered(source: str = "{% idempotency_key %}", context: dict[str, Any] | None = None) -> str:
    return Template("{% load idempotency %}" + source).render(Context(context))


def test_R89_tag_is_a_hidden_field_with_a_new_uuid_each_time() -> None:
    found = FIELD.findall(rendered("{% idempotency_key %}{% idempotency_key %}") + rendered())

    assert [name for name, _ in found] == ["idempotency_key"] * 3
    values = {value for _, value in found}
    assert len(values) == 3
    assert all(str(uuid.UUID(value)) == value for value in values)


def test_R89_name_of_the_field_is_a_choice_of_the_alias(settings: Any) -> None:
    settings.IDEMPOTENCY = {"default": {}, "other": {"HTTP": {"FORM_FIELD": "once"}}}

    assert 'name="once"' in rendered("{% idempotency_key 'other' %}")


@pytest.mark.django_db
@pytest.mark.urls("tests.unit.forms.urls")
@pytest.mark.parametrize(
    "http",
    [
        {"KEY_VALIDATOR": "uuid"},
        {"KEY_VALIDATOR": "uuid7"},
        {"KEY_MIN_LENGTH": 40},
        {"KEY_MAX_LENGTH": 20},
    ],
)
def test_R89_R10_key_passes_the_policy_that_made_it(
    visitor: Visitor, policy: SetPolicy, http: dict[str, Any]
) -> None:
    policy(HTTP=http)

    assert visitor.submit({**visitor.page(), "item": "tea"}).status_code == 200


def test_R89_name_is_escaped(policy: SetPolicy) -> None:
    policy(HTTP={"FORM_FIELD": '"><script>alert(1)</script>'})

    page = rendered()

    assert "<script>" not in page
    assert "&quot;&gt;&lt;script&gt;" in page


@pytest.mark.django_db
@pytest.mark.urls("tests.unit.forms.urls")
def test_R89_the_page_begins_the_session_of_a_visitor() -> None:
    client = Client()

    page = client.get("/order/")

    assert page.status_code == 200
    session = page.cookies["sessionid"].value
    assert session
    assert client.session.session_key == session
    # The next page goes on with it.
    client.get("/order/")
    assert client.cookies["sessionid"].value == session


@pytest.mark.django_db
def test_R89_tag_begins_no_session_for_a_user() -> None:
    request = RequestFactory().get("/")
    request.user, request.session = User.objects.create(username="alice"), SessionStore()

    rendered(context={"request": request})

    assert request.session.session_key is None


def test_R89_tag_needs_no_session() -> None:
    request = RequestFactory().get("/")
    request.user = AnonymousUser()

    assert FIELD.fullmatch(rendered(context={"request": request}))
