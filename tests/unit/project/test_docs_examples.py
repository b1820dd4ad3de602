"""The examples of the documentation run, and do what the pages say."""

from __future__ import annotations

import hashlib
import hmac
import inspect
import json
import re
import sys
import threading
import time
import unittest
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from urllib.error import HTTPError

import pytest
from asgiref.sync import async_to_sync
from celery import _state
from django.conf import settings as django_settings
from django.contrib.auth.models import User
from django.core import checks
from django.core.exceptions import BadRequest, PermissionDenied, SuspiciousOperation
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connections
from django.db.utils import ConnectionHandler
from django.http import Http404, HttpResponse
from django.test import Client, override_settings
from django.urls import path as url
from django.utils import timezone
from django.utils.module_loading import import_string
from rest_framework import serializers
from rest_framework.test import APIClient, APIRequestFactory, force_authenticate

import django_idempotency as idempotency
from django_idempotency.conf import stores
from django_idempotency.models import IdempotencyRecord
from django_idempotency.records import State
from django_idempotency.stores.database import DatabaseStore
from tests.app.models import Payment
from tests.pages import BLOCKS, DOCS, ROOT, Block, blocks_of, code_in, name_of, table_of

EXAMPLES = [block for block in BLOCKS if block.language == "python"]
PAGES_WITH_EXAMPLES = list(dict.fromkeys(block.page for block in EXAMPLES))
SETTINGS = [block for block in EXAMPLES if block.marker == "settings"]


# The project that the examples belong to.


class Gateway:
    """A payment provider that knows keys: the second call gets the first one's answer."""

    def __init__(self) -> None:
        self.charges: dict[str, dict[str, Any]] = {}
        self.charged = 0

    def charge(self, amount: int, *, idempotency_key: str) -> dict[str, Any]:
        if idempotency_key not in self.charges:
            self.charged += amount
            self.charges[idempotency_key] = {"id": f"ch_{len(self.charges)}", "amount": amount}
        return self.charges[idempotency_key]


class PaymentSerializer(serializers.ModelSerializer[Payment]):
    class Meta:
        model = Payment
        fields = ["id", "amount", "reference", "captured"]


@pytest.fixture
def run_page(
    transactional_db: None, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], SimpleNamespace]:
    """`run_page("docs/quickstart.md")`: run its examples in order, and return their names."""
    settings.IDEMPOTENCY = {"default": {}}
    # What a page makes a shared task is none for the apps of other tests.
    shared = set(_state._on_app_finalizers)
    monkeypatch.setattr(_state, "_on_app_finalizers", set(shared))

    def forget_tasks() -> None:
        _state._on_app_finalizers.intersection_update(shared)
        for app in list(_state._get_active_apps()):
            for task in [task for task in app.tasks if task.startswith("shop.")]:
                app.tasks.unregister(task)

    def add_module(name: str, **names: Any) -> ModuleType:
        module = ModuleType(name)
        vars(module).update(names)
        monkeypatch.setitem(sys.modules, name, module)
        return module

    add_module("shop")
    add_module("shop.models", Payment=Payment)
    add_module("shop.serializers", PaymentSerializer=PaymentSerializer)

    templates: dict[str, str] = {}

    def run(name: str) -> SimpleNamespace:
        forget_tasks()  # those of another page, or of this one before
        module = add_module("shop.page", gateway=Gateway())
        for block in blocks_of(ROOT / name):
            if block.language == "html+django":
                own = re.fullmatch(r"template=(\S+)", block.marker)
                assert own, f"{name}:{block.line}: which template is it?"
                templates[own[1]] = block.text
        settings.TEMPLATES = with_templates(templates)
        for block in blocks_of(ROOT / name):
            if block.language == "python" and block.marker != "settings":
                own = re.fullmatch(r"module=(\S+)", block.marker)
                assert own or not block.marker, f"{name}:{block.line}: what is {block.marker}?"
                _run(block, vars(add_module(own[1]) if own else module))
        settings.ROOT_URLCONF = "shop.page"
        return SimpleNamespace(**vars(module))

    return run


