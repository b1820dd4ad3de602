"""Ratios of rounds, targets, tables of text, files of results, and plots."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from benchmarks.environments import ROOT

__all__ = [
    "Target",
    "medians",
    "percentile",
    "plot",
    "ratios",
    "save",
    "short",
    "table",
    "verdicts",
]

RESULTS = ROOT / "benchmarks" / "results"
#: Beside the page that shows them.
PLOTS = ROOT / "docs" / "discussion" / "performance"


@dataclass(frozen=True)
class Target:
    """What a table is to show: `measured` is at most the limit, or at least."""

    name: str
    measured: float
    at_most: float | None = None
    at_least: float | None = None

    @property
    def wanted(self) -> str:
        """The limit, as text."""
        if self.at_most is not None:
            return f"≤ {_text(self.at_most)}"
        assert self.at_least is not None
        return f"≥ {_text(self.at_least)}"

    @property
    def met(self) -> bool:
        """Whether the limit is kept."""
        if self.at_most is not None:
            return self.measured <= self.at_most
        assert self.at_least is not None
        return self.measured >= self.at_least


def percentile(values: Sequence[float], hundredth: int) -> float:
    """Return the percentile of the values, one of them."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * hundredth // 100)]


def medians(
    answers: Mapping[str, Mapping[str, Sequence[Any]]],
) -> dict[str, dict[str, list[float]]]:
    """Return the median microseconds of each round, by variant and command; see `rounds`."""
    return {
        name: {
            part: [statistics.median(one["us"]) for one in found] for part, found in parts.items()
        }
        for name, parts in answers.items()
    }


def short(answers: Mapping[str, Mapping[str, Sequence[Any]]]) -> dict[str, dict[str, list[Any]]]:
    """Return the rounds with p50 and p99 in place of the microseconds of each call."""
    return {
        name: {part: [_short(one) for one in found] for part, found in parts.items()}
        for name, parts in answers.items()
    }


def _short(one: Mapping[str, Any]) -> dict[str, Any]:
    rest = {name: value for name, value in one.items() if name != "us"}
    return {"p50_us": percentile(one["us"], 50), "p99_us": percentile(one["us"], 99), **rest}


def ratios(measured: Sequence[float], base: Sequence[float]) -> float:
    """Return the median of the ratios of two variants, round by round."""
    return statistics.median(a / b for a, b in zip(measured, base, strict=True))


def table(title: str, heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table of text: Markdown that reads well in a terminal, too."""
    texts = [[_text(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(heads, *texts, strict=True)]

    def line(cells: Sequence[str]) -> str:
        padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]
        return f"| {' | '.join(padded)} |"

    rule = f"|{'|'.join('-' * (width + 2) for width in widths)}|"
    return "\n".join([f"### {title}", "", line(heads), rule, *map(line, texts), ""])


def verdicts(targets: Sequence[Target], title: str = "Targets") -> str:
    """Return the table of the targets: which are met."""
    rows = [(t.name, t.measured, t.wanted, "met" if t.met else "MISSED") for t in targets]
    return table(title, ("", "measured", "wanted", ""), rows)


def _text(cell: object) -> str:
    match cell:
        case None:
            return "–"
        case float():
            return f"{cell:.2f}" if abs(cell) < 100 else f"{cell:.0f}"
        case _:
            return str(cell)


def save(name: str, figures: Mapping[str, Any], targets: Sequence[Target] = ()) -> None:
    """Write the figures to benchmarks/results/NAME.json, with the kind of machine they are of."""
    RESULTS.mkdir(exist_ok=True)
    about = {
        "at": time.strftime("%Y-%m-%d", time.gmtime()),
        "python": platform.python_version(),
        "system": platform.system(),
        "cores": len(os.sched_getaffinity(0)),
    }
    judged = [
        {"name": t.name, "measured": t.measured, "wanted": t.wanted, "met": t.met} for t in targets
    ]
    content = _rounded({"about": about, "targets": judged, **figures})
    (RESULTS / f"{name}.json").write_text(_lines(content) + "\n")


def _rounded(value: Any) -> Any:
    """Leave four digits of each number: no more is measured."""
    match value:
        case float():
            return float(f"{value:.4g}")
        case Mapping():
            return {name: _rounded(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_rounded(inner) for inner in value]
        case _:
            return value


def _lines(value: Any, indent: str = "") -> str:
    """Return JSON with a line for each round and each short mapping."""
    flat = json.dumps(value, sort_keys=True, ensure_ascii=False)
    if not isinstance(value, dict | list) or len(flat) + len(indent) <= 100:
        return flat
    inner = indent + " "
    if isinstance(value, list):
        return "[\n" + ",\n".join(inner + _lines(one, inner) for one in value) + f"\n{indent}]"
    parts = [
        f"{inner}{json.dumps(name, ensure_ascii=False)}: {_lines(value[name], inner)}"
        for name in sorted(value)
    ]
    return "{\n" + ",\n".join(parts) + f"\n{indent}}}"


# The plot: bars, drawn in the colours of the reader's theme.

_STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2328 }
.title { font-weight: 600 }
.paper { fill: #ffffff } .bar { fill: #4477aa } .other { fill: #a3a9b3 } .one { stroke: #57606a }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .paper { fill: #0d1117 } .bar { fill: #6699cc } .other { fill: #59616c } .one { stroke: #9aa4af }
}
"""
_ROW, _NAMES, _BARS, _TOP = 24, 230, 440, 40


def plot(name: str, title: str, bars: Mapping[str, float], *, unit: str, ours: set[str]) -> None:
    """Draw bars into docs/discussion/performance/NAME.svg, `ours` in colour, and a line at 1."""
    PLOTS.mkdir(exist_ok=True)
    width, height = _NAMES + _BARS + 70, _TOP + _ROW * len(bars) + 34
    scale = _BARS / max(*bars.values(), 1.0)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'width="{width}" height="{height}" aria-label="{escape(title)}">',
        f"<style>{_STYLE}</style>",
        f'<rect class="paper" width="{width}" height="{height}" rx="6"/>',
        f'<text class="title" x="12" y="24">{escape(title)}</text>',
    ]
    for number, (label, value) in enumerate(bars.items()):
        y = _TOP + number * _ROW
        long, kind = round(value * scale, 1), "bar" if label in ours else "other"
        lines += [
            f'<text x="{_NAMES - 8}" y="{y + 15}" text-anchor="end">{escape(label)}</text>',
            f'<rect class="{kind}" x="{_NAMES}" y="{y + 3}" width="{long}" height="{_ROW - 8}"/>',
            f'<text x="{_NAMES + long + 5:g}" y="{y + 15}">{value:.2f}</text>',
        ]
    one, bottom = round(_NAMES + scale, 1), _TOP + _ROW * len(bars)
    lines += [
        f'<line class="one" x1="{one}" x2="{one}" y1="{_TOP - 4}" y2="{bottom}"/>',
        f'<text x="{_NAMES}" y="{bottom + 20}">{escape(unit)}</text>',
        "</svg>",
    ]
    (PLOTS / f"{name}.svg").write_text("\n".join(lines) + "\n")
