"""Contracts that run against both servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

import pytest

from django_idempotency.testing.http_contract import HTTPContract
from tests.services.gunicorn import Gunicorn
from tests.services.servers import Server

SERVERS = ("gunicorn", "uvicorn")

#: What a server cannot show, and why.
NOT_UNDER: Mapping[str, Mapping[str, str]] = {
    "gunicorn": {
        "test_R46_chunked_equals_sized": "under WSGI Django takes a body in chunks for an empty one"
    },
    "uvicorn": {},
}


class Served(HTTPContract):
    """Asks a project of these tests; `base_url` is where its server happens to be."""

    project: ClassVar[str]
    #: The tests that run, each against these servers; without it all of them, against both.
    selection: ClassVar[Mapping[str, tuple[str, ...]] | None] = None
    server: Server
    directory: Path

    @pytest.fixture(autouse=True)
    def _served(
        self, serve: Callable[[str, str], Server], contract_directory: Path, server_name: str
    ) -> None:
        self.server = serve(self.project, server_name)
        self.base_url = self.server.url
        self.directory = contract_directory

    def crash(self) -> None:
        """Kill all that serves, and return when it is served again."""
        if isinstance(self.server, Gunicorn):
            self.server.kill_workers()
        else:
            self.server.kill()
            self.server.start()
        self.base_url = self.server.url

    def log(self) -> str:
        return self.server.output


def runs_under(contract: type[Served], test: str) -> list[str]:
    chosen = SERVERS if contract.selection is None else contract.selection[test]
    return [name for name in chosen if test not in NOT_UNDER[name]]


def all_but(selection: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    tests = [name for name in dir(HTTPContract) if name.startswith("test_R")]
    assert set(selection) <= set(tests), set(selection) - set(tests)
    return {name: "runs in process, and in `make proof`" for name in tests if name not in selection}
