"""The examples of the documentation run, and do what the pages say."""

from __future__ import annotations

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
from types import ModuleType, SimpleNamespace
from typing import Any
from urllib.error import HTTPError

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.core import checks
from django.db import connections
from django.db.utils import ConnectionHandler
from django.test import override_settings
from django.utils import timezone
from django.utils.module_loading import import_string
from rest_framework import serializers
from rest_framework.test import APIClient, APIRequestFactory, force_authenticate

import django_idempotency as idempotency
from django_idempotency.conf import stores
from django_idempotency.models import IdempotencyRecord
from django_idempotency.records import State
from tests.app.models import Payment
from tests.pages import BLOCKS, ROOT, Block, blocks_of, code_in, name_of, table_of

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

    def add_module(name: str, **names: Any) -> ModuleType:
        module = ModuleType(name)
        vars(module).update(names)
        monkeypatch.setitem(sys.modules, name, module)
        return module

    add_module("shop")
    add_module("shop.models", Payment=Payment)
    add_module("shop.serializers", PaymentSerializer=PaymentSerializer)

    def run(name: str) -> SimpleNamespace:
        module = add_module("shop.page", gateway=Gateway())
        for block in blocks_of(ROOT / name):
            if block.language == "python" and block.marker != "settings":
                own = re.fullmatch(r"module=(\S+)", block.marker)
                assert own or not block.marker, f"{name}:{block.line}: what is {block.marker}?"
                _run(block, vars(add_module(own[1]) if own else module))
        settings.ROOT_URLCONF = "shop.page"
        return SimpleNamespace(**vars(module))

    return run


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
    assert set(languages) - directives == {"python", "console", "text"}
    assert languages["text"] == 2, "the main path, and a line of a crontab"


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
        else:
            assert name == "DATABASES"
            assert import_string(f"{value['default']['ENGINE']}.base.DatabaseWrapper")


def documented_database(engine: str) -> Block:
    [block] = [b for b in SETTINGS if f'"django.db.backends.{engine}"' in b.text]
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


def test_guide_to_testing_has_tests_that_pass(
    run_page: Callable[[str], SimpleNamespace], settings: Any
) -> None:
    run_page("docs/quickstart.md")
    settings.ROOT_URLCONF = urls = ModuleType("shop.urls")  # type: ignore[assignment]
    vars(urls)["urlpatterns"] = sys.modules["shop.page"].urlpatterns
    page = run_page("docs/howto/testing.md")
    settings.ROOT_URLCONF = urls
    Payment.objects.all().delete()  # those of the examples above
    suite = unittest.TestSuite()
    for case in (page.PaymentTests, page.CallTests):
        suite.addTests(unittest.defaultTestLoader.loadTestsFromTestCase(case))
    result = unittest.TestResult()
    suite.run(result)
    assert [text for _, text in [*result.errors, *result.failures]] == []
    assert result.testsRun == 3


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
            assert idempotency.run(work, **call).result == "second"
            return "first"
        return "second"

    with pytest.raises(idempotency.LeaseLost):
        idempotency.run(work, **call)
    assert idempotency.run(work, **call).result == "second"
    assert len(outcomes) == 2