def with_templates(texts: dict[str, str]) -> list[dict[str, Any]]:
    """Return TEMPLATES of a project that has these templates, which are searched first."""
    [engine] = django_settings.TEMPLATES
    first = ("django.template.loaders.locmem.Loader", texts)
    loaders = [first, "django.template.loaders.app_directories.Loader"]
    rest = {name: value for name, value in engine.items() if name != "APP_DIRS"}
    return [{**rest, "OPTIONS": {**engine["OPTIONS"], "loaders": loaders}}]


def _run(block: Block, names: dict[str, Any]) -> None:
    code = block.compiled()
    if code.co_flags & inspect.CO_COROUTINE:

        async def main() -> None:
            await eval(code, names)

        async_to_sync(main)()
    else:
        exec(code, names)


@pytest.fixture
def alice(transactional_db: None) -> User:
    return User.objects.create(username="alice")


@pytest.fixture
def post(alice: User) -> Callable[..., Any]:
    """Post to a view, or to an action of a ViewSet, as alice and with a key."""

    def post(
        view: Any, payload: Any, *, key: str = "key-1", user: User = alice, **fields: str
    ) -> Any:
        headers = {"Idempotency-Key": key, **{k.replace("_", "-"): v for k, v in fields.items()}}
        request = APIRequestFactory().post("/", payload, format="json", headers=headers)
        force_authenticate(request, alice)
        return view.as_view({"post": "create"})(request)

    return post


COFFEE = {"amount": 1250, "reference": "coffee"}


# The examples.


@pytest.mark.parametrize("page", [name_of(page) for page in PAGES_WITH_EXAMPLES])
def test_examples_run(run_page: Callable[[str], SimpleNamespace], page: str) -> None:
    run_page(page)


def test_few_blocks_do_not_run() -> None:
    languages = Counter(block.language for block in BLOCKS)
    directives = {"{toctree}", "{eval-rst}", "{literalinclude}"}
    assert set(languages) - directives == {"python", "console", "html+django", "text"}
    assert languages["text"] == 4, "the main path, a line of a crontab, two of redis-cli"


@pytest.mark.parametrize("block", SETTINGS, ids=lambda b: f"{name_of(b.page)}:{b.line}")
def test_settings_are_what_a_project_may_have(
    run_page: Callable[[str], SimpleNamespace], block: Block
) -> None:
    run_page(name_of(block.page))
    names: dict[str, Any] = {}
    exec(block.compiled(), names)
    given = {name: value for name, value in names.items() if name.isupper()}
    assert given, "a block of settings that sets nothing"

    for name, value in given.items():
        if name == "IDEMPOTENCY":
            with override_settings(IDEMPOTENCY=value):
                assert checks.run_checks(tags=["idempotency"]) == []
                assert all(stores.configured(alias).store for alias in stores)
                if dotted := stores.configured("default").http_policy.scope:
                    assert callable(import_string(dotted))
        elif name == "INSTALLED_APPS":
            assert "django_idempotency" in value
        elif name == "MIDDLEWARE":
            with override_settings(MIDDLEWARE=value):
                assert checks.run_checks(tags=["idempotency"]) == []
                assert all(callable(import_string(dotted)) for dotted in value)
        elif name == "CELERY_BEAT_SCHEDULE":
            assert {import_string(entry["task"]).name for entry in value.values()} == {
                "django_idempotency.tasks.sweep_expired"
            }
        elif name.startswith("CORS_"):
            assert {"CORS_ALLOW_HEADERS", "CORS_EXPOSE_HEADERS"} <= set(given)
        elif name == "LOGGING":
            assert set(value["loggers"]) == {"django_idempotency"}
            assert all(callable(import_string(h["class"])) for h in value["handlers"].values())
        else:
            assert name == "DATABASES"
            assert import_string(f"{value['default']['ENGINE']}.base.DatabaseWrapper")


def documented_database(engine: str) -> Block:
    blocks = [b for b in SETTINGS if b.page.name == "databases.md"]
    [block] = [b for b in blocks if f'"django.db.backends.{engine}"' in b.text]
    return block


