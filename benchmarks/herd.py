"""B7: 64 clients at once, on one key and on 64, with work of 50 ms."""

from __future__ import annotations

import json
import statistics
from contextlib import ExitStack
from typing import Any

from benchmarks.environments import OURS
from benchmarks.figures import percentile, ratios, save, table
from benchmarks.herd_worker import CLIENTS
from benchmarks.servers import SOCKETS
from benchmarks.workers import Worker, rounds
from tests.services.postgres import PostgresServer
from tests.services.redis import RedisServer

SHORT = "CONN_MAX_AGE 0"
VARIANTS = ("bare", "joined", "single", "separate", "Redis", f"bare, {SHORT}", f"joined, {SHORT}")
COMMANDS: dict[str, dict[str, Any]] = {"one key": {}, "64 keys": {}}
HEADS = (
    *("variant", "64 keys: p50 ×", "p50 ms", "last ms", "effects"),
    *("one key: owner ×", "second ×", "p50 ×", "last ×", "second ms", "p50 ms", "last ms"),
    *("connections", "effects"),
)


def run(count: int) -> str:
    """Measure so many rounds, save the figures, and return the table."""
    with ExitStack() as stack:
        options = {"unix_socket_directories": SOCKETS, "max_connections": "600"}
        postgres = stack.enter_context(PostgresServer(18, durable=True, options=options))
        redis = stack.enter_context(RedisServer())
        workers = []
        for number, name in enumerate(VARIANTS):
            postgres.create_database(base := f"herd{number}")
            database = postgres.django_settings(base) | {"HOST": SOCKETS, "OPTIONS": {}}
            env = {
                "BENCHMARK_DATABASE": json.dumps(database),
                "BENCHMARK_REDIS": f"{redis.url}/{number}",
            }
            workers.append(stack.enter_context(Worker("benchmarks.herd_worker", name, OURS, env)))
        answers = rounds(workers, count, COMMANDS)
    save("herd", {"rounds": answers})
    return table(
        f"B7: {CLIENTS} clients at once, work of 50 ms, × of the bare view, {count} rounds",
        HEADS,
        [_row(name, answers) for name in VARIANTS],
    )


def _row(name: str, answers: Any) -> list[object]:
    """
    Return the row of a variant; each ratio is to the bare view's p50 in the same round.

    The bare view has no keys: its 64 clients all work. The first answer is the owner's.
    """
    bare = _times(f"bare, {SHORT}" if SHORT in name else "bare", answers, "64 keys", 50)
    many, one = (answers[name][part] for part in ("64 keys", "one key"))
    row: list[object] = [name, ratios(p50 := _times(name, answers, "64 keys", 50), bare)]
    row += [_ms(p50), _ms([each["us"][-1] for each in many]), _median(many, "effects")]
    places = [[each["us"][place] for each in one] for place in (0, 1, CLIENTS // 2, -1)]
    row += [ratios(times, bare) for times in places]
    row += [_ms(times) for times in places[1:]]
    return [*row, _median(one, "connections"), _median(one, "effects")]


def _times(name: str, answers: Any, part: str, hundredth: int) -> list[float]:
    return [percentile(each["us"], hundredth) for each in answers[name][part]]


def _ms(times: list[float]) -> int:
    return round(statistics.median(times) / 1000)


def _median(answers: Any, field: str) -> int:
    return round(float(statistics.median(each[field] for each in answers)))
