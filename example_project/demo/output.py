"""How the story reads on a terminal and in a log."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence


class Printer:
    """Writes lines at once; in colour only where somebody looks at them."""

    def __init__(self) -> None:
        self._colours = sys.stdout.isatty() and "NO_COLOR" not in os.environ

    def act(self, text: str) -> None:
        self._line(f"\n{self._in(text, '1')}\n{'=' * len(text)}")

    def headline(self, text: str) -> None:
        self._line(f"\n{self._in(text, '1')}")

    def says(self, text: str) -> None:
        self._line(f"    {text}")

    def right(self, text: str) -> None:
        self._line(f"  {self._in('✓', '32')} {text}")

    def wrong(self, text: str) -> None:
        self._line(f"  {self._in('✗', '31')} {text}")

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
        for number, row in enumerate([head, *rows]):
            first, *rest = zip(row, widths, strict=True)
            cells = [first[0].ljust(first[1]), *(text.rjust(width) for text, width in rest)]
            line = "   ".join(cells)
            self._line(f"    {self._in(line, '1') if number == 0 else line}")

    def _in(self, text: str, colour: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if self._colours else text

    def _line(self, text: str) -> None:
        print(text, flush=True)


def money(minor_units: int) -> str:
    return f"{minor_units / 100:,.2f}"