def connect(block: Block) -> Any:
    """Return a connection with the documented settings to the database of the tests."""
    names: dict[str, Any] = {}
    exec(block.compiled(), names)
    documented, ours = names["DATABASES"]["default"], connections["default"].settings_dict
    where = {key: ours[key] for key in ("NAME", "HOST", "PORT", "USER", "PASSWORD")}
    return ConnectionHandler({"default": {**documented, **where}})["default"]


@pytest.mark.leg("postgres18", "postgres16")
def test_R65_server_takes_the_keepalive_settings(transactional_db: None) -> None:
    block = documented_database("postgresql")
    asked = dict(re.findall(r"-c (\w+)=(\w+)", block.text))
    described = [code_in(row[0]) for row in table_of(block.page, "### Dead hosts")]
    connection = connect(block)
    try:
        with connection.cursor() as cursor:
            found = {}
            for name in described:
                cursor.execute(f"SHOW {name}")
                [found[name]] = cursor.fetchone()
    finally:
        connection.close()
        connection.close_pool()
    assert len(asked) == 4
    assert found == {**found, **asked}


@pytest.mark.leg("sqlite")
def test_SQLite_takes_the_settings(transactional_db: None) -> None:
    connection = connect(documented_database("sqlite3"))
    try:
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA journal_mode")
            [mode] = cursor.fetchone()
            cursor.execute("PRAGMA busy_timeout")
            [timeout] = cursor.fetchone()
            cursor.execute("PRAGMA journal_mode=DELETE")
    finally:
        connection.close()
    assert (mode, timeout) == ("wal", 20_000)


def test_README_view_pays_once(
    run_page: Callable[[str], SimpleNamespace], post: Callable[..., Any]
) -> None:
    page = run_page("README.md")
    before = Payment.objects.count()
    first = post(page.PaymentViewSet, COFFEE)
    again = post(page.PaymentViewSet, COFFEE)
    assert first.status_code == 201
    assert again.headers["Idempotency-Replayed"] == "true"
    assert again.content == first.content
    assert Payment.objects.count() == before + 1


def test_quickstart_answers_as_its_table_says(
    run_page: Callable[[str], SimpleNamespace], alice: User
) -> None:
    run_page("docs/quickstart.md")
    client, bob = APIClient(), User.objects.create(username="bob")

    def send(user: User, payload: Any = COFFEE, **headers: str) -> Any:
        client.force_authenticate(user)
        return client.post("/payments/", payload, headers=headers)

    key = {"Idempotency-Key": '"8e03978e-40d5-43e8-bc93-6894a57f9324"'}
    first, again = send(alice, **key), send(alice, **key)
    assert (first.status_code, again.status_code) == (201, 201)
    assert (again.content, again.headers["Idempotency-Replayed"]) == (first.content, "true")
    other = send(alice, {**COFFEE, "amount": 9900}, **key)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")
    missing = send(alice)
    assert (missing.status_code, missing.json()["code"]) == (400, "idempotency_key_missing")
    bobs = send(bob, **key)
    assert bobs.status_code == 201
    assert "Idempotency-Replayed" not in bobs.headers


def test_guide_to_DRF_guards_create_and_capture_alone(
    run_page: Callable[[str], SimpleNamespace], post: Callable[..., Any], alice: User
) -> None:
    view = run_page("docs/howto/drf.md").PaymentViewSet
    payment = json.loads(post(view, COFFEE).content)

    def request(method: str, action: str, key: str) -> Any:
        sent = getattr(APIRequestFactory(), method)("/", {}, headers={"Idempotency-Key": key})
        force_authenticate(sent, alice)
        return view.as_view({method: action}, **vars(view.capture).get("kwargs", {}))(
            sent, pk=payment["id"]
        )

    first, again = request("post", "capture", "key-2"), request("post", "capture", "key-2")
    assert json.loads(first.content)["captured"] is True
    assert again.headers["Idempotency-Replayed"] == "true"
    record = IdempotencyRecord.objects.get(key="key-2")
    assert record.attempts == 1
    assert request("delete", "destroy", "key-3").status_code == 204
    assert not IdempotencyRecord.objects.filter(key="key-3").exists()


