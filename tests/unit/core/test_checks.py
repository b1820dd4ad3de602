"""System checks: what `manage.py check` says of the setting, each with an id and a hint."""

from __future__ import annotations

import re
from collections import Counter
from types import ModuleType

import pytest
from django.core import checks
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import connections
from django.test import override_settings
from django.urls import include, path
from rest_framework.authentication import BasicAuthentication
from rest_framework.views import APIView

from django_idempotency.contrib.rest_framework import IdempotencyMixin
from django_idempotency.contrib.rest_framework.checks import check_scopes
from tests.services.processes import ROOT
from tests.unit.core.conftest import MEMORY

CASES = {
    "E001": {"fast": {}},
    "E002": {"default": {"LEESE": 5}},
    "E003": {"default": {"OPTIONS": {"using": "nowhere"}}},
    "E004": {"default": {"OPTIONS": {"using": "dummy"}}},
    "E005": {"default": {"HTTP": {"SCOPE": "shop.nonesuch.scope"}}},
    "W001": {"default": {"LEASE": 7200, "RETENTION": 3600}},
    "W002": {"default": {"BACKEND": MEMORY}},
}


@pytest.fixture
def dummy(monkeypatch):
    """A database of a vendor that the store has no statements for."""
    settings = {**connections.settings["default"], "ENGINE": "django.db.backends.dummy"}
    monkeypatch.setitem(connections.settings, "dummy", settings)
    yield
    if "dummy" in [connection.alias for connection in connections.all(initialized_only=True)]:
        del connections["dummy"]


def takes_anything(*arguments):
    return None


def messages(**aliases):
    with override_settings(IDEMPOTENCY=aliases):
        return checks.run_checks(tags=["idempotency"])


@pytest.mark.parametrize(("number", "setting"), CASES.items(), ids=CASES.keys())
def test_message(dummy, number, setting):
    [message] = messages(**setting)
    assert message.id == f"django_idempotency.{number}"
    assert message.hint
    assert isinstance(message, checks.Error if number.startswith("E") else checks.Warning)


def test_E005_each_dotted_path_must_import_what_is_called_with_a_request():
    for name in ("SCOPE", "ERROR_RENDERER", "REPLAY_CHECK", "FINGERPRINT"):
        for dotted in ("nonesuch.scope", "scope", f"{__name__}.nonesuch"):
            [message] = messages(default={"HTTP": {name: dotted}})
            assert message.id == "django_idempotency.E005"
            assert f"IDEMPOTENCY['default']['HTTP']['{name}']" in message.msg
        assert messages(default={"HTTP": {name: f"{__name__}.takes_anything"}}) == []
    scopes = "django_idempotency.http.scopes"
    uuid4 = "must take (request), and uuid4() does not"
    for dotted, wrong in ((f"{scopes}.__name__", "is no callable"), ("uuid.uuid4", uuid4)):
        [message] = messages(default={"HTTP": {"SCOPE": dotted}})
        assert message.id == "django_idempotency.E005"
        assert wrong in message.msg
    for dotted in (f"{scopes}.tenant_and_user", f"{scopes}.session_token", "os.urandom"):
        assert messages(default={"HTTP": {"SCOPE": dotted}}) == []


def test_E001_E002_say_what_to_write():
    for setting, written in (
        ({"LEASE": 30}, 'IDEMPOTENCY = {"default": {"LEASE": ...}}'),
        ({"REQUIRED": True}, 'IDEMPOTENCY = {"default": {"HTTP": {"REQUIRED": ...}}}'),
        ({"default": {}, "LEASE": 30}, 'IDEMPOTENCY = {"default": {"LEASE": ...}}'),
        ({"default": {"OPTIONS": {"alias": "other"}}}, "Did you mean 'using'?"),
        ({"default": {"OPTIONS": {"database": "other"}}}, "Did you mean 'using'?"),
        ({"default": {"HTTP": {"KEEP": lambda response: "keep"}}}, "(response, exception)"),
        ({"default": {"HTTP": {"SCOPE": lambda: "all"}}}, "scope must take (request)"),
        ({"default": {"DEADLINE": lambda context: 1}}, "deadline must take ()"),
    ):
        [message] = messages(**setting)
        assert message.id in ("django_idempotency.E001", "django_idempotency.E002")
        assert written in message.msg


