"""The documentation: its examples run, and what it names exists."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
import sys
import threading
import time
import unittest
from collections.abc import Callable, Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import CodeType, ModuleType, SimpleNamespace
from typing import Any
from urllib.error import HTTPError

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.core import checks
from django.core.management import get_commands, load_command_class
from django.db import connections
from django.db.utils import ConnectionHandler
from django.test import override_settings
from django.utils import timezone
from django.utils.module_loading import import_string
from rest_framework import serializers
from rest_framework.test import APIClient, APIRequestFactory, force_authenticate

import django_idempotency as idempotency
from django_idempotency.conf import stores
from django_idempotency.http import problems
from django_idempotency.models import IdempotencyRecord
from django_idempotency.policy import HTTPPolicy, Policy
from django_idempotency.records import State
from django_idempotency.stores import sql_postgresql, sql_sqlite
from tests.app.models import Payment

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PACKAGE = ROOT / "django_idempotency"
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    *sorted(path for path in DOCS.rglob("*.md") if "_build" not in path.parts),
]
PROBLEMS = {
    problem.code: problem
    for problem in vars(problems).values()
    if isinstance(problem, problems.Problem)
}
MARKER = re.compile(r"<!-- test: (.+) -->")


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, where it begins, and what its marker says."""

    page: Path
    line: int
    language: str
    marker: str
    text: str

    def compiled(self) -> CodeType:
        """Return its code, whose line numbers are those of the page."""
        return compile(
            "\n" * self.line + self.text,
            str(self.page),
            "exec",
            flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
            dont_inherit=True,
        )


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks_of(page: Path) -> list[Block]:
    found, marker = [], ""
    lines = iter(enumerate(page.read_text().splitlines(), start=1))
    for number, line in lines:
        if match := re.fullmatch(r"```(\S+).*", line):
            text: list[str] = []
            for _, inner in lines:
                if inner == "```":
                    break
                text.append(inner)
            found.append(Block(page, number, match[1], marker, "\n".join(text)))
        match = MARKER.fullmatch(line)
        marker = match[1] if match else ""
    return found


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
EXAMPLES = [block for block in BLOCKS if block.language == "python"]
PAGES_WITH_EXAMPLES = list(dict.fromkeys(block.page for block in EXAMPLES))
SETTINGS = [block for block in EXAMPLES if block.marker == "settings"]


def table_of(page: Path, heading: str) -> list[list[str]]:
    """Return the cells of the first table under a heading, without its head."""
    below = f"\n{page.read_text()}".split(f"\n{heading}\n", 1)[1]
    rows: list[list[str]] = []
    for line in below.splitlines():
        if line.startswith("|"):
            cells = re.split(r"(?<!\\)\|", line.strip()[1:-1])
            rows.append([cell.strip().replace("\\|", "|") for cell in cells])
        elif rows:
            break
    return rows[2:]


def code_in(cell: str) -> str:
    match = re.fullmatch(r"`([^`]+)`", cell)
    assert match, f"{cell} is not one piece of code"
    return match[1]


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
            assert idempotency.run(work, **call).result == "second"
            return "first"
        return "second"

    with pytest.raises(idempotency.LeaseLost):
        idempotency.run(work, **call)
    assert idempotency.run(work, **call).result == "second"
    assert len(outcomes) == 2


# Commands.


def commands() -> list[Any]:
    return [
        pytest.param(line[2:], id=f"{name_of(block.page)}: {line[2:]}")
        for block in BLOCKS
        if block.language == "console"
        for line in block.text.splitlines()
        if line.startswith("$ ")
    ]


@pytest.mark.parametrize("command", commands())
def test_commands_exist(command: str) -> None:
    words = command.split("#")[0].split()
    match words:
        case ["make", target]:
            assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
        case ["python", "manage.py", name, *options]:
            parser = load_command_class(get_commands()[name], name).create_parser("manage.py", name)
            parser.parse_args(options)
        case ["pip", "install", extras]:
            project = (ROOT / "pyproject.toml").read_text()
            for extra in re.findall(r"\w+", extras):
                assert re.search(rf"^{extra} = \[", project, re.MULTILINE), extra
        case ["curl", *_]:
            pass
        case _:
            pytest.fail(f"nothing is known of {command!r}")


