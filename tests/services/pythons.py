"""`make tox`: the matrix on every Python of this machine, and what had to be left out."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.services.processes import ROOT

MINORS = range(10, 15)


def main() -> int:
    """Run tox on what is here; its exit code."""
    found = {minor: path for minor in MINORS if (path := find(minor)) is not None}
    for minor in MINORS:
        print(f"Python 3.{minor}: {found.get(minor, 'not on this machine')}", flush=True)
    tox = [sys.executable, "-m", "tox"]
    listed = subprocess.run(
        [*tox, "list", "--no-desc", "-q"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    minors = {
        name: int(minor) for name, minor in re.findall(r"(?m)^(py3(\d+)-\S+)$", listed.stdout)
    }
    here = [name for name, minor in minors.items() if minor in found]
    left_out = [name for name in minors if name not in here]
    if not here:
        print("no Python for any environment")
        return 1
    command = [*tox, "run", "--discover", *map(str, found.values()), "-e", ",".join(here)]
    code = subprocess.run([*command, *sys.argv[1:]], cwd=ROOT, check=False).returncode
    print(f"ran: {', '.join(here)}")
    print(f"left out, for want of the interpreter: {', '.join(left_out) or 'nothing'}")
    return code


def find(minor: int) -> Path | None:
    """A CPython 3.`minor` that starts (a pyenv shim may not), from PATH or ~/.pyenv."""
    code = "import sys; print(sys.version_info[1], sys.executable)"
    for path in _candidates(minor):
        answer = subprocess.run([path, "-c", code], check=False, capture_output=True, text=True)
        version, _, executable = answer.stdout.strip().partition(" ")
        if version == str(minor):
            return Path(executable)
    return None


def _candidates(minor: int) -> Iterator[Path]:
    if on_path := shutil.which(f"python3.{minor}"):
        yield Path(on_path)
    versions = Path.home() / ".pyenv" / "versions"
    folders = [path for path in versions.glob(f"3.{minor}.*") if path.name.split(".")[2].isdigit()]
    for folder in sorted(folders, key=lambda path: -int(path.name.split(".")[2])):
        yield folder / "bin" / "python"


if __name__ == "__main__":
    sys.exit(main())
