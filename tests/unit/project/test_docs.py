"""What the documentation names exists, and what it says of names agrees with the code."""

from __future__ import annotations

import ast
import dataclasses
import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import get_commands, load_command_class
from django.db import connections
from django.test.utils import CaptureQueriesContext
from rest_framework.test import APIRequestFactory

import django_idempotency as idempotency
from django_idempotency import http, testing
from django_idempotency.http import problems, scopes
from django_idempotency.models import IdempotencyRecord
from django_idempotency.policy import KEEP_PRESETS, HTTPPolicy, Policy
from django_idempotency.stores.database import mariadb, postgresql, sqlite
from tests.pages import BLOCKS, DOCS, PAGES, ROOT, code_in, name_of, table_of

PACKAGE = ROOT / "django_idempotency"
MODES = "`joined`, `single`, `separate`"
PROBLEMS = {
    problem.code: problem
    for problem in vars(problems).values()
    if isinstance(problem, problems.Problem)
}

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
        # A class may have its tests from the store contract.
        contract = (ROOT / "django_idempotency/testing").glob("contract_*.py")
        functions = {
            node.name
            for source in (ROOT / path, *(contract if "::" in name else ()))
            for node in ast.walk(ast.parse(source.read_text()))
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
            others |= {
                "clock",
                "parent",
                "parent_record",
                "table",
                "task",
            }  # a fixture, a header, a command, a name
            problem = f"idempotency_{name}" in PROBLEMS
            assert problem or name in known | others, f"{name_of(page)}: idempotency_{name}"


def test_public_names_are_documented() -> None:
    page = (DOCS / "reference/api.md").read_text()
    documented = set(re.findall(r":: django_idempotency\.(\w+)$", page, re.MULTILINE))
    assert documented == set(idempotency.__all__)


@pytest.mark.parametrize("names", [http.__all__, scopes.__all__], ids=["http", "scopes"])
def test_names_for_views_are_documented(names: list[str]) -> None:
    page = (DOCS / "reference/api.md").read_text()
    directives = "\n".join(re.findall(r"^(?:\.\.|   :members:) .+", page, re.MULTILINE))
    assert [name for name in names if not re.search(rf"\b{name}\b", directives)] == []


def test_the_test_kit_is_documented() -> None:
    page = (DOCS / "reference/testing.md").read_text() + (
        DOCS / "howto/contract-http.md"
    ).read_text()
    assert [name for name in testing.__all__ if name not in page] == []


def test_keep_presets_are_documented() -> None:
    text = (DOCS / "howto/drf.md").read_text()
    presets = re.findall(r'^\| `"(\w+)"` \|', text, re.MULTILINE)
    assert tuple(presets) == KEEP_PRESETS


def test_columns_are_documented() -> None:
    rows = table_of(DOCS / "reference/database.md", "# The database table")
    columns = [field.column for field in IdempotencyRecord._meta.concrete_fields]
    assert [code_in(row[0]) for row in rows] == columns


def test_statements_are_documented() -> None:
    page = (DOCS / "reference/database.md").read_text()
    rows = table_of(DOCS / "reference/database.md", "## Statements per operation")
    assert len(rows) == 6
    operations = page.split("| operation | statements |")[1].split("\n\n")[0]
    documented = set(re.findall(r"`([A-Z_]+)`", operations))
    written = {
        name
        for module in (mariadb, postgresql, sqlite)
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, str)
    }
    assert documented == written


@pytest.mark.parametrize("column", [1, 2, 3], ids=["joined", "single", "separate"])
def test_statements_are_as_many_as_documented(
    transactional_db: None, settings: Any, column: int
) -> None:
    settings.IDEMPOTENCY = {"default": {}}
    vendor = connections["default"].display_name
    path = DOCS / "reference/database.md"
    rows = [row for row in table_of(path, "## Statements per operation") if vendor in row[0]]
    documented = [sum(map(int, re.findall(r"\d+", row[column]))) for row in rows]
    mode = ["joined", "single", "separate"][column - 1]

    counted = []
    for _ in ("a new key", "a duplicate"):
        with CaptureQueriesContext(connections["default"]) as queries:
            idempotency.run(lambda lease: 1, key="k", scope="tests", transaction=mode)
        ours = [query for query in queries if "idempotency_record" in query["sql"]]
        counted.append(len(ours))
    assert counted == documented


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


# The guarantees.


def test_every_guarantee_names_its_tests() -> None:
    page = DOCS / "guarantees.md"
    failures = [row[0] for row in table_of(page, "## Transaction mode by failure")]
    proofs = page.read_text().split("## The tests\n")[1].split("\n## ")[0]
    named: dict[str, set[str]] = {}
    for line in proofs.splitlines():
        if match := re.fullmatch(r"- (F\d+)", line):
            modes = named[match[1]] = set()
        elif match := re.fullmatch(r"  - (.+):", line):
            modes |= set(re.findall(r"`(\w+)`", match[1].replace("all modes", MODES)))
    assert list(named) == failures
    assert all(modes == {"joined", "single", "separate"} for modes in named.values())