def test_W013_setting_that_nothing_reads():
    for name, hint in (
        ("IDEMPOTENT", 'IDEMPOTENCY = {"default": {"LEASE": 60}}'),
        ("IDEMPOTENCE", "IDEMPOTENCY"),
        ("IDEMPOTECY", "IDEMPOTENCY"),
        ("IDEMPOTENCY_LEASE", 'Write IDEMPOTENCY = {"default": {"LEASE": ...}}.'),
        ("IDEMPOTENCY_REQUIRED", 'Write IDEMPOTENCY = {"default": {"HTTP": {"REQUIRED": ...}}}.'),
        ("IDEMPOTENCY_BACKEND", 'Write IDEMPOTENCY = {"default": {"BACKEND": ...}}.'),
    ):
        with override_settings(**{name: 30}):
            [message] = messages(default={})
        assert message.id == "django_idempotency.W013"
        assert name in message.msg
        assert hint in message.hint


@pytest.mark.django_db(databases=["default", "other"])
@pytest.mark.parametrize(
    ("renamed", "warned"),
    [
        (["idempotency_record RENAME TO another"], True),
        (["idempotency_record RENAME COLUMN error TO another"], True),
        (["idempotency_record RENAME TO another", "django_migrations RENAME TO others"], False),
        ([], False),
    ],
    ids=["no table", "no column", "the first migrate of a project", "migrated"],
)
def test_W011_what_has_not_been_migrated(renamed, warned):
    for change in renamed:
        with connections["other"].cursor() as cursor:
            cursor.execute(f"ALTER TABLE {change}")
    with override_settings(IDEMPOTENCY={"default": {}, "far": {"OPTIONS": {"using": "other"}}}):
        found = checks.run_checks(tags=["database"], databases=["other"])
    assert [message.id for message in found] == ["django_idempotency.W011"] * warned
    assert all("manage.py migrate --database other" in message.hint for message in found)


class NoScope(IdempotencyMixin, APIView):
    authentication_classes = []


class OwnScope(NoScope):
    def idempotency_scope(self, request):
        return "mine"


def test_E006_R21_view_without_authentication_or_a_scope_of_its_own(settings):
    """Nobody is authenticated, and nothing else says whose key it is: told of once."""

    def check(*views):
        urls = ModuleType("urls")
        urls.urlpatterns = [path("nested/", include([path("", view) for view in views]))]
        settings.ROOT_URLCONF = urls
        return [(message.id, message.obj, bool(message.hint)) for message in check_scopes()]

    assert check_scopes() == []
    found = check(NoScope.as_view(), NoScope.as_view())
    assert found == [("django_idempotency.E006", NoScope, True)]
    authenticated = NoScope.as_view(authentication_classes=[BasicAuthentication])
    plain = APIView.as_view(authentication_classes=[])
    assert check(OwnScope.as_view(), authenticated, plain, lambda request: None) == []
    scope = "django_idempotency.http.scopes.anyone"
    settings.IDEMPOTENCY = {"default": {"HTTP": {"SCOPE": scope}}}
    assert check(NoScope.as_view()) == []


def test_what_has_none(settings):
    assert messages(default={}, other={"OPTIONS": {"using": "other"}}) == []
    settings.DEBUG = True
    assert messages(default={"BACKEND": MEMORY}) == []  # W002 is for production
    del settings.IDEMPOTENCY
    assert checks.run_checks(tags=["idempotency"]) == []


def test_every_alias_is_looked_at():
    found = messages(default={"LEESE": 5}, a={"LEESE": 5}, b={"BACKEND": MEMORY}, c={})
    assert [message.id.split(".")[1] for message in found] == ["E002", "E002", "W002"]
    assert "IDEMPOTENCY['a']" in found[1].msg
    assert "Did you mean 'LEASE'?" in found[1].msg


def test_a_setting_of_another_type_is_an_error_and_no_traceback(settings):
    for value in ("memory", ["default"], 5):
        settings.IDEMPOTENCY = value
        found = [message.id for message in checks.run_checks(tags=["idempotency"])]
        assert found == ["django_idempotency.E001"]


def test_manage_py_check_refuses(settings):
    settings.IDEMPOTENCY = {"default": {"LEESE": 5}}
    with pytest.raises(SystemCheckError, match=r"django_idempotency\.E002"):
        call_command("check")


def ids_in_source():
    """The number of each message that the package's source can give."""
    sources = (file.read_text() for file in (ROOT / "django_idempotency").rglob("*.py"))
    pattern = r"""["']django_idempotency\.([A-Z]+\d+)["']"""
    return [number for source in sources for number in re.findall(pattern, source)]


def test_ids_are_unique_over_the_package_and_of_three_digits():
    assert [number for number, times in Counter(ids_in_source()).items() if times > 1] == []
    assert [number for number in ids_in_source() if not re.fullmatch(r"[EW]\d{3}", number)] == []
