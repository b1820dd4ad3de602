"""The import floors of the package (design, section 4), and what importing it pulls in."""

from __future__ import annotations

import ast
import fnmatch
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.services.processes import ROOT

NAME = "django_idempotency"
PACKAGE = ROOT / NAME

# A module imports its own floor and lower ones.
FLOORS = [
    [
        "arguments",
        "callables",
        "codecs",
        "exceptions",
        "fingerprint",
        "keys",
        "logs",
        "policy",
        "records",
    ],
    [
        "attempts",
        "cancellation",
        "endings",
        "engine",
        "renewal",
        "stores",
        "stores.base",
        "stores.exclusive",
        "stores.dynamodb*",
        "stores.memory",
        "stores.text",
        "stores.redis*",
        "waiting",
    ],
    [
        "conf",
        "fields",
        "models",
        "migrations",
        "migrations.*",
        "stores.database",
        "stores.blocks",
        "stores.fresh",
        "stores.rows",
        "stores.statements",
        "stores.sql_*",
        "transactions",
        "api",
        "sweep",
        "checks",
    ],
    ["http", "http.*"],
    ["contrib", "contrib.*"],
    [
        "admin",
        "admin_results",
        "admin_search",
        "apps",
        "management",
        "management.*",
        "tasks",
        "templatetags",
        "templatetags.*",
        "testing",
        "testing.*",
    ],
]
# What a floor may import besides the standard library; some their own client, too,
OTHERS = [set(), {"asgiref"}, *[{"asgiref", "django"}] * 4]
# and what a store needs of django.core.checks, inside check().
CLIENTS = {
    "contrib.celery*": {"celery", "kombu"},
    "contrib.events*": {"jmespath"},
    "contrib.rest_framework*": {"rest_framework"},
    "contrib.spectacular": {"drf_spectacular"},
    "stores.dynamodb*": {"boto3", "botocore", "django"},
    "stores.redis*": {"django", "redis"},
    "tasks": {"celery"},
    "testing.*": {"pytest"},
}
# What the decorator makes of a DRF view is the DRF adapter's, imported inside the function.
SANCTIONED = {"http.decorators": {"contrib.rest_framework"}}
# The package itself: its public names are imported when they are first used.
ROOT_MODULE = ""


@dataclass(frozen=True)
class Import:
    """One import: the module that it names, and whether only type checkers see it."""

    target: str
    typing_only: bool
    relative: bool = False

    @property
    def top(self) -> str:
        return self.target.partition(".")[0]


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


TREES = {name_of(path): ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}


