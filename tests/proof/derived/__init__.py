"""
Changes that follow from the source alone: what the hand that wrote it would not have thought of.

In the syntax tree each comparison is negated, and moved by one at its boundary. Of ``and`` and
``or`` the one becomes the other, and each operand is left out; so is each ``not``. A condition is
true, or false. An early return is left out. A handler, and ``suppress``, catch nothing, or all but
one of their exceptions. In a statement of SQL, of DynamoDB or in a script in Lua each term of a
condition, each assignment, and each write is left out (`tests.proof.derived.clauses`).

Why not mutmut 3 or cosmic-ray 8: neither changes the text of a string, and the stores are mostly
that; both have one command that tests all changes, while ours needs a leg for each database.

An `id` has no line, so it stays as other functions change.
"""

from __future__ import annotations

import ast
import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.proof.derived.clauses import Literal, clauses
from tests.services.processes import ROOT

__all__ = ["FILES", "Change", "changes_of", "every_change"]

PACKAGE = ROOT / "django_idempotency"
#: What is changed, below django_idempotency.
FILES = (
    *("engine/*.py", "http/key.py", "http/guard.py", "http/sessions.py", "http/scopes.py"),
    *(f"transactions/{name}.py" for name in ("aliases", "connections", "outer")),
    *(
        "http/plans.py",
        "http/verdicts.py",
        "http/handlers.py",
        "http/snapshot.py",
        "http/atomic_requests.py",
    ),
    *(f"contrib/celery/{name}.py" for name in ("deliveries", "waits", "messages", "guard")),
    *(f"stores/database/{name}.py" for name in ("statements", "postgresql", "sqlite", "mariadb")),
    *("stores/redis/scripts.py", "stores/dynamodb/expressions.py"),
)

_NEGATED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.In: ast.NotIn,
}
_NEGATED |= {new: old for old, new in _NEGATED.items()}
_BOUNDARY: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.Lt: ast.LtE, ast.Gt: ast.GtE}
_BOUNDARY |= {new: old for old, new in _BOUNDARY.items()}


@dataclass(frozen=True)
class Change:
    """One change of the source: `old`, from the character `start` on, becomes `new`."""

    #: Below django_idempotency/.
    file: str
    #: The function, or the name to which a statement is assigned.
    where: str
    kind: str
    number: int
    start: int
    old: str
    new: str
    #: The lines that run before the changed part does; a statement in a string has none.
    lines: range | None
    #: The source of the function, or of the statement, that it is in.
    around: str

    @property
    def id(self) -> str:
        return f"{self.file}:{self.where}:{self.kind}:{self.number}"

    @property
    def digest(self) -> str:
        """What tells whether it is still the change, in the function, that was judged."""
        judged = "\0".join((self.old, self.new, self.around))
        return hashlib.sha256(judged.encode()).hexdigest()[:8]

    def made(self, text: str) -> str:
        """Return the source with the change."""
        end = self.start + len(self.old)
        assert text[self.start : end] == self.old
        return text[: self.start] + self.new + text[end:]


def every_change() -> Iterator[Change]:
    """Yield the changes of all files, in the order of the source."""
    for pattern in FILES:
        for path in sorted(PACKAGE.glob(pattern)):
            yield from changes_of(path.relative_to(PACKAGE).as_posix(), path.read_text())


def changes_of(file: str, text: str) -> Iterator[Change]:
    """Yield the changes of one source that leave it a source."""
    numbers: Counter[tuple[str, str]] = Counter()
    for where, kind, start, old, new, lines, around in _Derived(text):
        if old != new:
            number = numbers[where, kind] = numbers[where, kind] + 1
            yield Change(file, where, kind, number, start, old, new, lines, around)


_Found = tuple[str, str, int, str, str, "range | None", str]


