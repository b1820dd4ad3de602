"""
The tests' Django under the policy in the file IDEMPOTENCY_TEST_POLICY, read at each request.

So one server does for all tests. A thread's connection ends with its policy: it may have been kept
open, with plans prepared under it. ``"unfenced"`` is a defect: the owner's last write asks for the
record's id and no more.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.signals import setting_changed
from django.db import connections

from django_idempotency.stores.database.mariadb import MariaDB
from django_idempotency.stores.database.postgresql import PostgreSQL
from django_idempotency.stores.database.sqlite import SQLite
from tests.services.wsgi import application as django_application

POLICY = Path(os.environ["IDEMPOTENCY_TEST_POLICY"])
FENCED = {dialect: dialect.COMPLETE for dialect in (MariaDB, PostgreSQL, SQLite)}
FENCE = r"\s+AND (record\.)?(epoch|token|state) = \S+"
_thread = threading.local()


@cache
def follow(text: str) -> None:
    """Let this policy count from now on; the file says each only once."""
    policy = json.loads(text)
    for dialect, complete in FENCED.items():
        dialect.COMPLETE = re.sub(FENCE, "", complete) if policy["unfenced"] else complete
    connections.settings["default"].update(policy["database"])
    settings.IDEMPOTENCY = {**settings.IDEMPOTENCY, "default": policy["policy"]}
    setting_changed.send(None, setting="IDEMPOTENCY", value=settings.IDEMPOTENCY, enter=True)


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    policy = POLICY.read_text()
    follow(policy)
    if getattr(_thread, "policy", policy) != policy:
        connections.close_all()
    _thread.policy = policy
    return django_application(environ, start_response)
