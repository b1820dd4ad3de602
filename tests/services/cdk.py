"""aws-cdk-lib in an environment of its own: half a gigabyte that only one test needs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.services import MissingService
from tests.services.dynamodb import find_node
from tests.services.packages import install_once
from tests.services.processes import ROOT

FOLDER = ROOT / ".cdk"
PACKAGE = "aws-cdk-lib>=2.200,<3"
SECONDS = 300


def find_python() -> Path:
    python = FOLDER / "bin" / "python"
    FOLDER.mkdir(exist_ok=True)
    install = f'"{sys.executable}" -m venv "{FOLDER}" && "{python}" -m pip install -q "{PACKAGE}"'
    install_once(FOLDER / ".installed", PACKAGE, ["/bin/sh", "-c", install])
    return python


def synthesize(script: str, *arguments: str) -> str:
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
