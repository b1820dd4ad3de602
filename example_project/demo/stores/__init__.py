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
from types import ModuleType


class NoSuchStore(Exception):
    """The demo knows no store of that name, or this machine has no server for it."""


@dataclass(frozen=True)
class Started:
    """A store that is ready."""

    #: What the settings read.
    environ: Mapping[str, str]
    #: What to call it in the story.
    name: str


def chosen() -> ModuleType | None:
    """Return the store that IDEMPOTENCY_STORE names, None for the database; raise NoSuchStore."""
    name = os.environ.get("IDEMPOTENCY_STORE", "database")
    if name == "database":
        return None
    known = sorted(module.name for module in pkgutil.iter_modules(__path__))
    if name not in known:
        raise NoSuchStore(f"IDEMPOTENCY_STORE={name}: one of {', '.join(['database', *known])}")
    return importlib.import_module(f"{__name__}.{name}")


@contextmanager
def started(module: ModuleType | None, directory: Path) -> Iterator[Started | None]:
    """Run the server of a store; None for the database's own."""
    if module is None:
        yield None
        return
    with module.started(directory) as store:
        yield store
