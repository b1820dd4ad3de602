"""System checks: what `manage.py check` says of the setting, each with an id and a hint."""

from __future__ import annotations

import re
from collections import Counter
from types import ModuleType
from uuid import uuid4

import pytest
from django.core import checks
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import connections
from django.test import override_settings
from django.urls import include, path
from rest_framework.views import APIView

from django_idempotency.claims import ClaimRequest
from django_idempotency.contrib.rest_framework import IdempotencyMixin
from django_idempotency.exceptions import StoreError
from django_idempotency.http.checks import check_views
from django_idempotency.stores.database import DatabaseStore
from tests.services.processes import ROOT
from tests.unit.core.conftest import MEMORY

DYNAMODB = {
    "BACKEND": "django_idempotency.stores.dynamodb.DynamoDBStore",
    "OPTIONS": {"table_name": "records"},
}


@pytest.fixture
def dummy(monkeypatch):
    """A database of a vendor that the store has no statements for."""
    settings = {**connections.settings["default"], "ENGINE": "django.db.backends.dummy"}
    monkeypatch.setitem(connections.settings, "dummy", settings)
    yield
    if "dummy" in [connection.alias for connection in connections.all(initialized_only=True)]:
        del connections["dummy"]


def test_R61_vendor_without_statements_is_not_asked_again_at_once(dummy):
    with pytest.raises(StoreError, match="no statements for unknown") as refused:
        DatabaseStore(using="dummy").claim(ClaimRequest(uuid4(), "scope", "key"))
    assert refused.value.retry_after == 60


def takes_anything(*arguments):
    return None


def messages(**aliases):
    with override_settings(IDEMPOTENCY=aliases):
        return checks.run_checks(tags=["idempotency"])


def test_each_message_has_its_id_and_a_hint_and_says_what_to_write(dummy):
    with_lease = 'IDEMPOTENCY = {"default": {"LEASE": ...}}'
    for number, setting, written in (
        ("E001", {"fast": {}}, "alias 'default'"),
        ("E001", {"LEASE": 30}, with_lease),
        ("E001", {"REQUIRED": True}, 'IDEMPOTENCY = {"default": {"HTTP": {"REQUIRED": ...}}}'),
        ("E002", {"default": {}, "LEASE": 30}, with_lease),
        ("E002", {"default": {"OPTIONS": {"database": "other"}}}, "Did you mean 'using'?"),
        ("E002", {"default": {"HTTP": {"KEEP": lambda response: 1}}}, "(response, exception)"),
        ("E002", {"default": {"HTTP": {"SCOPE": lambda: "all"}}}, "scope must take (request)"),
        ("E002", {"default": {"DEADLINE": lambda context: 1}}, "deadline must take ()"),
        ("E003", {"default": {"OPTIONS": {"using": "nowhere"}}}, "nowhere"),
        ("E004", {"default": {"OPTIONS": {"using": "dummy"}}}, "no statements"),
        ("E026", {"default": {"OPTIONS": {"async_claim": True}}}, "no PostgreSQL database"),
        ("E027", {"default": {"OPTIONS": {"session_variables": ["app.tenant"]}}}, "no PostgreSQL"),
        ("E025", {"default": {"OPTIONS": {"prepare": True}}}, "prepares nothing"),
        ("E028", {"default": {**DYNAMODB, "MAX_STEPS_BYTES": 190 * 1024 + 1}}, "194560 bytes"),
        ("W001", {"default": {"LEASE": 7200, "RETENTION": 3600}}, ""),
        ("W002", {"default": {"BACKEND": MEMORY}}, ""),
        ("E002", {"default": {"SCOPE_QUOTA": 9}}, "Limit the keys of a scope"),
    ):
        [message] = messages(**setting)
        assert message.id == f"django_idempotency.{number}"
        assert isinstance(message, checks.Error if number.startswith("E") else checks.Warning)
        assert message.hint
        assert written in message.msg


def test_E028_journal_may_have_as_many_bytes_as_an_item_holds():
    """And on another store as many as the setting says."""
    assert messages(default={**DYNAMODB, "MAX_STEPS_BYTES": 190 * 1024}) == []
    assert messages(default={"MAX_STEPS_BYTES": 10 * 1024 * 1024}) == []


def test_E025_E026_E027_each_option_that_SQLite_cannot_have_is_told():
    options = {"prepare": True, "async_claim": True, "session_variables": ["app.tenant"]}
    for given, numbers in (
        (options, ["E025", "E026", "E027"]),
        ({**options, "prepare": None}, ["E026", "E027"]),
        ({**options, "using": "nowhere"}, ["E003"]),  # nothing says what it could have
    ):
        assert [it.id[-4:] for it in messages(default={"OPTIONS": given})] == numbers


