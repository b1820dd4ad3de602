"""
B10: what the fingerprint of a body costs, beside SHA-256 over its bytes.

JSON is parsed and written in its canonical form first; any other body counts byte by byte.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import time
import tracemalloc
from collections.abc import Callable

from benchmarks.figures import Target, save, table, verdicts
from django_idempotency.fingerprint import Fingerprint, canonical_json
from django_idempotency.options import Secret

SIZES = {"1 KB": 1_000, "100 KB": 100_000, "5 MB": 5_000_000}
HEADS = ("body", "SHA-256 µs", "fingerprint ×", "µs", "peak memory × of the body")


def run(count: int) -> str:
    """Measure so many rounds, save the figures, and return the tables."""
    rows, figures, targets = [], {}, []
    for size, length in SIZES.items():
        body = _body(length)
        for kind, function in {"JSON": _canonical, "bytes": _bytes}.items():
            name = f"{size}, {kind}"
            floor, ours = [], []
            for _ in range(count):
                floor.append(_seconds(hashlib.sha256, body))
                ours.append(_seconds(function, body))
            tracemalloc.start()
            function(body)
            peak = tracemalloc.get_traced_memory()[1] / len(body)
            tracemalloc.stop()
            figures[name] = {"sha256": floor, "fingerprint": ours, "peak": peak}
            ratio = statistics.median(a / b for a, b in zip(ours, floor, strict=True))
            micros = round(statistics.median(ours) * 1e6)
            rows.append((name, statistics.median(floor) * 1e6, ratio, micros, peak))
            if kind == "bytes" and length >= 100_000:
                targets.append(Target(f"{name}, × SHA-256", ratio, at_most=2))
    save("bodies", figures, targets)
    title = f"B10: the fingerprint of a body, {count} rounds"
    return "\n".join((table(title, HEADS, rows), verdicts(targets)))


def _body(size: int) -> bytes:
    item = {"sku": "A-1001", "quantity": 3, "price": "12.50", "note": "as a gift"}
    return json.dumps({"items": [item] * (size // 70)}).encode()


def _canonical(body: bytes) -> Fingerprint:
    canonical = canonical_json(body)
    assert canonical is not None
    return _bytes(canonical)


def _bytes(body: bytes) -> Fingerprint:
    return Fingerprint.of((b"POST", b"/payments/", body), (Secret("a secret"),))


def _seconds(function: Callable[[bytes], object], body: bytes) -> float:
    times = max(1, int(0.02 / max(_once(function, body), 1e-7)))
    started = time.perf_counter()
    for _ in range(times):
        function(body)
    return (time.perf_counter() - started) / times


def _once(function: Callable[[bytes], object], body: bytes) -> float:
    started = time.perf_counter()
    function(body)
    return time.perf_counter() - started
