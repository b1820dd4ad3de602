"""The pages of the documentation, taken apart: their blocks of code and their tables."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    *sorted(path for path in DOCS.rglob("*.md") if "_build" not in path.parts),
]
MARKER = re.compile(r"<!-- test: (.+) -->")


@dataclass(frozen=True)
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


#: The tutorial is typed as a whole: tests/tutorial.py.
BLOCKS = [block for page in PAGES if page.name != "tutorial.md" for block in blocks_of(page)]


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
