"""
The changes that no fast test notices, and need not: a page of them for each area.

Each has its id, the change in one line, and the reason. It begins with one of `VERDICTS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.proof.derived import Change

__all__ = ["VERDICTS", "Verdict", "every_verdict", "one_line"]

PAGES = Path(__file__).with_name("survivors")
#: Nothing behaves otherwise; nothing but the speed; nothing but the words of a message for people;
#: a slower test than those of the area notices it, and which.
VERDICTS = ("equivalent", "only speed", "only words", "slower")


@dataclass(frozen=True)
class Verdict:
    id: str
    old: str
    new: str
    #: One of VERDICTS, and why.
    reason: str

    def fits(self, change: Change) -> bool:
        """Whether this is still the change that was judged."""
        return (self.old, self.new) == (one_line(change.old), one_line(change.new))


def one_line(text: str) -> str:
    return " ".join(text.split())


def every_verdict() -> list[Verdict]:
    """Return the verdicts of all pages."""
    verdicts = []
    for page in sorted(PAGES.glob("*.txt")):
        for paragraph in page.read_text().strip().split("\n\n"):
            name, *lines = paragraph.splitlines()
            marked = {line[0]: line[2:] for line in lines}
            verdicts.append(Verdict(name, marked["-"], marked["+"], marked["="]))
    return verdicts
