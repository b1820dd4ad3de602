"""Ratios of rounds, tables of text, files of results, and plots."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.environments import ROOT

__all__ = ["medians", "percentile", "plot", "ratios", "save", "table"]

RESULTS = ROOT / "benchmarks" / "results"


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


def _text(cell: object) -> str:
    match cell:
        case None:
            return "–"
        case float():
            return f"{cell:.2f}" if cell < 100 else f"{cell:.0f}"
        case _:
            return str(cell)


def save(name: str, figures: Mapping[str, Any]) -> None:
    """Write the raw figures to benchmarks/results/NAME.json, with the machine they are of."""
    RESULTS.mkdir(exist_ok=True)
    about = {
        "at": time.strftime("%Y-%m-%d", time.gmtime()),
        "python": platform.python_version(),
        "system": platform.system(),
        "cores": len(os.sched_getaffinity(0)),
    }
    text = json.dumps({"about": about, **figures}, indent=1, sort_keys=True)
    (RESULTS / f"{name}.json").write_text(text + "\n")


def plot(name: str, title: str, bars: Mapping[str, float], *, unit: str) -> Path:
    """Draw bars, and write them to benchmarks/results/NAME.svg."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 0.4 * len(bars) + 1), layout="constrained")
    labels, values = list(bars), list(bars.values())
    drawn = axes.barh(labels, values, color="#4477aa")
    axes.bar_label(drawn, fmt="%.2f", padding=3)
    axes.axvline(1, color="#666666", linewidth=0.8)
    axes.invert_yaxis()
    axes.set_title(title)
    axes.set_xlabel(unit)
    path = RESULTS / f"{name}.svg"
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    return path
