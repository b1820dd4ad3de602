"""R35: which keys the pages of the browsable API bring for their forms."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from django.apps import apps
from rest_framework import permissions
from rest_framework.renderers import AdminRenderer, BrowsableAPIRenderer, JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from django_idempotency.http import scopes
from tests.unit.http.api import Api
from tests.unit.http.views import BareView, CreateView

pytestmark = pytest.mark.django_db
HTML = {"Accept": "text/html"}
SCRIPT = re.compile(r'<script id="django-idempotency" type="application/json">(.*?)</script>')


class Browsable(BareView):
    renderer_classes = [JSONRenderer, BrowsableAPIRenderer]
    permission_classes = [permissions.AllowAny]

    def get(self, request: Request) -> Response:
        return Response({})


def keys_of(response: Any) -> dict[str, dict[str, str]]:
    """Return what a page has for each method."""
    page = response.content.decode()
    found = SCRIPT.search(page)
    assert (found is not None) == ("django_idempotency/browsable_api.js" in page)
    keys: dict[str, dict[str, str]] = json.loads(found[1])["keys"] if found else {}
    return keys


def get(api: Api, path: str, **arguments: Any) -> Any:
    return api(key=None, method="GET", body="", path=path, headers=HTML, **arguments)


@pytest.mark.parametrize("renderer", [BrowsableAPIRenderer, AdminRenderer])
def test_R35_the_key_of_a_page_is_taken_once(api, mount, renderer):
    class Rendered(CreateView):
        renderer_classes = [JSONRenderer, renderer]

        def get(self, request: Request) -> Response:
            return Response({})

    url = mount(Rendered)
    field = keys_of(get(api, url))["POST"]
    headers = {**HTML, field["header"]: field["key"]}

    answers = [api(key=None, path=url, headers=headers) for _ in range(2)]

    assert [answer.status_code for answer in answers] == [201, 201]
    assert answers[1].headers["Idempotency-Replayed"] == "true"
    assert keys_of(answers[0])["POST"] != field


def test_R35_each_guarded_method_has_a_key_of_its_own(api, mount):
    class Some(Browsable):
        idempotency_methods = {"POST", "PUT"}

    keys = keys_of(get(api, mount(Some)))

    assert set(keys) == {"POST", "PUT"}
    assert keys["POST"]["key"] != keys["PUT"]["key"]


def test_R35_keys_keep_to_the_policy(api, mount, policy):
    policy(HTTP={"HEADER": "X-Key", "KEY_VALIDATOR": "uuid7", "STRICT_HEADER": True})

    field = keys_of(get(api, mount(Browsable)))["PATCH"]

    assert field["header"] == "X-Key"
    assert api(key=None, path=mount(Browsable), headers={"X-Key": field["key"]}).status_code == 201


@pytest.mark.parametrize("user", ["alice", None])
@pytest.mark.parametrize(
    "policy_fields",
    [{}, {"idempotency_scope": scopes.user}, {"idempotency_key_validator": scopes.anyone}],
    ids=["plain", "scope", "validator"],
)
def test_R2_where_no_key_is_required_none_is_in_the_way(api, mount, user, policy_fields):
    optional = type("Optional", (Browsable,), {"idempotency_required": False, **policy_fields})

    keys = keys_of(get(api, mount(optional), user=user))

    assert bool(keys) == (user is not None and not policy_fields)


def test_R13_an_unguarded_view_has_the_page_that_it_had(api, mount):
    class Unguarded(Browsable):
        idempotency_methods = {"DELETE"}
        http_method_names = ["get", "post"]

    assert keys_of(get(api, mount(Unguarded))) == {}


def test_R35_a_page_without_the_app_is_as_ever(api, mount, monkeypatch):
    monkeypatch.setattr(apps, "is_installed", lambda name: False)

    response = get(api, mount(Browsable))

    assert (response.status_code, keys_of(response)) == (200, {})
