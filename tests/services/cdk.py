"""aws-cdk-lib in an environment of its own: half a gigabyte that only one test needs."""

from __future__ import annotations

import fcntl
import os
import subprocess
import venv
from pathlib import Path

from tests.services import MissingService
from tests.services.dynamodb import find_node
from tests.services.processes import ROOT

FOLDER = ROOT / ".cdk"
PACKAGE = "aws-cdk-lib>=2.200,<3"
SECONDS = 300


def find_python() -> Path:
    """The interpreter that has aws-cdk-lib, which is installed unless it is there."""
    python, installed = FOLDER / "bin" / "python", FOLDER / ".installed"
    FOLDER.mkdir(exist_ok=True)
    folder = os.open(FOLDER, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)  # another xdist worker may be at it
        if not installed.exists() or installed.read_text() != PACKAGE:
            print(f"==> installing {PACKAGE} into {FOLDER}", flush=True)
            venv.create(FOLDER, with_pip=True)
            command = [str(python), "-m", "pip", "install", "--quiet", PACKAGE]
            done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
            if done.returncode != 0:
                raise MissingService(f"pip could not install {PACKAGE}:\n{done.stderr}")
            installed.write_text(PACKAGE)
    finally:
        os.close(folder)
    return python


def synthesize(script: str, *arguments: str) -> str:
    """Run a script that has aws_cdk, and return what it prints."""
    done = subprocess.run(
        [find_python(), "-c", script, *arguments],
        env={**os.environ, "JSII_NODE": str(find_node()), "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


if __name__ == "__main__":
    try:
        find_python()
    except MissingService as missing:
        print(missing)  # for the test that needs it to report
