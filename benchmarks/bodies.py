"""B10: what the fingerprint of a JSON body costs, beside SHA-256 over its bytes."""

from __future__ import annotations

import hashlib
import json
import statistics
import time
import tracemalloc
from collections.abc import Callable

from benchmarks.figures import save, table
from django_idempotency.fingerprint import canonical_json

SIZES = {"1 KB": 1_000, "100 KB": 100_000, "5 MB": 5_000_000}
HEADS = ("body", "SHA-256 µs", "canonical JSON and SHA-256 ×", "µs", "peak memory × of the body")


def run(count: int) -> str:
    """Measure so many rounds, save the figures, and return the table."""
    rows, figures = [], {}
    for name, size in SIZES.items():
        body = _body(size)
        floor, ours = [], []
        for _ in range(count):
            floor.append(_seconds(lambda body=body: hashlib.sha256(body).digest()))  # type: ignore[misc]
            ours.append(_seconds(lambda body=body: _canonical(body)))  # type: ignore[misc]
        tracemalloc.start()
        _canonical(body)
        peak = tracemalloc.get_traced_memory()[1] / len(body)
        tracemalloc.stop()
        figures[name] = {"sha256": floor, "canonical": ours, "peak": peak}
        ratio = statistics.median(a / b for a, b in zip(ours, floor, strict=True))
        rows.append(
            (
                name,
                statistics.median(floor) * 1e6,
                ratio,
                round(statistics.median(ours) * 1e6),
                peak,
            )
        )
    save("bodies", figures)
    return table(f"B10: the fingerprint of a body, {count} rounds", HEADS, rows)


def _body(size: int) -> bytes:
    item = {"sku": "A-1001", "quantity": 3, "price": "12.50", "note": "as a gift"}
    return json.dumps({"items": [item] * (size // 70)}).encode()


def _canonical(body: bytes) -> bytes:
    return hashlib.sha256(canonical_json(body)).digest()


def _seconds(function: Callable[[], object]) -> float:
    times = max(1, int(0.02 / max(_once(function), 1e-7)))
    started = time.perf_counter()
    for _ in range(times):
        function()
    return (time.perf_counter() - started) / times


def _once(function: Callable[[], object]) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started