def test_guide_to_DRF_takes_methods_for_callables(
    run_page: Callable[[str], SimpleNamespace], post: Callable[..., Any], alice: User
) -> None:
    view = run_page("docs/howto/drf.md").TransferViewSet
    assert post(view, COFFEE, X_Branch="north").status_code == 201
    assert IdempotencyRecord.objects.get().scope == f"branch:north:{alice.pk}"
    refused = post(view, COFFEE, X_Branch="north")
    assert (refused.status_code, json.loads(refused.content)["code"]) == (403, "replay_refused")
    assert post(view, COFFEE, X_Branch="south").status_code == 201


def test_guide_to_DRF_releases_402(
    run_page: Callable[[str], SimpleNamespace], post: Callable[..., Any]
) -> None:
    page = run_page("docs/howto/drf.md")

    class Poor(page.StrictViewSet):  # type: ignore[name-defined, misc]
        def create(self, request: Any) -> Any:
            return page.Response({}, status=request.data["status"])

    assert post(Poor, {"status": 402}).status_code == 402
    assert IdempotencyRecord.objects.get().state == State.RELEASED
    assert post(Poor, {"status": 409}).status_code == 409
    assert IdempotencyRecord.objects.get().state == State.COMPLETED


def test_guide_to_scopes_keeps_tenants_apart(
    run_page: Callable[[str], SimpleNamespace], post: Callable[..., Any]
) -> None:
    view = run_page("docs/quickstart.md").PaymentViewSet
    run_page("docs/howto/scope.md")
    scoped = {"default": {"HTTP": {"SCOPE": "shop.scopes.by_tenant_and_user"}}}
    with override_settings(IDEMPOTENCY=scoped):
        answers = [post(view, COFFEE, X_Tenant=tenant) for tenant in ("acme", "apex", "acme")]
        nobodys = post(view, COFFEE)
    replayed = ["Idempotency-Replayed" in answer.headers for answer in answers]
    assert replayed == [False, False, True]
    assert (nobodys.status_code, json.loads(nobodys.content)["code"]) == (400, "scope_missing")


def settings_of(page: str) -> dict[str, Any]:
    """Return what the blocks of settings on a page set."""
    names: dict[str, Any] = {}
    for block in SETTINGS:
        if name_of(block.page) == page:
            exec(block.compiled(), names)
    return {name: value for name, value in names.items() if name.isupper()}


@pytest.fixture
def client_of_alice(alice: User) -> Client:
    client = Client()
    client.force_login(alice)
    return client


def sent_twice(client: Client, path: str, data: Any = None, **arguments: Any) -> list[Any]:
    headers = {"Idempotency-Key": "key-1", **arguments.pop("headers", {})}
    return [client.post(path, data, headers=headers, **arguments) for _ in range(2)]


def replays(responses: list[Any]) -> list[bool]:
    return ["Idempotency-Replayed" in response.headers for response in responses]


@pytest.mark.parametrize("path", ["/pay/", "/refund/", "/orders/", "/capture/"])
def test_guide_to_views_pays_once(
    run_page: Callable[[str], SimpleNamespace], client_of_alice: Client, path: str
) -> None:
    run_page("docs/howto/views.md")

    answers = sent_twice(client_of_alice, path, {"amount": 5})
    keyless = client_of_alice.post(path, {"amount": 5})

    assert [answer.status_code for answer in answers] == [201, 201]
    assert answers[0].content == answers[1].content
    assert replays(answers) == [False, True]
    assert (keyless.status_code, keyless.json()["code"]) == (400, "idempotency_key_missing")
    assert Payment.objects.count() == 1