def imports_of(node: ast.AST, *, typing_only: bool = False) -> Iterator[Import]:
    """Every import below `node`, those inside functions included."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            for statement in child.body:
                yield from imports_of(ast.Module([statement], []), typing_only=True)
            for statement in child.orelse:
                yield from imports_of(ast.Module([statement], []), typing_only=typing_only)
        elif isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(alias.name, typing_only)
        elif isinstance(child, ast.ImportFrom):
            base = child.module or ""
            for alias in child.names:
                target = f"{base}.{alias.name}"
                inside = target.removeprefix(f"{NAME}.")
                known = target.startswith(NAME) and inside in TREES
                yield Import(target if known else base, typing_only, child.level > 0)
        else:
            yield from imports_of(child, typing_only=typing_only)


IMPORTS = {name: list(imports_of(tree)) for name, tree in TREES.items()}


def floors_of(name: str) -> list[int]:
    return [
        number
        for number, patterns in enumerate(FLOORS)
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    ]


def inner(imported: Import) -> str | None:
    """The module of ours that is imported, "" for the package itself, None for others."""
    if imported.top != NAME:
        return None
    return imported.target.removeprefix(NAME).removeprefix(".")


modules = pytest.mark.parametrize("name", [name for name in TREES if name != ROOT_MODULE])


@modules
def test_is_on_exactly_one_floor(name):
    assert len(floors_of(name)) == 1


def test_every_pattern_stands_for_something():
    patterns = [pattern for floor in FLOORS for pattern in floor] + list(CLIENTS)
    unused = [pattern for pattern in patterns if not fnmatch.filter(TREES, pattern)]
    assert unused == []


@modules
def test_imports_its_own_floor_and_lower_ones(name):
    [floor] = floors_of(name)
    upwards = [
        target
        for imported in IMPORTS[name]
        if (target := inner(imported)) and floors_of(target)[0] > floor
    ]
    assert set(upwards) == SANCTIONED.get(name, set())


@modules
def test_does_not_import_the_package_itself(name):
    assert [i.target for i in IMPORTS[name] if inner(i) == ROOT_MODULE] == []


@modules
def test_imports_of_others_only_what_its_floor_may(name):
    allowed = set(sys.stdlib_module_names) | OTHERS[floors_of(name)[0]] | {NAME}
    for pattern, clients in CLIENTS.items():
        if fnmatch.fnmatchcase(name, pattern):
            allowed |= clients
    assert {imported.top for imported in IMPORTS[name]} - allowed == set()


def test_the_package_itself_imports_nothing_of_ours_when_it_is_loaded():
    loaded = {i.top for i in IMPORTS[ROOT_MODULE] if not i.typing_only}
    assert loaded <= set(sys.stdlib_module_names)


def test_there_are_no_cycles():
    graph = {
        name: {
            target
            for imported in found
            if not imported.typing_only and (target := inner(imported)) is not None
        }
        for name, found in IMPORTS.items()
    }
    list(graphlib.TopologicalSorter(graph).static_order())


@pytest.mark.parametrize("name", fnmatch.filter(TREES, "stores.*"))
def test_a_store_knows_nothing_of_settings_and_http(name):
    reached = {inner(imported) for imported in IMPORTS[name]}
    forbidden = {"conf", "api", *fnmatch.filter(TREES, "http*")}
    if name != "stores.database":
        forbidden.add("models")
    assert reached & forbidden == set()


def test_no_import_is_relative():
    assert [name for name, found in IMPORTS.items() if any(i.relative for i in found)] == []


@pytest.mark.parametrize("name", [name for name, tree in TREES.items() if tree.body])
def test_starts_with_a_docstring(name):
    assert ast.get_docstring(TREES[name])


CLIENT_PACKAGES = ["boto3", "botocore", "celery", "jmespath", "psycopg", "redis", "rest_framework"]


def loaded_by(code):
    """Which of the clients' packages are loaded after `code` has run in a fresh interpreter."""
    report = f"import sys; print(*[n for n in {CLIENT_PACKAGES} if n in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"{code}\n{report}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


ZERO = """
import django
from django.conf import settings
settings.configure(
    SECRET_KEY="secret",
    INSTALLED_APPS=["django_idempotency"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
)
django.setup()
"""


@pytest.mark.processes
class TestFreshInterpreter:
    def test_importing_the_package_pulls_in_no_client_and_not_even_django(self):
        assert loaded_by("import django_idempotency") == []
        code = "import django_idempotency, sys; assert 'django' not in sys.modules"
        assert loaded_by(code) == []

    def test_neither_do_its_errors(self):
        assert loaded_by("from django_idempotency import InProgress, InvalidKey") == []

    def test_the_app_works_without_any_client(self):
        code = f"""{ZERO}
import django_idempotency as idempotency
from django.core.management import call_command
with open("/dev/null", "w") as nowhere:
    call_command("migrate", verbosity=0)
    call_command("check", stdout=nowhere)
    outcomes = [idempotency.run(lambda lease: 5, key="k", scope="s") for _ in range(2)]
    assert [outcome.replayed for outcome in outcomes] == [False, True]
    call_command("idempotency_sweep", stdout=nowhere)
"""
        assert loaded_by(code) == []
