"""The list of all pages, put into pages.md when the documentation is built."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["FOLDER", "PLACE", "Page", "pages", "table"]

FOLDER = Path(__file__).parent
WORDS_A_MINUTE = 200
#: Pages that are looked up, and not read from the beginning.
LOOKED_UP = ("Reference", "Problems")
NOT_LISTED = ("pages", "changelog", "security")
#: What pages.md has where the list goes.
PLACE = "<!-- the list of docs/pagelist.py -->"

_BLOCK = re.compile(r"^(```+|:::+).*?^\1$", re.DOTALL | re.MULTILINE)
_TREE = re.compile(r"^```\{toctree\}\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")


@dataclass(frozen=True)
class Page:
    """A page, and what a reader wants to know before reading it."""

    name: str
    title: str
    group: str
    sentence: str
    words: int

    @property
    def minutes(self) -> int:
        """How long it takes to read."""
        return max(1, round(self.words / WORDS_A_MINUTE))


def pages(start: str = "index") -> Iterator[Page]:
    """Yield the pages below this one in the order of the contents."""
    text = (FOLDER / f"{start}.md").read_text()
    group = re.findall(r"^# (.+)$", text, re.MULTILINE)[0] if "/" in start else "Begin"
    for part in re.split(r"^(?=## )", text, flags=re.MULTILINE):
        heading = re.match(r"## (.+)\n", part)
        here = f"{group}: {heading[1]}" if heading and "/" in start else group
        for tree in _TREE.findall(part):
            names = [line for line in tree.split() if not line.startswith(":") and line != "1"]
            for name in names:
                path = str((FOLDER / start).parent.joinpath(name).relative_to(FOLDER))
                if path == "problems/index":
                    yield page(path, "Problems")  # it lists its pages itself
                elif path.endswith("/index"):
                    yield from pages(path)
                elif path not in NOT_LISTED:
                    yield page(path, here)


def page(name: str, group: str) -> Page:
    """Read a page; ValueError for one that does not begin with a sentence."""
    text = (FOLDER / f"{name}.md").read_text()
    words = len(re.findall(r"\w[\w'.-]*", re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)))
    title, _, rest = text.lstrip().removeprefix("# ").partition("\n")
    first = _LINK.sub(r"\1", rest.lstrip().split("\n\n")[0])
    if not re.match(r"[\w`*\[]", first) or "." not in first:
        raise ValueError(
            f"docs/{name}.md: below the title, write a sentence that says what the page is for. "
            f"The list of pages shows it."
        )
    sentence = re.split(r"(?<=\.)\s", " ".join(first.split()))[0].rstrip(":.") + "."
    return Page(name, title.strip(), group, sentence, words)


def table() -> str:
    """Return a table for each group."""
    groups: dict[str, list[str]] = {}
    for it in pages():
        minutes = "" if it.group.startswith(LOOKED_UP) else str(it.minutes)
        rows = groups.setdefault(it.group, ["| page | what it is for | minutes |", "|---|---|---|"])
        rows.append(f"| [{it.title}]({it.name}.md) | {it.sentence} | {minutes} |")
    return "\n".join("\n".join(["", f"## {group}", "", *rows]) for group, rows in groups.items())


if __name__ == "__main__":
    print(table())
