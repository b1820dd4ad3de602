"""The list of all pages in pages.md; the built documentation says how long they are, too."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["FOLDER", "PLACE", "Page", "pages", "table", "with_list"]

FOLDER = Path(__file__).parent
WORDS_A_MINUTE = 200
#: Pages that are looked up, and not read from the beginning.
LOOKED_UP = ("Reference", "Problems")
NOT_LISTED = ("pages", "changelog", "security")
#: What stands in pages.md above the list.
PLACE = "<!-- the list: python docs/pagelist.py -->\n"

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


def table(*, minutes: bool) -> str:
    """Return a table for each group; `minutes` is a column that most changes of a page change."""
    groups: dict[str, list[str]] = {}
    head = ["| page | what it is for |", "|---|---|"]
    if minutes:
        head = ["| page | what it is for | minutes |", "|---|---|---|"]
    for it in pages():
        row = f"| [{it.title}]({it.name}.md) | {it.sentence} |"
        if minutes:
            row += f" {'' if it.group.startswith(LOOKED_UP) else it.minutes} |"
        groups.setdefault(it.group, [*head]).append(row)
    return "".join("\n".join(["", f"## {group}", "", *rows, ""]) for group, rows in groups.items())


def with_list(text: str, *, minutes: bool = False) -> str:
    """Return the text of pages.md with the list as it is now."""
    before, place, _ = text.partition(PLACE)
    return before + place + table(minutes=minutes)


if __name__ == "__main__":
    of_pages = FOLDER / "pages.md"
    of_pages.write_text(with_list(of_pages.read_text()))
