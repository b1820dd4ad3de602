"""What the documentation names exists, and what it says of names agrees with the code."""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib.util
import json
import re
import shlex
import sys

import pytest
from django.core.management import get_commands, load_command_class
from django.db import connections
from django.test.utils import CaptureQueriesContext
from rest_framework.test import APIRequestFactory

import django_idempotency as idempotency
from django_idempotency import http, logs, signals, testing
from django_idempotency.exceptions.refusals import REFUSALS
from django_idempotency.http import problems, scopes
from django_idempotency.models import IdempotencyRecord
from django_idempotency.policy import KEEP_PRESETS, HTTPPolicy, Policy
from django_idempotency.stores.database.statements import DIALECTS
from tests.pages import BLOCKS, DOCS, PAGES, ROOT, code_in, name_of, table_of

REFERENCE = DOCS / "reference"
MODES = ["joined", "single", "separate"]
PROBLEMS = {problem.code: problem for problem in REFUSALS}
COMMANDS = {
    f"{name_of(block.page)}: {line[2:]}": line[2:]
    for block in BLOCKS
    if block.language == "console"
    for line in block.text.splitlines()
    if line.startswith("$ ")
}


def module_of_docs(name, monkeypatch):
    """Return a module of the folder with the pages, which is no package."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


def test_list_of_pages_has_each_page_and_says_what_it_is_for(monkeypatch):
    listing = module_of_docs("pagelist", monkeypatch)
    found = {page.name: page for page in listing.pages()}

    contents = (page.relative_to(DOCS).with_suffix("") for page in PAGES if DOCS in page.parents)
    of_others = {"comparison-table", "comparison-calls-table", "index", *listing.NOT_LISTED}
    pages = {str(page) for page in contents if page.name not in of_others}
    problems = {name for name in pages if name.startswith("problems/")}
    assert found.keys() == pages - problems | {"problems/index"}, "name it in its index.md"
    text = (DOCS / "pages.md").read_text()
    assert text == listing.with_list(text), "python docs/pagelist.py"
    assert listing.PLACE in text
    long = [page.name for page in found.values() if len(page.sentence) > 120]
    assert long == [], "begin with a shorter sentence"


def test_pictures_are_as_they_are_drawn(monkeypatch):
    drawing = module_of_docs("pictures", monkeypatch)

    there = {path.stem: path.read_text() for path in drawing.FOLDER.iterdir()}
    drawn = {name: drawing.drawn(*picture) for name, picture in drawing.PICTURES.items()}
    assert there == drawn, "python docs/pictures.py"


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_commands_exist(command):
    words = shlex.split(command.removesuffix("\\"), comments=True)
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


def test_badges_say_what_the_package_says():
    project = (ROOT / "pyproject.toml").read_text()
    badges = re.findall(r"^!\[(.+?)\]\(https://img", (ROOT / "README.md").read_text(), re.MULTILINE)
    pythons = re.findall(r'Language :: Python :: (3\.\d+)"', project)
    djangos = re.findall(r'Framework :: Django :: (.+)"', project)
    assert badges == [
        f"Python {pythons[0]} to {pythons[-1]}",
        f"Django {djangos[0]} to {djangos[-1]}",
        "typed",
        re.findall(r'^license = "(.+)"', project, re.MULTILINE)[0],
    ]
    assert (ROOT / "django_idempotency/py.typed").is_file()


def test_links_lead_to_files():
    """Those between the pages of docs/ are Sphinx's to check, too: make docs."""
    for page in PAGES:
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
        files = [link.partition("#")[0] for link in links]
        missing = [file for file in files if file and not (page.parent / file).is_file()]
        assert missing == [], name_of(page)


@functools.cache
def functions_in(path):
    return set(re.findall(r"^ *(?:async )?def (\w+)", (ROOT / path).read_text(), re.MULTILINE))


def test_tests_named_exist():
    # A class may have its tests from a contract.
    contracts = (ROOT / "django_idempotency/testing").rglob("*.py")
    inherited = set().union(*map(functions_in, contracts))
    for page in PAGES:
        for path, name in re.findall(r"`(tests/[\w/]+\.py)::([\w:]+)`", page.read_text()):
            *owner, test = name.split("::")
            there = test in functions_in(path) or (owner and test in inherited)
            assert there, f"{name_of(page)}: {path}::{name}"


