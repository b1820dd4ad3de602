"""The tests' Django, whose arbiter has a keeper running as it forks its workers; see `wsgi`."""

from __future__ import annotations

import threading

from django.db import connections

import django_idempotency as idempotency
from django_idempotency.engine.renewal import lease_renewer as keeper
from tests.acceptance.processes.wsgi import application

__all__ = ["application"]

with idempotency.attempt(key="arbiter", scope="preload", transaction="separate") as _attempt:
    _attempt.complete(None)
connections.close_all()

# Without it the fork would prove nothing.
if not set(keeper._threads.values()) & set(threading.enumerate()):
    raise RuntimeError("The arbiter's keeper is not running.")