def test_E005_each_dotted_path_must_import_what_is_called_with_a_request():
    def found(name, dotted):
        return [(it.id[-4:], it.msg) for it in messages(default={"HTTP": {name: dotted}})]

    for name in ("SCOPE", "ERROR_RENDERER", "REPLAY_CHECK", "FINGERPRINT"):
        for dotted in ("nonesuch.scope", "scope", f"{__name__}.nonesuch"):
            [(number, said)] = found(name, dotted)
            assert (number, f"IDEMPOTENCY['default']['HTTP']['{name}']" in said) == ("E005", True)
        assert found(name, f"{__name__}.takes_anything") == []
    scopes = "django_idempotency.http.scopes"
    uuid4 = "must take (request), and uuid4() does not"
    for dotted, wrong in ((f"{scopes}.__name__", "is no callable"), ("uuid.uuid4", uuid4)):
        [(number, said)] = found("SCOPE", dotted)
        assert (number, wrong in said) == ("E005", True)
    for dotted in (f"{scopes}.tenant_and_user", f"{scopes}.session_token", "os.urandom"):
        assert found("SCOPE", dotted) == []


def test_W013_setting_that_nothing_reads():
    for name, hint in (
        ("IDEMPOTENT", 'IDEMPOTENCY = {"default": {"LEASE": 60}}'),
        *((name, "IDEMPOTENCY") for name in ("IDEMPOTENCE", "IDEMPOTECY")),
        ("DJANGO_IDEMPOTENCY", 'IDEMPOTENCY = {"default": {"LEASE": 60}}'),
        ("IDEMPOTENCY_LEASE", 'Write IDEMPOTENCY = {"default": {"LEASE": ...}}.'),
        ("IDEMPOTENCY_REQUIRED", 'Write IDEMPOTENCY = {"default": {"HTTP": {"REQUIRED": ...}}}.'),
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


def test_E006_R21_view_without_a_scope_of_its_own_is_told_of_once(settings):
    class NoScope(IdempotencyMixin, APIView):
        authentication_classes = []

        def post(self, request):
            raise NotImplementedError

    class OwnScope(NoScope):
        def idempotency_scope(self, request):
            return "mine"

    urls = settings.ROOT_URLCONF = ModuleType("urls")
    views = [it.as_view() for it in (NoScope, NoScope, OwnScope)]
    urls.urlpatterns = [path("nested/", include([path("", view) for view in views]))]
    [message] = check_views()
    assert (message.id, message.obj, bool(message.hint)) == (
        "django_idempotency.E006",
        NoScope,
        True,
    )


def test_every_alias_is_looked_at_and_what_is_right_has_no_message(settings):
    found = messages(default={"LEESE": 5}, a={"LEESE": 5}, b={"BACKEND": MEMORY}, c={})
    assert [message.id.split(".")[1] for message in found] == ["E002", "E002", "W002"]
    assert "IDEMPOTENCY['a']" in found[1].msg
    assert "Did you mean 'LEASE'?" in found[1].msg
    assert messages(default={}, other={"OPTIONS": {"using": "other"}}) == []
    settings.DEBUG = True
    assert messages(default={"BACKEND": MEMORY}) == []  # W002 is for production


def test_manage_py_check_refuses_and_a_setting_of_another_type_is_no_traceback(settings):
    settings.IDEMPOTENCY = {"default": {"LEESE": 5}}
    with pytest.raises(SystemCheckError, match=r"django_idempotency\.E002"):
        call_command("check")
    for value in ("memory", ["default"], 5):
        settings.IDEMPOTENCY = value
        found = [message.id for message in checks.run_checks(tags=["idempotency"])]
        assert found == ["django_idempotency.E001"]
    del settings.IDEMPOTENCY
    assert checks.run_checks(tags=["idempotency"]) == []


def test_ids_are_unique_over_the_package_and_of_three_digits():
    pattern = r"""["']django_idempotency\.([A-Z]+\d+)["']"""
    sources = (file.read_text() for file in (ROOT / "django_idempotency").rglob("*.py"))
    ids = [number for source in sources for number in re.findall(pattern, source)]
    assert [number for number, times in Counter(ids).items() if times > 1] == []
    assert [number for number in ids if not re.fullmatch(r"[EW]\d{3}", number)] == []