@pytest.mark.parametrize("key", ["key-1", None])
def test_R57_R90_guide_to_transactions_says_what_survives_a_refusal(
    run_page: Callable[[str], SimpleNamespace], client_of_alice: Client, key: str | None
) -> None:
    run_page("docs/howto/transaction.md")
    headers = {"Idempotency-Key": key} if key else {}

    answers = [
        client_of_alice.post("/unlock/", {"pin": str(pin)}, headers=headers) for pin in range(5)
    ]

    assert [answer.status_code for answer in answers] == [403, 403, 403, 403, 423]


@pytest.mark.parametrize("keep", ["default", "success", "stripe"])
@pytest.mark.parametrize(
    "error", [Http404, PermissionDenied, BadRequest, SuspiciousOperation, KeyError]
)
def test_guide_to_views_says_what_becomes_of_an_exception(
    run_page: Callable[[str], SimpleNamespace],
    client_of_alice: Client,
    keep: str,
    error: type[Exception],
) -> None:
    page = run_page("docs/howto/views.md")

    def failing(request: Any) -> Any:
        Payment.objects.create(amount=1, reference="failing")
        raise error

    vars(sys.modules["shop.page"])["urlpatterns"].append(
        url("failing/", page.idempotent(keep=keep)(failing))
    )
    client_of_alice.raise_request_exception = False

    answers = sent_twice(client_of_alice, "/failing/")

    path = DOCS / "howto/views.md"
    rows = table_of(path, "## What becomes of an exception")
    [row] = [row for row in rows if f"`{error.__name__}`" in row[0]] or rows[1:]
    documented = {"default": row[1], "success": row[2], "stripe": "completed"}[keep]
    assert documented.startswith(IdempotencyRecord.objects.get().state.lower())
    assert replays(answers) == [False, keep == "stripe"]
    assert not Payment.objects.exists()


def test_guide_to_the_middleware_pays_once(
    run_page: Callable[[str], SimpleNamespace], client_of_alice: Client, settings: Any
) -> None:
    run_page("docs/howto/middleware.md")
    settings.MIDDLEWARE = settings_of("docs/howto/middleware.md")["MIDDLEWARE"]

    answers = sent_twice(client_of_alice, "/pay/", {"amount": 5})
    keyless = [client_of_alice.post("/pay/", {"amount": 5}) for _ in range(2)]

    assert replays(answers) == [False, True]
    assert replays(keyless) == [False, False]
    assert Payment.objects.count() == 3


def key_in(page: Any) -> str:
    [key] = re.findall(r'name="idempotency_key" value="(.+?)"', page.content.decode())
    return str(key)


def test_guide_to_forms_answers_as_its_table_says(
    run_page: Callable[[str], SimpleNamespace],
) -> None:
    run_page("docs/howto/forms.md")
    visitor = Client(headers={"Accept": "text/html,*/*;q=0.8"})
    form = {**COFFEE, "idempotency_key": key_in(visitor.get("/checkout/"))}

    clicks = [visitor.post("/checkout/", form) for _ in range(2)]
    changed = visitor.post("/checkout/", {**form, "amount": 9900})
    other_tab = {**COFFEE, "idempotency_key": key_in(visitor.get("/checkout/"))}
    submitted = visitor.post("/checkout/", other_tab)
    mistaken = {"amount": "much", "idempotency_key": key_in(visitor.get("/checkout/"))}
    again = visitor.post("/checkout/", mistaken)
    corrected = visitor.post("/checkout/", {**COFFEE, "idempotency_key": key_in(again)})

    assert [click.headers["Location"] for click in clicks] == 2 * [clicks[0].headers["Location"]]
    assert replays(clicks) == [False, True]
    assert changed.status_code == 422
    assert '<a href="/checkout/">Open the form again</a>' in changed.content.decode()
    assert submitted.status_code == 302
    assert again.status_code == 200
    assert corrected.status_code == 302
    assert Payment.objects.count() == 3


