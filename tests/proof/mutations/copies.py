"""Copies of the project in which a change is made, and its tests are run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from compileall import compile_dir
from contextlib import contextmanager
from pathlib import Path
from py_compile import PycInvalidationMode

from tests.services import LEG_VARIABLE
from tests.services.processes import ROOT, RUN_VARIABLE

#: What a test needs of the project. Nothing is written into the checkout.
COPIED = ("django_idempotency", "tests", "example_project", "docs", "benchmarks")
PATIENCE = 300


def copy_project(directory: Path) -> Path:
    """Copy what the tests need, so that the checkout is never changed."""
    ignored = shutil.ignore_patterns("__pycache__", "_build", "node_modules")
    directory.mkdir()
    for name in COPIED:
        shutil.copytree(ROOT / name, directory / name, ignore=ignored)
    for installed in ROOT.glob("tests/services/*/node_modules"):
        (directory / installed.relative_to(ROOT)).symlink_to(installed)
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, directory)
    # By hash: a change within the second, of the same length, is read.
    package = directory / "django_idempotency"
    compile_dir(package, quiet=2, invalidation_mode=PycInvalidationMode.CHECKED_HASH)
    return directory


@contextmanager
def changed(path: Path, text: str) -> Iterator[None]:
    """Let the file be `text` in the block."""
    original = path.read_text()
    path.write_text(text)
    try:
        yield
    finally:
        path.write_text(original)


def environment(copy: Path, leg: str) -> dict[str, str]:
    """Return the variables of a pytest in the copy, which is no part of a run of ours."""
    variables = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": ""}
    variables.pop(RUN_VARIABLE, None)
    if leg:
        variables[LEG_VARIABLE] = leg
    return variables


def run_pytest(
    copy: Path,
    words: Sequence[str],
    *,
    leg: str = "",
    patience: float = PATIENCE,
    runner: Sequence[str] = ("pytest", "-x"),
    env: Mapping[str, str] | None = None,
) -> int:
    """Run tests in the copy until one fails; the exit code, 1 if they take too long."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", *runner, "-q", "-p", "no:cacheprovider", *words],
            cwd=copy,
            env={**environment(copy, leg), **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=patience,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 1  # a test that hangs is noticed
    return done.returncode
