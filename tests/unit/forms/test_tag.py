"""R89: the hidden field that the template tag puts into a form."""

from __future__ import annotations

import re
import uuid

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.contrib.sessions.backends.db import SessionStore
from django.template import Context, Template

FIELD = re.compile(r'<input type="hidden" name="([^"]*)" value="([^"]*)">')
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.unit.forms.urls")]


def rendered(source="{% idempotency_key %}", **context):
    return Template("{% load idempotency %}" + source).render(Context(context))


def test_R89_tag_is_a_hidden_field_with_a_new_uuid_each_time():
    found = FIELD.findall(rendered("{% idempotency_key %}{% idempotency_key %}") + rendered())

    assert [name for name, _ in found] == ["idempotency_key"] * 3
    assert len({uuid.UUID(value) for _, value in found}) == 3


def test_R89_name_of_the_field_is_a_choice_of_the_alias_and_escaped(settings):
    settings.IDEMPOTENCY = {
        "default": {"HTTP": {"FORM_FIELD": '"><script>'}},
        "other": {"HTTP": {"FORM_FIELD": "once"}},
    }

    assert 'name="once"' in rendered("{% idempotency_key 'other' %}")
    assert 'name="&quot;&gt;&lt;script&gt;"' in rendered()


@pytest.mark.parametrize(
    "http",
    [
        {"KEY_VALIDATOR": "uuid"},
        {"KEY_VALIDATOR": "uuid7"},
        {"KEY_MIN_LENGTH": 40},
        {"KEY_MAX_LENGTH": 20},
    ],
)
def test_R89_R10_key_passes_the_policy_that_made_it(visitor, policy, http):
    policy(HTTP=http)

    assert visitor.submit(visitor.page()).status_code == 200


def test_R89_the_page_begins_the_session_of_a_visitor_and_the_next_one_goes_on_with_it(client):
    session = client.get("/order/").cookies["sessionid"].value
    assert session
    assert client.session.session_key == session

    client.get("/order/")

    assert client.cookies["sessionid"].value == session


def test_R89_tag_begins_no_session_for_a_user_and_needs_none(rf):
    request = rf.get("/")
    request.user = AnonymousUser()
    assert FIELD.fullmatch(rendered(request=request))

    request.user, request.session = User.objects.create(username="alice"), SessionStore()
    rendered(request=request)

    assert request.session.session_key is None
