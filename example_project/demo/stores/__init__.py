"""
Where the demo keeps its records: ``IDEMPOTENCY_STORE=redis make demo``.

Each module here is a store of that name. Its ``started(directory)`` is a context manager that runs
the server and gives the environment variables which the settings read, and what to call it.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


class NoSuchStore(Exception):
    """The demo knows no store of that name, or this machine has no server for it."""


@dataclass(frozen=True)
class Started:
    """A store that is ready."""

    #: What the settings read.
    environ: Mapping[str, str]
    #: What to call it in the story.
    name: str


@contextmanager
def started(directory: Path) -> Iterator[Started | None]:
    """Run the server of the store that IDEMPOTENCY_STORE names; None for the database's own."""
    chosen = os.environ.get("IDEMPOTENCY_STORE", "database")
    if chosen == "database":
        yield None
        return
    known = sorted(module.name for module in pkgutil.iter_modules(__path__))
    if chosen not in known:
        raise NoSuchStore(f"IDEMPOTENCY_STORE={chosen}: one of {', '.join(['database', *known])}")
    module = importlib.import_module(f"{__name__}.{chosen}")
    with module.started(directory) as store:
        yield store
