"""`make services`: what tests need of the system, and installing what of it is missing."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.services import MissingService
from tests.services.processes import ROOT

# Where Debian puts servers, and where a user's PATH does not look.
SERVERS = ("/usr/local/sbin", "/usr/sbin", "/sbin")


@dataclass(frozen=True)
class Program:
    """A program by its name on PATH, the variable that may name another, and Debian's package."""

    name: str
    variable: str | None
    package: str


#: One line for each. Those without a variable build the driver of MariaDB.
PROGRAMS = [
    Program("chromium", "IDEMPOTENCY_TEST_CHROMIUM", "chromium"),
    Program("mariadbd", "IDEMPOTENCY_TEST_MARIADBD", "mariadb-server"),
    Program("mariadb-install-db", "IDEMPOTENCY_TEST_MARIADB_INSTALL_DB", "mariadb-server"),
    Program("pgbouncer", "IDEMPOTENCY_TEST_PGBOUNCER", "pgbouncer"),
    Program("rabbitmq-server", "IDEMPOTENCY_TEST_RABBITMQ", "rabbitmq-server"),
    Program("epmd", "IDEMPOTENCY_TEST_EPMD", "erlang-base"),
    Program("gcc", None, "build-essential"),
    Program("mariadb_config", None, "libmariadb-dev"),
    Program("pkg-config", None, "pkg-config"),
]
#: Modules that are compiled here, and their groups in pyproject.toml.
COMPILED = {"MySQLdb": "mariadb"}

# No server is started by its installation, as it is not in a container: tests start their own.
INSTALL = """
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
    trap 'rm -f $policy' EXIT
    printf '#!/bin/sh\\nexit 101\\n' >$policy && chmod 755 $policy
fi
export DEBIAN_FRONTEND=noninteractive
apt-get -q -o DPkg::Lock::Timeout=120 update
apt-get -q -y -o DPkg::Lock::Timeout=120 install --no-install-recommends "$@"
"""


def find(name: str) -> Path:
    """Return where this one of PROGRAMS is; MissingService with the command that installs it."""
    program = next(program for program in PROGRAMS if program.name == name)
    if path := _path(program):
        return path
    if program.variable is None:
        hint = ""
    elif named := os.environ.get(program.variable):
        raise MissingService(f"{program.variable}={named} is not a program that can be started.")
    else:
        hint = f", or name one in {program.variable}"
    raise MissingService(
        f"{name} is not on this machine. Install it with: make services (on Debian as root: "
        f"apt-get install {program.package}){hint}"
    )


def main() -> int:
    """Install what is missing, or say how to; what cannot be had is for its tests to report."""
    if missing := [program for program in PROGRAMS if _path(program) is None]:
        _install(missing)
    for module, group in COMPILED.items():
        if importlib.util.find_spec(module) is None:
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--group", group]
            _try(f"pip install --group {group}", pip)
    return 0


def install_once(marker: Path, wanted: str, command: list[str | Path], **options: Any) -> None:
    """Run a command, unless the file `marker` says that what is `wanted` was installed by it."""
    folder = os.open(options.get("cwd", marker.parent), os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)  # another xdist worker may be at it
        if marker.exists() and marker.read_text() == wanted:
            return
        words = " ".join(map(str, command))
        print(f"==> {words}", file=sys.stderr, flush=True)
        done = _run(command, **options)
        if done.returncode != 0:
            raise MissingService(f"This could not be installed: {words}. It said:\n{done.stdout}")
        marker.write_text(wanted)
    finally:
        os.close(folder)


def _install(missing: list[Program]) -> None:
    packages = sorted({program.package for program in missing})
    root = _as_root()
    if shutil.which("apt-get") is None or root is None:
        names = ", ".join(program.name for program in missing)
        print(f"Tests need what is not on this machine: {names}")
        print(f"On Debian: sudo apt-get install {' '.join(packages)}")
        return
    command = [*root, "sh", "-c", INSTALL, "sh", *packages]
    _try(f"apt-get install {' '.join(packages)}", command)


def _try(what: str, command: Sequence[str | Path]) -> None:
    print(f"==> {what} (half a minute)", flush=True)
    result = _run(command, cwd=ROOT)
    if result.returncode != 0:
        print(f"{result.stdout}That failed; the tests will say what is missing.")


def _run(command: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[str]:
    options |= {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "text": True}
    return subprocess.run(command, check=False, stderr=subprocess.STDOUT, **options)


def _path(program: Program) -> Path | None:
    if program.variable is not None and (named := os.environ.get(program.variable)):
        return Path(named) if os.access(named, os.X_OK) else None
    folders = os.pathsep.join([os.environ.get("PATH", ""), *SERVERS])
    found = shutil.which(program.name, path=folders)
    return None if found is None else Path(found)


def _as_root() -> list[str] | None:
    """Return the words that make a command root's; None if nobody here may be root."""
    if os.geteuid() == 0:
        return []
    if shutil.which("sudo") is None:
        return None
    asked = subprocess.run(["sudo", "-n", "true"], check=False, capture_output=True)
    return ["sudo", "-n"] if asked.returncode == 0 else None


if __name__ == "__main__":
    sys.exit(main())
