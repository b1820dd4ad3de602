"""R35: which keys the pages of the browsable API bring for their forms."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from django.apps import apps
from rest_framework import generics, permissions
from rest_framework.renderers import AdminRenderer, BrowsableAPIRenderer, JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from django_idempotency.http import scopes
from tests.app.models import Effect
from tests.app.views import EffectSerializer
from tests.unit.http.api import Api, replayed
from tests.unit.http.views import BareView, GuardedView

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


def page_of(api: Api, path: str, user: str | None = "alice") -> Any:
    return api(key=None, method="GET", body="", path=path, headers=HTML, user=user)


@pytest.mark.parametrize("renderer", [BrowsableAPIRenderer, AdminRenderer])
def test_R35_the_key_of_a_page_is_taken_once(api, mount, renderer):
    class Rendered(GuardedView, generics.CreateAPIView[Effect]):
        queryset = Effect.objects.all()
        serializer_class = EffectSerializer
        renderer_classes = [JSONRenderer, renderer]

        def get(self, request: Request) -> Response:
            return Response({})

    url = mount(Rendered)
    field = keys_of(page_of(api, url))["POST"]
    headers = {**HTML, field["header"]: field["key"]}

    answers = [api(key=None, path=url, headers=headers) for _ in range(2)]

    assert [answer.status_code for answer in answers] == [201, 201]
    assert replayed(answers[1])
    assert keys_of(answers[0])["POST"] != field


def test_R13_R35_each_guarded_method_has_a_key_of_its_own(api, mount):
    of_two = type("Some", (Browsable,), {"idempotency_methods": {"POST", "PUT"}})
    members = {"idempotency_methods": {"DELETE"}, "http_method_names": ["get", "post"]}
    keys = keys_of(page_of(api, mount(of_two)))
    assert keys.keys() == {"POST", "PUT"}
    assert keys["POST"]["key"] != keys["PUT"]["key"]
    assert keys_of(page_of(api, mount(type("None", (Browsable,), members)))) == {}


def test_R35_keys_keep_to_the_policy(api, mount, policy):
    policy(HTTP={"HEADER": "X-Key", "KEY_VALIDATOR": "uuid7", "STRICT_HEADER": True})
    url = mount(Browsable)
    field = keys_of(page_of(api, url))["PATCH"]
    assert field["header"] == "X-Key"
    assert api(key=None, path=url, headers={"X-Key": field["key"]}).status_code == 201


def test_R2_where_no_key_is_required_none_is_in_the_way(api, mount):
    callables = ("idempotency_scope", scopes.user), ("idempotency_key_validator", scopes.anyone)
    for user, *members in (("alice",), (None,), *(("alice", given) for given in callables)):
        optional = type("Optional", (Browsable,), {"idempotency_required": False, **dict(members)})
        keys = keys_of(page_of(api, mount(optional), user))
        assert bool(keys) == (user is not None and not members)


def test_R35_a_page_without_the_app_is_as_ever(api, mount, monkeypatch):
    monkeypatch.setattr(apps, "is_installed", lambda name: False)
    response = page_of(api, mount(Browsable))
    assert (response.status_code, keys_of(response)) == (200, {})
