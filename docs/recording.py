"""
The recording in the README, made of what the demo prints.

``make demo | tee demo.txt; python docs/recording.py < demo.txt`` writes docs/_static/demo.svg: the
part without the library and with it, and the table at the end, as they go by in a terminal. Readers
who want no motion, and printers, get the end.
"""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path

FILE = Path(__file__).parent / "_static" / "demo.svg"

#: The first line of each part that is shown, and of what follows it.
PARTS = [("Without the library: no guard", "1  "), ("How often one payment", "Every step")]

#: Sizes of a line and of the window, in pixels and in lines; seconds that a line stays.
HEIGHT, WIDTH, LINES, SECONDS = 17, 1000, 26, 0.45

STYLE = """
  svg {{ --paper: #ffffff; --ink: #1f2933; --bad: #c0262d; --good: #12733f; }}
  @media (prefers-color-scheme: dark) {{
    svg {{ --paper: #14181d; --ink: #e3e9ef; --bad: #ff8a8a; --good: #7ddca4; }}
  }}
  .paper {{ fill: var(--paper); }}
  text {{ fill: var(--ink); font: 12px ui-monospace, monospace; white-space: pre; }}
  .bad {{ fill: var(--bad); }} .good {{ fill: var(--good); }} .name {{ font-weight: 600; }}
  .lines {{ transform: translateY({end}px); animation: up {seconds:.0f}s infinite; }}
  @keyframes up {{
    from {{ transform: translateY(0); animation-timing-function: steps({count}); }}
    80%, to {{ transform: translateY({end}px); }}
  }}
  @media (prefers-reduced-motion), print {{ .lines {{ animation: none; }} }}
"""


def shown(output):
    """Return the lines of the demo's output that the recording shows."""
    lines, found = output.splitlines(), []
    for first, after in PARTS:
        begins = next(n for n, line in enumerate(lines) if line.startswith(first))
        ends = next(n for n, line in enumerate(lines) if n > begins and line.startswith(after))
        found += [*lines[begins:ends], ""]
    return found[:-1]


def drawn(lines):
    """Return the recording as SVG: the lines, which move up behind a window."""
    window, count = HEIGHT * LINES, len(lines)
    style = STYLE.format(end=-HEIGHT * count, count=count, seconds=SECONDS * count / 0.8)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {window + 24}" role="img">',
        f"<title>make demo: double charges without the library, none with it</title>"
        f"<style>{style}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{window + 24}" rx="8"/>',
        f'<svg y="12" width="{WIDTH}" height="{window}"><g class="lines">',
    ]
    for number, line in enumerate(lines):
        if line.strip():
            y = window + HEIGHT * number + 13
            parts.append(f'<text{_mood(line)} x="18" y="{y}">{escape(line.rstrip())}</text>')
    return "\n".join([*parts, "</g></svg></svg>", ""])


def _mood(line):
    for sign, name in (("✗", "bad"), ("✓", "good")):
        if line.strip().startswith(sign):
            return f' class="{name}"'
    return "" if line.startswith(" ") else ' class="name"'


if __name__ == "__main__":
    FILE.write_text(drawn(shown(sys.stdin.read())))
