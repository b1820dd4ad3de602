"""The shop as its Procfile runs it: a server, a worker and beat, on the servers of compose.yaml."""

from __future__ import annotations

import gc
import http.client
import os
import shlex
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path

import psycopg
import pytest
import yaml
from celery import Celery

from example_project.demo.client import Client
from tests.acceptance.databases import own_database
from tests.services.processes import ROOT, wait_until
from tests.services.redis import RedisServer
from tests.services.servers import HOST, OwnServer

pytestmark = pytest.mark.processes

HONCHO = [sys.executable, "-m", "honcho", "--procfile", str(ROOT / "example_project/Procfile")]
COMPOSE = yaml.safe_load((ROOT / "example_project/compose.yaml").read_text())


class Procfile(OwnServer):
    """The processes that serve, under honcho."""

    name = "honcho"
    start_seconds = 120.0
    telling = True

    @property
    def _cwd(self) -> Path:
        return ROOT

    def _command(self) -> list[str | Path]:
        return [*HONCHO, "start", "--port", str(self.port), "web", "worker", "beat"]

    def _answers(self) -> bool:
        with suppress(OSError), closing(http.client.HTTPConnection(HOST, self.port)) as connection:
            connection.request("GET", "/checkout/")
            return connection.getresponse().status == 200
        return False


def test_the_procfile_answers_replays_and_works_off_tasks(tmp_path):
    _, *words = shlex.split(COMPOSE["services"]["valkey"]["command"])
    options = zip(words[::2], words[1::2], strict=True)
    broker = RedisServer(**{name[2:].replace("-", "_"): value for name, value in options})
    with own_database() as database, broker:
        env = {
            "DJANGO_SETTINGS_MODULE": "example_project.settings",
            "EXAMPLE_DATABASE_URL": database,
            "EXAMPLE_BROKER_URL": broker.url,
            "PROMETHEUS_MULTIPROC_DIR": str(tmp_path),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
        release = [*HONCHO, "start", "release"]
        subprocess.run(release, cwd=ROOT, env={**os.environ, **env}, check=True)
        with Procfile(env=env) as shop:
            alice = Client(shop.port, "alice", "alice-demo")
            coffee = {"account": 1, "amount": 1250, "reference": "coffee"}
            answers = [alice.post("/api/payments/", coffee, "coffee") for _ in range(2)]
            with Celery(broker=broker.url, backend=broker.url) as app:
                name, tea = "example_project.shop.tasks.capture_payment", (1, 800, "tea")
                tasks = [app.send_task(name, tea) for _ in range(2)]
                results = [task.get(timeout=120) for task in tasks]
                del tasks
                gc.collect()  # Celery 5.5 tells the broker of it, and tries again while it is gone
            load = [sys.executable, "-m", "example_project.load", "--seconds", "2"]
            loaded = subprocess.run(
                [*load, "--url", f"http://{HOST}:{shop.port}"],
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=False,
            )
            metrics = alice.get("/metrics/").body.decode()
            styles = alice.get("/static/admin/css/base.css")
            wait_until(lambda: "beat: Starting" in shop.output, seconds=120, what="beat to start")
        with psycopg.connect(database) as session:
            count = "SELECT count(*) FROM shop_payment WHERE reference IN ('coffee', 'tea')"
            paid = session.execute(count).fetchone()

    assert [(a.status, a.replayed) for a in answers] == [(201, False), (201, True)]
    assert answers[0].body == answers[1].body
    assert results[0] == results[1]
    assert paid == (2,)
    assert loaded.returncode == 0, loaded.stdout + loaded.stderr
    assert "       0  orders not charged exactly once" in loaded.stdout
    assert 'operation="POST payment-list",outcome="replayed"' in metrics
    assert styles.status == 200