def test_setting_names_on_other_pages_exist():
    known = {f.name for f in [*dataclasses.fields(Policy), *dataclasses.fields(HTTPPolicy)]}
    # Attributes of views, of requests and records, and a fixture, headers, commands, a name.
    known |= {"store", "operation", "actions", "function", "key", "record", "expires_at", "policy"}
    known |= {"guards", "clock", "keys", "parent", "parent_record", "task"}
    known |= {"index"}  # a command that is gone, in the changelog
    known |= {"key_exempt", "key_exists", "key_manual", "key_response"}  # django-idempotency-key's
    known |= {name.removeprefix("idempotency_") for name in get_commands()}
    for page in PAGES:
        for name in re.findall(r"\bidempotency_([a-z_]+)\b(?= =|`|=|\(self)", page.read_text()):
            problem = f"idempotency_{name}" in PROBLEMS
            assert problem or name in known, f"{name_of(page)}: idempotency_{name}"


def test_public_names_are_documented():
    page = (REFERENCE / "api.md").read_text()
    documented = set(re.findall(r":: django_idempotency\.(\w+)$", page, re.MULTILINE))
    assert documented == set(idempotency.__all__)
    directives = "\n".join(re.findall(r"^(?:\.\.|   :members:) .+", page, re.MULTILINE))
    named = set(re.findall(r"\w+", directives))
    assert {*http.__all__, *scopes.__all__} - named == set()


def test_the_test_kit_is_documented():
    page = (REFERENCE / "testing.md").read_text() + (DOCS / "howto/contract-http.md").read_text()
    assert [name for name in testing.__all__ if name not in page] == []


def test_keep_presets_are_documented():
    text = (DOCS / "howto/drf.md").read_text()
    presets = re.findall(r'^\| `"(\w+)"` \|', text, re.MULTILINE)
    assert tuple(presets) == KEEP_PRESETS


def test_columns_are_documented():
    rows = table_of(REFERENCE / "database.md", "# The database table")
    columns = [field.column for field in IdempotencyRecord._meta.concrete_fields]
    assert [code_in(row[0]) for row in rows] == columns


STATEMENTS = table_of(REFERENCE / "database.md", "## Statements per operation")


def test_statements_are_documented():
    page = (REFERENCE / "database.md").read_text()
    assert len(STATEMENTS) == 6
    operations = page.split("| operation | statements |")[1].split("\n\n")[0]
    written = {
        name
        for dialect in DIALECTS.values()
        for name, value in vars(type(dialect)).items()
        if name.isupper() and isinstance(value, str)
    }
    assert set(re.findall(r"`([A-Z_]+)`", operations)) == written


@pytest.mark.parametrize("mode", MODES)
def test_statements_are_as_many_as_documented(transactional_db, settings, mode):
    settings.IDEMPOTENCY = {"default": {}}
    rows = [row for row in STATEMENTS if connections["default"].display_name in row[0]]
    column = MODES.index(mode) + 1
    documented = [sum(map(int, re.findall(r"\d+", row[column]))) for row in rows]

    counted = []
    for _ in ("a new key", "a duplicate"):
        with CaptureQueriesContext(connections["default"]) as queries:
            idempotency.run(lambda lease: 1, key="k", scope="tests", transaction=mode)
        counted.append(sum("idempotency_record" in query["sql"] for query in queries))
    assert counted == documented


@pytest.fixture(scope="module")
def sources():
    return [path.read_text() for path in (ROOT / "django_idempotency").rglob("*.py")]


def test_checks_are_documented(sources):
    ids = set(re.findall(r"django_idempotency\.[EW]\d{3}", "\n".join(sources)))
    rows = table_of(REFERENCE / "operations.md", "## System checks")
    assert [code_in(row[0]) for row in rows] == sorted(ids)


def test_log_messages_are_documented(sources):
    rows = table_of(REFERENCE / "operations.md", "## Logger")
    logged = {line for source in sources for line in _logged(source)}
    for level, message in logged:
        matching = [row for row in rows if row[0] == level and message.startswith(row[1])]
        assert len(matching) == 1, message
    assert len(rows) == len(logged)


