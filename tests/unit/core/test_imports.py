"""The levels of the package (design, section 4)."""

from __future__ import annotations

import ast
import fnmatch
import graphlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.services.processes import ROOT

NAME = "django_idempotency"
PACKAGE = ROOT / NAME

# A module imports its own level and lower ones, and so do its imports for type checkers.
LEVELS = [
    names.split()
    for names in (
        "arguments callables claims codecs context exceptions exceptions.* fields fingerprint keys "
        "leases logs policy records",
        "stores stores.*",
        "engine engine.*",
        "conf api models migrations migrations.* checks sweep",
        "http http.*",
        "contrib contrib.*",
        "admin admin.* apps management management.* tasks templatetags templatetags.* testing "
        "testing.*",
    )
]
# What each module may import besides the standard library; some their own client, too.
OTHERS = {"asgiref", "django"}
CLIENTS = {
    "contrib.celery*": {"celery", "kombu"},
    "contrib.events*": {"jmespath"},
    "contrib.rest_framework*": {"rest_framework"},
    "contrib.spectacular": {"drf_spectacular"},
    "stores.database.prepared": {"psycopg"},
    "stores.dynamodb*": {"boto3", "botocore"},
    "stores.redis*": {"redis"},
    "tasks": {"celery"},
    "testing.*": {"pytest"},
}
# What the decorator makes of a DRF view is the DRF adapter's, imported inside the function.
SANCTIONED = {"http.decorators": {"contrib.rest_framework", "contrib.rest_framework.mixin"}}
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


def levels_of(name: str) -> list[int]:
    return [
        number
        for number, patterns in enumerate(LEVELS)
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    ]


def inner(imported: Import) -> str | None:
    """The module of ours that is imported, "" for the package itself, None for others."""
    if imported.top != NAME:
        return None
    return imported.target.removeprefix(NAME).removeprefix(".")


MODULES = [name for name in TREES if name != ROOT_MODULE]


def test_each_module_has_a_docstring_and_is_on_one_level_and_each_pattern_stands_for_a_module():
    patterns = [pattern for level in LEVELS for pattern in level] + list(CLIENTS)
    assert [name for name in MODULES if len(levels_of(name)) != 1] == []
    assert [pattern for pattern in patterns if not fnmatch.filter(TREES, pattern)] == []
    assert [n for n, tree in TREES.items() if tree.body and not ast.get_docstring(tree)] == []
    assert len([path for path in PACKAGE.glob("*.py") if path.stem != "__init__"]) <= 20


def test_a_module_imports_its_own_level_and_lower_ones_and_of_others_only_what_it_may():
    upwards, beyond = {}, {}
    for name in MODULES:
        [level] = levels_of(name)
        targets = {target for imported in IMPORTS[name] if (target := inner(imported))}
        if above := {target for target in targets if levels_of(target)[0] > level}:
            upwards[name] = above
        clients = [
            found for pattern, found in CLIENTS.items() if fnmatch.fnmatchcase(name, pattern)
        ]
        allowed = set(sys.stdlib_module_names).union(OTHERS, [NAME], *clients)
        if others := {imported.top for imported in IMPORTS[name]} - allowed:
            beyond[name] = others
    assert (upwards, beyond) == (SANCTIONED, {})


def test_no_module_imports_the_package_itself_or_by_a_relative_name_or_in_a_circle():
    """The package itself imports nothing of ours when it is loaded."""
    found = [(name, i.target) for name in MODULES for i in IMPORTS[name] if inner(i) == ROOT_MODULE]
    assert found == []
    assert [name for name, found in IMPORTS.items() if any(i.relative for i in found)] == []
    loaded = {i.top for i in IMPORTS[ROOT_MODULE] if not i.typing_only}
    assert loaded <= set(sys.stdlib_module_names)
    graph = {
        name: {target for imported in found if (target := inner(imported)) is not None}
        for name, found in IMPORTS.items()
    }
    list(graphlib.TopologicalSorter(graph).static_order())
