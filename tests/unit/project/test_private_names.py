"""Private names of other packages stand on a page, each with its reason."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.pages import DOCS
from tests.services.processes import ROOT

PACKAGE = ROOT / "django_idempotency"
SOURCES = [
    ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py") if "testing" not in path.parts
]
#: Documented, although they begin so.
PUBLIC = {"_default_manager", "_exit", "_meta", "_replace", "_thread"}


def is_private(name: str) -> bool:
    return (
        name.startswith("_") and not name.startswith("__") and name.isidentifier() and name != "_"
    )


def own() -> Iterator[str]:
    """Yield the names that the package gives to something, as the part before it, too."""
    for node in nodes():
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.ClassDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Attribute(ast.Name("self" | "cls"), name, ast.Store()):
                yield name


def used() -> Iterator[str]:
    """Yield the private names that are read from, or set on, something else than self."""
    for node in nodes():
        match node:
            case ast.Attribute(ast.Name("self" | "cls"), _):
                continue
            case ast.Attribute(attr=name):
                found = name
            case ast.Call(ast.Name("getattr" | "hasattr" | "setattr"), [_, ast.Constant(name), *_]):
                found = name
            case ast.alias(name=name):
                found = name.rpartition(".")[2]
            case _:
                continue
        if is_private(found) and not found.startswith("_idempotency"):
            yield found


def nodes() -> Iterator[ast.AST]:
    for tree in SOURCES:
        yield from ast.walk(tree)


def listed() -> list[str]:
    page = (DOCS / "contributing/private-names.md").read_text()
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| ")]
    return [name for row in rows[1:] for name in re.findall(r"`(\w+)`", row[1])]


def test_each_private_name_of_another_package_has_a_reason() -> None:
    assert sorted({*used()} - {*own()} - PUBLIC - {*listed()}) == []


def test_no_private_name_has_a_reason_and_is_not_used() -> None:
    texts = {node.value for node in nodes() if isinstance(node, ast.Constant)}
    assert sorted({*listed()} - {*used()} - texts) == []
    assert len(listed()) == len({*listed()})