def _logged(source):
    """Yield the level and the text of each line that a file logs."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        match ast.unparse(node.func).split("."), node.args:
            case ["logger", level], [ast.Constant(value=text), *_]:
                yield level.replace("exception", "error").upper(), text
            case ["log_failure"], [ast.Constant(value=text), *_]:
                yield "ERROR", text
            case ["log_once"], [ast.Attribute(attr=level), ast.Constant(value=text), *_]:
                yield level, text


@pytest.mark.parametrize("code", PROBLEMS)
def test_problem_has_a_page_that_agrees(code):
    page, problem = DOCS / "problems" / f"{code}.md", PROBLEMS[code]
    assert page.read_text().splitlines()[0] == f"# {problem.title}"
    members = {code_in(name): value for name, value in table_of(page, f"# {problem.title}")}
    assert members == {
        "code": f"`{code}`",
        "status": str(problem.status),
        "retryable": f"`{json.dumps(problem.retryable)}`",
        "safe_new_key": f"`{json.dumps(problem.safe_new_key)}`",
    }


def test_problems_are_listed_and_their_types_lead_to_the_pages():
    index = DOCS / "problems/index.md"
    answers = {True: "yes", False: "no"}
    assert table_of(index, "# Problems") == [
        [f"[{code}]({code}.md)", str(it.status), answers[it.retryable], answers[it.safe_new_key]]
        for code, it in PROBLEMS.items()
    ]
    assert {page.stem for page in index.parent.glob("*.md")} == {"index", *PROBLEMS}
    assert HTTPPolicy().documentation_url.endswith("/problems/")
    error = idempotency.KeyRequired()
    response = problems.problem_response(error, APIRequestFactory().get("/"), HTTPPolicy())
    page = json.loads(response.content)["type"].rpartition("/problems/")[2]
    assert (DOCS / "problems" / page.replace(".html", ".md")).is_file()


def section(page, heading):
    return page.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]


def test_every_failure_and_mode_has_tests():
    heading = "Transaction mode by failure"
    rows = table_of(DOCS / "guarantees.md", f"## {heading}")
    named = {}
    for line in section(DOCS / "contributing/proof.md", heading).splitlines():
        if match := re.fullmatch(r"- (F\d+, .+)", line):
            modes = named[match[1]] = set()
        elif match := re.fullmatch(r"  - (.+):", line):
            modes |= set(re.findall(r"\w+", match[1].replace("all modes", " ".join(MODES))))
    assert list(named) == [f"{number}, {failure}" for number, failure, *_ in rows]
    assert all(set(MODES) <= modes for modes in named.values())


def test_every_failure_of_steps_has_tests():
    heading = "Work in steps"
    _places, failures = section(DOCS / "guarantees.md", heading).split("\n\nThis is what")
    rows = re.findall(r"^\| (P\d+) \| ([^|]+) \|", failures, re.MULTILINE)
    proved = section(DOCS / "contributing/proof.md", heading)
    named = re.findall(r"^- (P\d+), (.+):\n  `tests/[\w/]+\.py::\w", proved, re.MULTILINE)
    assert named == rows


@pytest.mark.parametrize("heading", ["Across all modes", "On other stores", "Tasks"])
def test_every_guarantee_has_tests(heading):
    """A guarantee is an item of the list, by its first sentence."""
    item = r"^- (.+?)(?=\n- |\n\n|\Z)"
    flags = re.DOTALL | re.MULTILINE
    said = re.findall(item, section(DOCS / "guarantees.md", heading).strip(), flags)
    proved = re.findall(item, section(DOCS / "contributing/proof.md", heading).strip(), flags)
    firsts = [re.split(r"\.(?: |$)", " ".join(guarantee.split()))[0] for guarantee in said]
    assert [" ".join(proof.split(":\n")[0].split()) for proof in proved] == firsts
    assert all(re.search(r":\n  `[\w/]+\.py::\w", proof) for proof in proved)


def test_signals_and_outcomes_are_those_of_the_code():
    said = {
        code_in(signal): set(re.findall("`(.+?)`", words))
        for signal, words, *_ in table_of(REFERENCE / "operations.md", "## Signals")
    }
    sent = {"claimed": {"claimed", "taken over"}, "swept": set()}
    for name, signal in signals.TERMINAL.items():
        sent[name] = {word for word, ends in logs.SIGNALS.items() if ends is signal}
    assert said == sent
