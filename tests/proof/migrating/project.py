"""A project that is being migrated: its database, and its processes."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

from benchmarks.workers import Worker
from tests.proof.migrating.worker import SETTINGS
from tests.services import or_skip


class Project:
    """A project whose processes each run one deployment of a guide."""

    def __init__(self, guide, environment, folder, env, **settings):
        self.guide, self.environment, self.env = guide, environment, env
        self._database = str(folder / "shop.sqlite3")
        database = {"ENGINE": "django.db.backends.sqlite3", "NAME": self._database}
        self._settings = {"DATABASES": {"default": database}, **settings}

    def start(self, deployment, **env):
        """Start a process, a context manager."""
        variant = f"docs/howto/{self.guide}.md {deployment}"
        env = {**self.env, SETTINGS: json.dumps(self._settings), **env}
        module = "tests.proof.migrating.worker"
        process = or_skip(lambda: Worker(module, variant, self.environment, env))
        process.ask("ready")  # its database is migrated: one process at a time
        return process

    def effects(self, reference):
        """Return how often the work has been done."""
        with closing(sqlite3.connect(self._database)) as connection:
            query = "SELECT count(*) FROM app_payment WHERE reference = ?"
            return connection.execute(query, [reference]).fetchone()[0]