# Links. Those between the pages of docs/ are Sphinx's to check, too: make docs.


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_to_files(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    relative = [link.partition("#")[0] for link in links if "://" not in link]
    missing = [link for link in relative if link and not (page.parent / link).is_file()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_tests_named_exist(page: Path) -> None:
    for path, name in re.findall(r"`(tests/[\w/]+\.py)::([\w:]+)`", page.read_text()):
        tree = ast.parse((ROOT / path).read_text())
        functions = {
            node.name
            for node in ast.walk(tree)
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        }
        assert name.rpartition("::")[2] in functions, f"{path}::{name}"


# The reference.


@pytest.mark.parametrize(
    ("heading", "policy"), [("## Policy", Policy), ("## HTTP policy", HTTPPolicy)]
)
def test_settings_are_documented_with_their_defaults(heading: str, policy: Any) -> None:
    rows = table_of(DOCS / "reference/settings.md", heading)
    documented = {
        code_in(name): eval(code_in(default), {"timedelta": timedelta}) for name, default, _ in rows
    }
    fields = {field.name.upper(): field.default for field in dataclasses.fields(policy)}
    assert documented == fields


def test_setting_names_on_other_pages_exist() -> None:
    known = {f.name for f in [*dataclasses.fields(Policy), *dataclasses.fields(HTTPPolicy)]}
    for page in PAGES:
        for name in re.findall(r"\bidempotency_([a-z_]+)\b(?= =|`|=|\(self)", page.read_text()):
            others = {"store", "actions", "function", "key", "record", "expires_at", "sweep"}
            problem = f"idempotency_{name}" in PROBLEMS
            assert problem or name in known | others, f"{name_of(page)}: idempotency_{name}"


def test_public_names_are_documented() -> None:
    page = (DOCS / "reference/api.md").read_text()
    documented = set(re.findall(r":: django_idempotency\.(\w+)$", page, re.MULTILINE))
    assert documented == set(idempotency.__all__)


def test_columns_are_documented() -> None:
    rows = table_of(DOCS / "reference/database.md", "# The database table")
    columns = [field.column for field in IdempotencyRecord._meta.concrete_fields]
    assert [code_in(row[0]) for row in rows] == columns


def test_statements_are_documented() -> None:
    page = (DOCS / "reference/database.md").read_text()
    rows = table_of(DOCS / "reference/database.md", "## Statements per operation")
    assert len(rows) == 4
    operations = page.split("| operation | statements |")[1].split("\n\n")[0]
    documented = set(re.findall(r"`([A-Z_]+)`", operations))
    written = {
        name
        for module in (sql_postgresql, sql_sqlite)
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, str)
    }
    assert documented == written


def test_checks_are_documented() -> None:
    source = "\n".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    ids = set(re.findall(r"django_idempotency\.[EW]\d{3}", source))
    rows = table_of(DOCS / "reference/operations.md", "## System checks")
    assert [code_in(row[0]) for row in rows] == sorted(ids)


def test_log_messages_are_documented() -> None:
    rows = table_of(DOCS / "reference/operations.md", "## Logger")
    logged = {
        (node.func.attr.replace("exception", "error").upper(), node.args[0].value)
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "logger"
        and isinstance(node.args[0], ast.Constant)
    }
    for level, message in logged:
        matching = [row for row in rows if row[0] == level and message.startswith(row[1])]
        assert len(matching) == 1, message
    assert len(rows) == len(logged)


# The problems.


@pytest.mark.parametrize("code", list(PROBLEMS))
def test_problem_has_a_page_that_agrees(code: str) -> None:
    page = DOCS / "problems" / f"{code}.md"
    problem = PROBLEMS[code]
    assert page.read_text().splitlines()[0] == f"# {problem.title}"
    members = {code_in(name): value for name, value in table_of(page, f"# {problem.title}")}
    assert members == {
        "code": f"`{code}`",
        "status": str(problem.status),
        "retryable": f"`{json.dumps(problem.retryable)}`",
        "safe_new_key": f"`{json.dumps(problem.safe_new_key)}`",
    }


def test_problems_are_listed() -> None:
    index = DOCS / "problems/index.md"
    answers = {True: "yes", False: "no"}
    assert table_of(index, "# Problems") == [
        [
            f"[{code}]({code}.md)",
            str(problem.status),
            answers[problem.retryable],
            answers[problem.safe_new_key],
        ]
        for code, problem in PROBLEMS.items()
    ]
    assert {page.stem for page in index.parent.glob("*.md")} == {"index", *PROBLEMS}


def test_problem_types_lead_to_the_pages() -> None:
    assert HTTPPolicy().documentation_url.endswith("/problems/")
    error = idempotency.KeyRequired()
    response = problems.problem_response(error, APIRequestFactory().get("/"), HTTPPolicy())
    page = json.loads(response.content)["type"].rpartition("/problems/")[2]
    assert (DOCS / "problems" / page.replace(".html", ".md")).is_file()
