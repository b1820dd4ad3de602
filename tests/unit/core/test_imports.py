"""The levels of the package (design, section 4)."""

from __future__ import annotations

import ast
import fnmatch
import graphlib
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.services.processes import ROOT

NAME = "django_idempotency"
PACKAGE = ROOT / NAME

# A module imports its own level and lower ones, and so do its imports for type checkers.
LEVELS = [
    names.split()
    for names in (
        "arguments callables claims codecs codecs.* context exceptions exceptions.* fields "
        "fingerprint journal keys leases logs observers options policy records signals client "
        "client.* transactions transactions.*",
        "stores stores.*",
        "engine engine.*",
        "conf api models migrations migrations.* checks sweep",
        "http http.*",
        "contrib contrib.* operators operators.*",
        "admin admin.* apps management management.* tasks templatetags templatetags.* testing "
        "testing.*",
    )
]
# What each module may import besides the standard library; some their own client, too.
OTHERS = {"asgiref", "django", "typing_extensions"}  # the last for type checkers alone
CLIENTS = {
    "client*": {"anyio", "httpx", "requests", "urllib3"},
    "codecs.encryption": {"cryptography"},
    "contrib.celery*": {"celery", "kombu"},
    "contrib.events*": {"jmespath"},
    "contrib.ninja": {"ninja"},
    "contrib.opentelemetry*": {"opentelemetry"},
    "contrib.prometheus*": {"prometheus_client"},
    "contrib.rest_framework*": {"rest_framework"},
    "contrib.spectacular": {"drf_spectacular"},
    "stores.database.prepared": {"psycopg"},
    "stores.dynamodb*": {"boto3", "botocore"},
    "stores.redis*": {"redis"},
    "tasks": {"celery"},
    "testing.*": {"pytest"},
}
# What the decorator makes of a DRF view is the DRF adapter's, imported inside the function.
_DRF = "contrib.rest_framework"
SANCTIONED = {"http.decorators": {f"{_DRF}.functions", f"{_DRF}.mixin"}}


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


TREES = {name_of(path): ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}
#: Without the package itself, whose public names are imported when they are first used.
MODULES = [name for name in TREES if name]


def imports_of(*trees: ast.AST) -> Iterator[str]:
    """Every module that is imported, inside functions and for type checkers, too."""
    for node in itertools.chain.from_iterable(map(ast.walk, trees)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            for target in (f"{base}.{alias.name}" for alias in node.names):
                known = target.startswith(NAME) and target.removeprefix(f"{NAME}.") in TREES
                yield target if known else base


IMPORTS = {name: set(imports_of(tree)) for name, tree in TREES.items()}
#: Those of ours; "" is the package itself.
OURS = {
    name: {it.removeprefix(NAME).removeprefix(".") for it in found if it.split(".")[0] == NAME}
    for name, found in IMPORTS.items()
}


def levels_of(name: str) -> list[int]:
    return [
        number
        for number, patterns in enumerate(LEVELS)
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    ]


def test_each_module_has_a_docstring_and_is_on_one_level_and_each_pattern_stands_for_a_module():
    patterns = [pattern for level in LEVELS for pattern in level] + list(CLIENTS)
    assert [name for name in MODULES if len(levels_of(name)) != 1] == []
    assert [pattern for pattern in patterns if not fnmatch.filter(TREES, pattern)] == []
    assert [n for n, tree in TREES.items() if tree.body and not ast.get_docstring(tree)] == []
    assert len([path for path in PACKAGE.glob("*.py") if path.stem != "__init__"]) <= 22


def test_a_module_imports_its_own_level_and_lower_ones_and_of_others_only_what_it_may():
    """By absolute names: the first part of a relative one is empty."""
    upwards, beyond = {}, {}
    for name in MODULES:
        [level] = levels_of(name)
        if above := {it for it in OURS[name] if it and levels_of(it)[0] > level}:
            upwards[name] = above
        clients = [CLIENTS[pattern] for pattern in CLIENTS if fnmatch.fnmatchcase(name, pattern)]
        allowed = set(sys.stdlib_module_names).union(OTHERS, [NAME], *clients)
        if others := {it.split(".")[0] for it in IMPORTS[name]} - allowed:
            beyond[name] = others
    assert (upwards, beyond) == (SANCTIONED, {})


def test_what_only_type_checkers_have_is_imported_for_them_alone():
    found = [
        name
        for name, tree in TREES.items()
        for node in tree.body
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
        and "typing_extensions" in imports_of(node)
    ]
    assert found == []


def test_no_module_imports_the_package_itself_or_in_a_circle():
    """The package itself imports its exceptions alone when it is loaded, and they nothing else."""
    assert [name for name in MODULES if "" in OURS[name]] == []
    errors = ["exceptions", "exceptions.base"]
    statements = [it for name in ("", *errors) for it in TREES[name].body]
    loaded = set(imports_of(*(it for it in statements if not isinstance(it, ast.If))))
    own = {f"{NAME}.{name}" for name in errors}
    assert {it.split(".")[0] for it in loaded - own} <= set(sys.stdlib_module_names)
    list(graphlib.TopologicalSorter(OURS).static_order())