class _Derived(ast.NodeVisitor):
    """The changes of one source; iterating gives each."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._lines = text.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))
        self._names: list[str] = []
        self._functions = 0
        self._statement: ast.stmt | None = None
        self._around: ast.stmt | None = None
        self._found: list[_Found] = []
        self._last: set[int] = set()  # returns that end a function

    def __iter__(self) -> Iterator[_Found]:
        self.visit(ast.parse(self._text))
        return iter(self._found)

    def _offset(self, line: int, column: int) -> int:
        """Return the place of a character; the tree counts the bytes of a line."""
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode())

    def _add(self, kind: str, node: ast.expr | ast.stmt, new: str | ast.expr) -> None:
        start = self._offset(node.lineno, node.col_offset)
        old = self._text[start : self._offset(node.end_lineno or 0, node.end_col_offset or 0)]
        text = new if isinstance(new, str) else f"({ast.unparse(new)})"
        lines = None
        if self._functions and self._statement is not None:
            first = node.lineno if kind == "except" else self._statement.lineno
            lines = range(first, (node.end_lineno or first) + 1)
        self._find(kind, start, old, text, lines)

    def _find(self, kind: str, start: int, old: str, new: str, lines: range | None = None) -> None:
        around = self._around
        assert around is not None
        text = "".join(self._lines[around.lineno - 1 : around.end_lineno])
        self._found.append((self._where(), kind, start, old, new, lines, text))

    def _where(self) -> str:
        return ".".join(self._names) or "module"

    # What the source consists of.

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._within(node.name, node.body)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._last.add(id(node.body[-1]))
        self._functions += 1
        self._within(node.name, node.body)
        self._functions -= 1

    visit_AsyncFunctionDef = visit_FunctionDef

    def _within(self, name: str, body: Sequence[ast.AST]) -> None:
        self._names.append(name)
        for node in body:
            self.visit(node)
        self._names.pop()

    def visit(self, node: ast.AST) -> None:
        if not isinstance(node, ast.stmt):
            super().visit(node)
            return
        outer, self._statement = self._statement, node
        if not self._functions and not isinstance(node, ast.ClassDef):
            self._around = node
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not is_text:  # a docstring
            super().visit(node)
        self._statement = outer

    def visit_Assign(self, node: ast.Assign) -> None:
        target = node.targets[0]
        if isinstance(target, ast.Name) and not self._functions:
            self._within(target.id, [node.value])
        else:
            self.visit(node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit_Assign(ast.Assign(targets=[node.target], value=node.value))

    # Expressions.

    def visit_Compare(self, node: ast.Compare) -> None:
        self._operators("negate", _NEGATED, node)
        self._boundaries(node)

    def _boundaries(self, node: ast.Compare) -> None:
        self._operators("boundary", _BOUNDARY, node)
        self.generic_visit(node)

    def _operators(
        self, kind: str, table: dict[type[ast.cmpop], type[ast.cmpop]], node: ast.Compare
    ) -> None:
        for index, operator in enumerate(node.ops):
            if new := table.get(type(operator)):
                operators = [*node.ops[:index], new(), *node.ops[index + 1 :]]
                self._add(kind, node, ast.Compare(node.left, operators, node.comparators))

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        self._add("swap", node, ast.BoolOp(other, node.values))
        for index in range(len(node.values)):
            rest = [*node.values[:index], *node.values[index + 1 :]]
            self._add("operand", node, ast.BoolOp(node.op, rest) if rest[1:] else rest[0])
        for value in node.values:  # to leave out a comparison finds what its negation finds
            if isinstance(value, ast.Compare):
                self._boundaries(value)
            else:
                self.visit(value)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._add("not", node, node.operand)
        self.generic_visit(node)

    def _condition(self, test: ast.expr) -> None:
        """Let a condition be true and false; that finds what its negation finds."""
        if isinstance(test, ast.Name) and test.id == "TYPE_CHECKING":
            return
        named = any(isinstance(node, ast.NamedExpr) for node in ast.walk(test))
        for value in ("True", "False"):  # a name that the condition binds is bound
            new = f"({ast.unparse(test)}, {value})[1]" if named else value
            self._add(value.lower(), test, new)
        if isinstance(test, ast.Compare):
            self._boundaries(test)
        elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            self.generic_visit(test)
        else:
            self.visit(test)

    def visit_If(self, node: ast.If) -> None:
        self._condition(node.test)
        alone = len(node.body) == 1 and not node.orelse
        if alone and isinstance(node.body[0], ast.Return):
            self._last.add(id(node.body[0]))  # the condition that is false has left it out
        for statement in (*node.body, *node.orelse):
            self.visit(statement)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._condition(node.test)
        self.visit(node.body)
        self.visit(node.orelse)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self._condition(test)
        self.visit(node.iter)

    # Ends and errors.

    def visit_Return(self, node: ast.Return) -> None:
        if id(node) not in self._last:
            self._add("return", node, "pass")
        self.generic_visit(node)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.type is not None:
            self._caught(node.type)
        for statement in node.body:
            self.visit(statement)

    def _caught(self, caught: ast.expr) -> None:
        self._add("except", caught, "()")
        if isinstance(caught, ast.Tuple):
            for index in range(len(caught.elts)):
                rest = [*caught.elts[:index], *caught.elts[index + 1 :]]
                self._add("except", caught, ast.Tuple(rest, ast.Load()))

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id == "suppress" and node.args:
            self._add("except", node, "suppress()")
            for index in range(len(node.args) if node.args[1:] else 0):
                rest = [*node.args[:index], *node.args[index + 1 :]]
                self._add("except", node, ast.Call(node.func, rest, []))
        parts = node.args[0] if _is_join(node) else None
        if parts is not None:
            self._statements(parts)
        else:
            self.generic_visit(node)

    # Statements in strings.

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):
            self._statements(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        self._statements(node)
        for part in node.values:  # the text between them is part of the statement
            if isinstance(part, ast.FormattedValue):
                self.visit(part.value)

    def _statements(self, node: ast.expr) -> None:
        start = self._offset(node.lineno, node.col_offset)
        end = self._offset(node.end_lineno or 0, node.end_col_offset or 0)
        for kind, at, old, new in clauses(Literal(self._text[start:end])):
            self._find(kind, start + at, old, new)


def _is_join(node: ast.Call) -> bool:
    """Whether the call joins strings that stand in a tuple, as one statement in several."""
    return (
        isinstance(node.func, ast.Attribute)
        and node.func.attr == "join"
        and len(node.args) == 1
        and isinstance(node.args[0], ast.Tuple)
        and all(isinstance(part, ast.Constant) for part in node.args[0].elts)
    )
