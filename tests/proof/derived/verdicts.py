"""The changes that no fast test notices, each with the reason, in ``survivors.txt``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.proof.derived import Change

__all__ = ["VERDICTS", "Verdict", "every_verdict", "one_line"]

PAGE = Path(__file__).with_name("survivors.txt")
#: What a verdict begins with.
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
    """Return the verdicts of the page."""
    verdicts = []
    for paragraph in PAGE.read_text().split("\n\n"):
        lines = [line for line in paragraph.splitlines() if not line.startswith("#")]
        if lines:
            marked = {line[0]: line[2:] for line in lines[1:]}
            verdicts.append(Verdict(lines[0], marked["-"], marked["+"], marked["="]))
    return verdicts
