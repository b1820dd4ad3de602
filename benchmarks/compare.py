"""
What this package and others do when it matters: ``python -m benchmarks.compare``, `make compare`.

Each package guards the same view, function or task in an environment of its own, and meets the same
cases. The tables are written for docs/discussion/comparison.md. `views` or `calls` makes one alone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from benchmarks.environments import OURS, ROOT
from benchmarks.servers import SOCKETS, durable_postgres
from benchmarks.site.variants import VARIANTS
from benchmarks.workers import Worker
from django_idempotency.stores.dynamodb.items import Names
from django_idempotency.stores.dynamodb.schema import definition
from tests.services.dynamodb import ENVIRONMENT, LockedMoto
from tests.services.redis import RedisServer

DISCUSSION = ROOT / "docs" / "discussion"
#: Views of REST framework, and functions and tasks.
VIEWS, CALLS = DISCUSSION / "comparison-table.md", DISCUSSION / "comparison-calls-table.md"
#: What each column is called.
COLUMNS = {
    "joined": "django-idempotency, PostgreSQL",
    "Redis": "django-idempotency, Redis",
    "drf-idempotency, database": "drf-idempotency 1.0.0, database",
    "drf-idempotency, Redis": "drf-idempotency 1.0.0, Redis",
    "drf-idempotencykey": "drf-idempotencykey 0.2.0",
    "django-idempotency-key, Redis": "django-idempotency-key 1.3.0, Redis lock",
}


#: The same of functions and tasks, and their environments.
CALL_COLUMNS = {
    "function, PostgreSQL": ("django-idempotency, a function, PostgreSQL", OURS),
    "function, DynamoDB": ("django-idempotency, a function, DynamoDB", OURS),
    "powertools": ("Powertools 3.37.0, a function, DynamoDB", "powertools"),
    "task, PostgreSQL": ("django-idempotency, a task, PostgreSQL", OURS),
    "celery-once": ("celery-once 3.0.1, a task, Redis", "celery-once"),
    "celery-singleton": ("celery-singleton 0.3.1, a task, Redis", "celery-singleton"),
}


def main() -> None:
    """Find the facts of each package, and write the tables: both, or the one that is named."""
    tables = {"views": (compare_views, VIEWS), "calls": (compare_calls, CALLS)}
    for name in sys.argv[1:] or tables:
        compare, path = tables[name]
        path.write_text(compare())
        print(path.read_text())


def compare_views() -> str:
    """Return the table of views."""
    facts = {}
    with ExitStack() as stack:
        postgres = stack.enter_context(durable_postgres())
        redis = stack.enter_context(RedisServer())
        for number, name in enumerate(COLUMNS):
            postgres.create_database(f"compare{number}")
            settings = postgres.django_settings(f"compare{number}")
            env = {
                "BENCHMARK_DATABASE": json.dumps({**settings, "HOST": SOCKETS, "OPTIONS": {}}),
                "BENCHMARK_REDIS": f"{redis.url}/{number}",
            }
            environment = VARIANTS[name].environment
            with Worker("benchmarks.compare_worker", name, environment, env) as worker:
                facts[name] = worker.ask("facts")
                print(name, json.dumps(facts[name], indent=2), flush=True)
    return table(facts)


def compare_calls() -> str:
    """Return the table of functions and tasks."""
    facts = {}
    with ExitStack() as stack:
        postgres = stack.enter_context(durable_postgres())
        redis = stack.enter_context(RedisServer())
        dynamodb = stack.enter_context(LockedMoto())
        _create_tables(dynamodb.url)
        for number, (name, (_, environment)) in enumerate(CALL_COLUMNS.items()):
            postgres.create_database(f"calls{number}")
            settings = postgres.django_settings(f"calls{number}")
            env = {
                **ENVIRONMENT,
                "AWS_ENDPOINT_URL_DYNAMODB": dynamodb.url,
                "BENCHMARK_DATABASE": json.dumps({**settings, "HOST": SOCKETS, "OPTIONS": {}}),
                "BENCHMARK_REDIS": redis.url,
            }
            with Worker("benchmarks.compare_calls_worker", name, environment, env) as worker:
                facts[name] = worker.ask("facts")
                print(name, json.dumps(facts[name], indent=2), flush=True)
    return calls_table(facts)


def _create_tables(url: str) -> None:
    import boto3

    known = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}
    client = boto3.client("dynamodb", endpoint_url=url, region_name="eu-west-1", **known)
    for table, key in {"powertools": "id", "idempotency": "idempotencyKey"}.items():
        client.create_table(**definition(table, Names(key, None, "", {})))
    client.close()


def calls_table(facts: dict[str, dict[str, Any]]) -> str:
    """Return the facts of functions and tasks as a table, a line for each case."""
    rows: dict[str, Callable[[dict[str, Any]], str]] = {
        "8 calls, or messages, within 0.1 s run work of 0.2 s": lambda found: f"{found['race']} ×",
        "a second one when the first is done": lambda found: _words(found["called again"]),
        "the message of the first, delivered again": lambda found: _words(found["delivered again"]),
        "another amount under the key": _other_amount,
        "the work raises, the next": lambda found: _words(found["raised"]),
        "killed in the work, the next": lambda found: _next(found["killed in the work"]),
        "killed after the commit, the next": lambda found: _next(found["killed after the commit"]),
        "stalls past its lease, another one is done": _after_stall,
    }
    lines = [["", *(CALL_COLUMNS[name][0] for name in facts)], ["---"] * (len(facts) + 1)]
    lines += [[what, *map(cell, facts.values())] for what, cell in rows.items()]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _words(found: str | None) -> str:
    words = {None: "–", "first result": "gets the first result", "runs again": "runs again"}
    return words.get(found, f"`{found}`")


def _other_amount(found: dict[str, Any]) -> str:
    said = _words(found["another amount"])
    if strict := found["another amount, strict"]:
        return f"{said}; `{strict}` if it is told to compare"
    return said


def _next(found: dict[str, Any]) -> str:
    effects = _effects(found)
    if found["at first"] is None:
        return f"at once, {effects}"
    return f"`{found['at first']}` until lease or lock are over, then {effects}"


def _after_stall(found: dict[str, Any]) -> str:
    stalled = found["stalled"]
    if found["called again"] != "first result":
        return _effects(stalled)
    return f"{_effects(stalled)}, {'its' if stalled['stays'] else '**the late**'} result stays"


def _effects(found: dict[str, Any]) -> str:
    return "one effect" if found["effects"] == 1 else f"**{found['effects']} effects**"


def table(facts: dict[str, dict[str, Any]]) -> str:
    """Return the facts as a table, a line for each case."""
    rows = [
        (
            "8 requests within 0.1 s run work of 0.2 s",
            [f"{found['race']} ×" for found in facts.values()],
        ),
        (
            "a retry gets the first answer",
            [_yes(found["replay is the first answer"]) for found in facts.values()],
        ),
        ("another body under the key", [_other_body(found) for found in facts.values()]),
        ("the key of another user", [_other_user(found) for found in facts.values()]),
        ("the work raises, a retry", [_after_failure(found["failed"]) for found in facts.values()]),
        (
            "killed in the work, a retry",
            [_after_kill(found["killed in the work"]) for found in facts.values()],
        ),
        (
            "killed after the commit, a retry",
            [_after_kill(found["killed after the commit"]) for found in facts.values()],
        ),
    ]
    lines = [["", *(COLUMNS[name] for name in facts)], ["---"] * (len(facts) + 1)]
    lines += [[what, *cells] for what, cells in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _yes(fact: bool) -> str:
    return "yes" if fact else "no"


def _other_body(found: dict[str, Any]) -> str:
    if found["another body gets the first answer"]:
        return "gets the first answer"
    return f"{found['another body']}" + (", runs" if found["another body"] == 201 else "")


def _other_user(found: dict[str, Any]) -> str:
    if found["another user gets the first answer"]:
        return "**gets the first user's answer**"
    return "is another key" if found["another user"] == 201 else f"{found['another user']}"


def _after_failure(found: dict[str, Any]) -> str:
    if found["retry"] == 201:
        return "runs again"
    return f"{found['retry']}: the error is kept" if found["retry"] >= 500 else str(found["retry"])


def _after_kill(found: dict[str, Any]) -> str:
    effect = _effects(found)
    if found["last"] >= 400:
        return f"**{found['last']}, still after 12 s**"
    if found["at first"] >= 400:
        return f"{found['at first']} until lease or lock are over, then {effect}"
    return f"at once, {effect}"


if __name__ == "__main__":
    main()
