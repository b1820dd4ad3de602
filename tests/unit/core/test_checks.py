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

MEMORY = "django_idempotency.stores.memory.MemoryStore"

CASES = {
    "E001": {"fast": {}},
    "E002": {"default": {"LEESE": 5}},
    "E003": {"default": {"OPTIONS": {"using": "nowhere"}}},
    "E004": {"default": {"OPTIONS": {"using": "dummy"}}},
    "E005": {"default": {"HTTP": {"SCOPE": "shop.nonesuch.scope"}}},
    "W001": {"default": {"LEASE": 7200, "RETENTION": 3600}},
    "W002": {"default": {"BACKEND": MEMORY}},
}
# Those of views are in test_checks.py of tests/unit/http and of tests/unit/views.
IN_OTHER_MODULES = {
    *("W003", "E006", "E007", "E008", "E009", "W004", "W005", "W006", "W007"),
    *("E010", "E016", "W008", "W009", "W015"),  # Redis
    "E011",  # MySQL
    "W011",  # below
    *("E012", "E013", "E014", "W010", "W012"),  # tests/unit/http/test_checks.py
    "W013",  # below
    "W014",  # tests/unit/views/test_checks.py
    "E015",  # tests/unit/http/test_keyless.py
    *("E020", "E021", "E022", "E023", "E024", "W020", "W021", "W022"),  # DynamoDB
    *("E030", "E031", "W030", "W031", "W032", "W033", "W034", "W035", "W036"),  # Celery
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


@pytest.mark.parametrize("name", ["SCOPE", "ERROR_RENDERER", "REPLAY_CHECK", "FINGERPRINT"])
def test_E005_each_dotted_path_must_import(name):
    for dotted in ("nonesuch.scope", "scope", f"{__name__}.nonesuch"):
        [message] = messages(default={"HTTP": {name: dotted}})
        assert message.id == "django_idempotency.E005"
        assert f"IDEMPOTENCY['default']['HTTP']['{name}']" in message.msg
    assert messages(default={"HTTP": {name: f"{__name__}.takes_anything"}}) == []


def test_E005_what_a_path_names_must_be_called_with_a_request():
    scopes = "django_idempotency.http.scopes"
    for dotted, wrong in (
        (f"{scopes}.__name__", "is no callable"),
        ("uuid.uuid4", "must take (request), and uuid4() does not"),
    ):
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
class TestW011:
    def found(self, database):
        found = checks.run_checks(tags=["database"], databases=[database])
        return [(message.id, message.hint) for message in found]

    def execute(self, statement, *, using="other"):
        with connections[using].cursor() as cursor:
            cursor.execute(statement)

    def test_no_table(self):
        self.execute("ALTER TABLE idempotency_record RENAME TO another_table")
        with override_settings(IDEMPOTENCY={"default": {}, "far": {"OPTIONS": {"using": "other"}}}):
            [(number, hint)] = self.found("other")
        assert number == "django_idempotency.W011"
        assert "manage.py migrate --database other" in hint

    def test_a_column_is_missing(self):
        self.execute("ALTER TABLE idempotency_record RENAME COLUMN error TO another")
        with override_settings(IDEMPOTENCY={"default": {"OPTIONS": {"using": "other"}}}):
            assert [number for number, _ in self.found("other")] == ["django_idempotency.W011"]

    def test_migrated(self):
        assert self.found("default") == []

    def test_the_first_migrate_of_a_project_is_not_warned_of_itself(self):
        self.execute("ALTER TABLE idempotency_record RENAME TO another_table")
        self.execute("ALTER TABLE django_migrations RENAME TO other_migrations")
        with override_settings(IDEMPOTENCY={"default": {"OPTIONS": {"using": "other"}}}):
            assert self.found("other") == []


class NoScope(IdempotencyMixin, APIView):
    authentication_classes = []


class OwnScope(NoScope):
    def idempotency_scope(self, request):
        return "mine"


class TestE006:
    """R21: nobody is authenticated, and nothing else says whose key it is."""

    def check(self, settings, *views):
        urls = ModuleType("urls")
        nested = [path("nested/", include([path("", view) for view in views]))]
        urls.urlpatterns = nested
        settings.ROOT_URLCONF = urls
        return [(message.id, message.obj, bool(message.hint)) for message in check_scopes()]

    def test_R21_view_without_authentication_is_told_of_once(self, settings):
        found = self.check(settings, NoScope.as_view(), NoScope.as_view())
        assert found == [("django_idempotency.E006", NoScope, True)]

    def test_R21_scope_of_its_own_authentication_or_no_guard(self, settings):
        authenticated = NoScope.as_view(authentication_classes=[BasicAuthentication])
        plain = APIView.as_view(authentication_classes=[])
        views = (OwnScope.as_view(), authenticated, plain, lambda request: None)
        assert self.check(settings, *views) == []
        scope = "django_idempotency.http.scopes.anyone"
        settings.IDEMPOTENCY = {"default": {"HTTP": {"SCOPE": scope}}}
        assert self.check(settings, NoScope.as_view()) == []

    def test_the_views_of_the_tests_have_none(self):
        assert check_scopes() == []


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


def test_every_id_has_its_tests_here():
    assert set(ids_in_source()) == {*CASES, *IN_OTHER_MODULES}
