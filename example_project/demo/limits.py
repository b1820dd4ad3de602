"""What the library cannot do, and what a store can lose: each shown, none prevented."""

from __future__ import annotations

import io
import os
from pathlib import Path

from django.core.management import call_command

from example_project.demo import scenes
from example_project.demo.output import Printer
from example_project.demo.scenes import Scene, WentWrong
from example_project.demo.server import Server
from example_project.demo.stores.redis import RedisServer

FORGOTTEN = "it is sent again after the retention"
IN_REDIS = f"records in Redis: {scenes.KILLED}"
EMPTY = "records in Redis without a log, and Redis is restarted"
LOGGED = "records in Redis with a log, and Redis is restarted"


def play(directory: Path, server: Server, out: Printer) -> dict[str, int]:
    """Show each limit; return how often its payment was charged."""
    counts = {FORGOTTEN: forgotten(server, out)}
    environ = {name: value for name, value in os.environ.items() if name != "EXAMPLE_TRANSACTION"}
    with RedisServer(directory / "records", appendonly="no") as redis:
        environ.update(IDEMPOTENCY_STORE="redis", EXAMPLE_REDIS_URL=redis.url)
        with Server(directory, environ) as on_redis:
            on_redis.start()
            counts.update(in_redis(redis, on_redis, out))
    return counts


def in_redis(redis: RedisServer, server: Server, out: Printer) -> dict[str, int]:
    """Kill a process of the shop, and then Redis."""
    counts = {}
    out.headline(f"With records in {redis.name}: {scenes.KILLED}")
    scene = Scene(server, out, 20_00)
    scenes.killed(scene)
    counts[IN_REDIS] = scene.charged(2)
    out.says("The payment commits, then its record: a process that dies between the two leaves a")
    out.says("payment without a record. DynamoDB, and the mode separate, are no better. Money")
    out.says("belongs into the database store, joined or single.")
    for name, appendonly, times in ((EMPTY, "no", 2), (LOGGED, "yes", 1)):
        out.headline(f"{redis.name} is killed and started again, with appendonly {appendonly}")
        scene = Scene(server, out, 5_00)
        redis.restart(appendonly)
        scene.send()
        redis.restart(appendonly)
        scene.send()
        counts[name] = scene.charged(times)
    return counts


def forgotten(server: Server, out: Printer) -> int:
    """End the retention of a key, and send its payment again."""
    out.headline("A client sends its payment again after the retention: tomorrow, say")
    scene = Scene(server, out, 3_00)
    scene.send()
    words = ["idempotency_expire", scene.key, "--scope", "alice", "--reason", "for the demo"]
    out.says("manage.py idempotency_expire ends the retention of 24 hours now")
    with io.StringIO() as told:
        call_command(*words, "--no-input", stdout=told)
    if scene.send().replayed:
        raise WentWrong("An expired key was replayed.")
    return scene.charged(2)
