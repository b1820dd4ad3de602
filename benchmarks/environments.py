"""The environments that the variants run in: ours, and one for each other package."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

__all__ = ["OURS", "RIVALS", "python_of"]

ROOT = Path(__file__).resolve().parent.parent
#: The environment of this process.
OURS = "ours"

_SITE = ("Django==5.2.*", "djangorestframework", "psycopg[binary]", "redis[hiredis]")

#: What is installed for each package that we are measured beside.
RIVALS: dict[str, tuple[str, ...]] = {
    "drf-idempotency": ("drf-idempotency==1.0.0", *_SITE),
    "drf-idempotencykey": ("drf-idempotencykey==0.2.0", *_SITE),
    "django-idempotency-key": ("django-idempotency-key==1.3.0", *_SITE),
    "celery-once": ("celery-once==3.0.1", "celery[redis]"),
    "celery-singleton": ("celery-singleton==0.3.1", "celery[redis]"),
}


def python_of(environment: str) -> str:
    """Return the interpreter of an environment, which is made if it is not there: `.bench/NAME`."""
    if environment == OURS:
        return sys.executable
    folder = ROOT / ".bench" / environment
    python = folder / "bin" / "python"
    installed = folder / "installed"
    wanted = "\n".join(RIVALS[environment])
    if not installed.exists() or installed.read_text() != wanted:
        print(f"==> installing {environment} into {folder.relative_to(ROOT)}", flush=True)
        venv.create(folder, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *RIVALS[environment]], check=True)
        installed.write_text(wanted)
    return str(python)