@pytest.fixture
def duplicate_waits(run_page: Callable[[str], SimpleNamespace], settings: Any) -> threading.Event:
    """Set when somebody has looked at a record, and has waited for a second look."""
    waits = threading.Event()
    seen = set()

    class Watched(DatabaseStore):
        def claim(self, request: Any) -> Any:
            if request.token in seen:
                waits.set()
            seen.add(request.token)
            return super().claim(request)

    vars(sys.modules["shop"])["Watched"] = Watched
    settings.IDEMPOTENCY = {"default": {"BACKEND": "shop.Watched"}}
    return waits


def test_guide_to_waiting_gives_a_duplicate_the_answer(
    run_page: Callable[[str], SimpleNamespace], duplicate_waits: threading.Event
) -> None:
    page = run_page("docs/howto/waiting.md")
    results: list[Any] = []

    def duplicate() -> None:
        try:
            results.append(page.book("order-1"))
        finally:
            connections.close_all()

    thread = threading.Thread(target=duplicate)

    def work(lease: Any) -> str:
        thread.start()
        assert duplicate_waits.wait(10)
        return "the first answer"

    try:
        idempotency.run(work, key="order-1", scope="billing", transaction="separate")
    finally:
        thread.join(10)

    assert results == ["the first answer"]


def test_guide_to_uploads_receives_once(
    run_page: Callable[[str], SimpleNamespace], client_of_alice: Client, settings: Any
) -> None:
    run_page("docs/howto/uploads.md")
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 1000

    def uploaded() -> Any:
        file = SimpleUploadedFile("a.txt", b"x" * 5000)
        return client_of_alice.post(
            "/upload/", {"file": file}, headers={"Idempotency-Key": "key-1"}
        )

    def put(size: int, key: str) -> Any:
        return client_of_alice.put(
            "/files/a.bin",
            b"x" * size,
            content_type="application/octet-stream",
            headers={"Idempotency-Key": key},
        )

    assert replays([uploaded(), uploaded()]) == [False, True]
    for key, size in {"small": 10, "large": 100_000}.items():
        first, again = put(size, key), put(size, key)
        assert first.json() == again.json() == {"name": "a.bin", "bytes": size}
        assert replays([first, again]) == [False, True]
        assert put(size + 1, key).status_code == 422


def test_guide_to_uploads_compares_the_digest(
    run_page: Callable[[str], SimpleNamespace], post: Callable[..., Any]
) -> None:
    page = run_page("docs/howto/uploads.md")

    class Digests(page.UploadView):  # type: ignore[name-defined, misc]
        def post(self, request: Any) -> Any:
            return HttpResponse(status=204)

        @classmethod
        def as_view(cls, actions: Any) -> Any:
            return super().as_view()

    answers = [post(Digests, {"n": n}, Content_Digest="one") for n in range(2)]

    assert replays(answers) == [False, True]
    assert post(Digests, {}, Content_Digest="two").status_code == 422


@pytest.mark.parametrize("path", ["/events/", "/events-by-body/"])
def test_guide_to_webhooks_takes_an_event_once(
    run_page: Callable[[str], SimpleNamespace], path: str
) -> None:
    page = run_page("docs/howto/webhooks.md")
    provider = Client(enforce_csrf_checks=True)
    body = json.dumps({"id": "evt-1", "order": "order-1", "amount": 5}).encode()
    signature = hmac.new(page.SECRET, body, hashlib.sha256).hexdigest()

    def deliver(signature: str) -> Any:
        headers = {"X-Event-Id": "evt-1", "X-Signature": signature}
        return provider.post(path, body, content_type="application/json", headers=headers)

    statuses = [deliver(given).status_code for given in (signature, signature, "forged")]

    assert statuses == [204, 204, 403]
    assert Payment.objects.count() == 1


def test_CORS_settings_are_enough(settings: Any, tmp_path: Path) -> None:
    given = settings_of("docs/howto/clients.md")
    (tmp_path / "corsheaders").mkdir()
    (tmp_path / "corsheaders/__init__.py").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        with override_settings(INSTALLED_APPS=[*settings.INSTALLED_APPS, "corsheaders"]):
            without = {message.id for message in checks.run_checks(tags=["idempotency"])}
            with override_settings(**given):
                found = [message.id for message in checks.run_checks(tags=["idempotency"])]

    assert {"django_idempotency.W006", "django_idempotency.W007"} <= without
    assert not {"django_idempotency.W006", "django_idempotency.W007"} & set(found)


def test_guide_to_testing_has_tests_that_pass(
    run_page: Callable[[str], SimpleNamespace], settings: Any
) -> None:
    run_page("docs/quickstart.md")
    settings.ROOT_URLCONF = urls = ModuleType("shop.urls")  # type: ignore[assignment]
    vars(urls)["urlpatterns"] = sys.modules["shop.page"].urlpatterns
    for name in ("docs/howto/forms.md", "docs/howto/views.md"):
        vars(urls)["urlpatterns"] += run_page(name).urlpatterns
    page = run_page("docs/howto/testing.md")
    settings.ROOT_URLCONF = urls
    Payment.objects.all().delete()  # those of the examples above
    suite = unittest.TestSuite()
    for case in (page.PaymentTests, page.CheckoutTests, page.RefundTests, page.CallTests):
        suite.addTests(unittest.defaultTestLoader.loadTestsFromTestCase(case))
    result = unittest.TestResult()
    suite.run(result)
    assert [text for _, text in [*result.errors, *result.failures]] == []
    assert result.testsRun == 5


@pytest.fixture
def scripted_server() -> Iterator[Callable[[list[Any]], Any]]:
    """Start a server that gives the answers of a list, one after the other."""
    servers = []

    def start(answers: list[tuple[int, dict[str, str], Any]]) -> SimpleNamespace:
        seen: list[tuple[str, bytes]] = []
        left = iter(answers)

        class Scripted(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                seen.append((self.headers["Idempotency-Key"], body))
                status, fields, payload = next(left)
                if status:
                    self.send_response(status)
                    for name, value in fields.items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(json.dumps(payload).encode())

            def log_message(self, *args: Any) -> None:
                pass

        server = HTTPServer(("127.0.0.1", 0), Scripted)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        servers.append((server, thread))
        return SimpleNamespace(url=f"http://127.0.0.1:{server.server_port}/", seen=seen)

    yield start
    for server, thread in servers:
        server.shutdown()
        server.server_close()
        thread.join()


PROBLEM = {"Content-Type": "application/problem+json"}


def test_client_retries_with_one_key_until_there_is_an_answer(
    run_page: Callable[[str], SimpleNamespace],
    scripted_server: Callable[[list[Any]], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    page = run_page("docs/howto/clients.md")
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    server = scripted_server(
        [
            (0, {}, None),  # the connection breaks
            (503, {**PROBLEM, "Retry-After": "3"}, {"retryable": True}),
            (409, {**PROBLEM, "Retry-After": "30"}, {"retryable": True}),
            (500, {}, {}),
            (201, {}, {"id": 1}),
        ]
    )
    assert page.post(server.url, COFFEE) == (201, b'{"id": 1}')
    assert len(server.seen) == 5
    assert len(set(server.seen)) == 1
    assert slept[1] >= 3
    assert slept[2] == 30


@pytest.mark.parametrize(
    "answer",
    [(422, PROBLEM, {"retryable": False}), (409, {}, {"detail": "sold out"}), (404, {}, {})],
    ids=lambda answer: str(answer[0]),
)
def test_client_does_not_retry_what_is_an_answer(
    run_page: Callable[[str], SimpleNamespace],
    scripted_server: Callable[[list[Any]], Any],
    answer: Any,
) -> None:
    page = run_page("docs/howto/clients.md")
    server = scripted_server([answer])
    with pytest.raises(HTTPError) as error:
        page.post(server.url, COFFEE)
    error.value.close()
    assert len(server.seen) == 1


def test_operator_releases_a_stale_record(run_page: Callable[[str], SimpleNamespace]) -> None:
    page = run_page("docs/howto/records.md")
    call = {"key": "k", "scope": "tests", "transaction": "separate", "on_stale": "refuse"}
    outcomes = []

    def work(lease: Any) -> str:
        first = not outcomes
        outcomes.append(lease)
        if first:
            assert page.release(lease.record_id, lease.fencing_token) is False, "a live lease"
            past = timezone.now() - timedelta(seconds=1)
            IdempotencyRecord.objects.update(lease_until=past)
            with pytest.raises(idempotency.InProgress) as stale:
                idempotency.run(work, **call)
            assert stale.value.stale
            assert page.release(lease.record_id, lease.fencing_token - 1) is False
            assert page.release(lease.record_id, lease.fencing_token) is True
            assert IdempotencyRecord.objects.get().epoch == lease.fencing_token + 1
            assert IdempotencyRecord.objects.get().token != lease.token
            assert page.complete(lease.record_id, lease.fencing_token + 1, "x") is False, "released"
            assert idempotency.run(work, **call).result == "second"
            return "first"
        return "second"

    with pytest.raises(idempotency.LeaseLost):
        idempotency.run(work, **call)
    assert idempotency.run(work, **call).result == "second"
    assert len(outcomes) == 2


# The loops of consumers.


class FakeQueue:
    """SQS as boto3 has it: what nobody deletes is delivered again, under another receipt."""

    def __init__(self, *bodies: str) -> None:
        self.left = {f"m-{number}": body for number, body in enumerate(bodies)}
        self.deliveries = 0

    def receive_message(self, **asked: Any) -> dict[str, Any]:
        self.deliveries += 1
        return {
            "Messages": [
                {"MessageId": name, "Body": body, "ReceiptHandle": f"{self.deliveries}:{name}"}
                for name, body in self.left.items()
            ]
        }

    def delete_message(self, *, QueueUrl: str, ReceiptHandle: str) -> None:
        del self.left[ReceiptHandle.partition(":")[2]]


def test_loop_over_SQS_books_each_message_once(
    run_page: Callable[[str], SimpleNamespace], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = run_page("docs/howto/events.md")
    queue = FakeQueue("sqs-1", "sqs-2")
    with monkeypatch.context() as patch:
        patch.setattr(queue, "delete_message", lambda **given: None)  # a consumer that dies there
        page.consume(queue, "url")

    page.consume(queue, "url")

    assert queue.left == {}
    assert Payment.objects.filter(reference__startswith="sqs-").count() == 2


def test_loop_over_Kafka_books_each_offset_once(
    run_page: Callable[[str], SimpleNamespace],
) -> None:
    page = run_page("docs/howto/events.md")
    messages = [
        SimpleNamespace(topic="orders", partition=0, offset=number, value=f"kafka-{number}")
        for number in range(2)
    ]
    commits: list[int] = []

    class Consumer(list[Any]):
        def commit(self) -> None:
            commits.append(len(commits))

    page.poll(Consumer(messages))
    page.poll(Consumer(messages))  # after a rebalance

    assert len(commits) == 4
    assert Payment.objects.filter(reference__startswith="kafka-").count() == 2


def test_callback_of_AMQP_books_each_message_once_and_hands_back_what_is_under_way(
    run_page: Callable[[str], SimpleNamespace],
) -> None:
    page = run_page("docs/howto/events.md")
    told: list[str] = []
    channel = SimpleNamespace(
        basic_ack=lambda tag: told.append("ack"),
        basic_nack=lambda tag, requeue: told.append(f"nack, requeue={requeue}"),
    )
    method, properties = SimpleNamespace(delivery_tag=1), SimpleNamespace(message_id="a-1")

    for _ in range(2):
        page.callback(channel, method, properties, b"amqp-1")

    def meanwhile(lease: Any) -> None:
        other = SimpleNamespace(message_id="a-2")
        page.callback(channel, method, other, b"amqp-2")

    idempotency.run(
        meanwhile,
        key="a-2",
        scope="orders-exchange",
        payload={"message_id": "a-2", "body": b"amqp-2"},
        operation=f"{page.__name__}.on_delivery",
        transaction="separate",
    )

    assert told == ["ack", "ack", "nack, requeue=True"]
    assert Payment.objects.filter(reference__startswith="amqp-").count() == 1
