"""The environments that the variants run in: ours, and one for each other package."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.services.packages import install_once

__all__ = ["OURS", "RIVALS", "python_of"]

ROOT = Path(__file__).resolve().parent.parent
#: The environment of this process.
OURS = "ours"

#: For the work that is guarded: it writes to the project's database.
_WORK = ("Django==5.2.*", "psycopg[binary]")
_SITE = (*_WORK, "djangorestframework", "gunicorn", "redis[hiredis]")

#: What is installed for each package that we are measured beside.
RIVALS: dict[str, tuple[str, ...]] = {
    "drf-idempotency": ("drf-idempotency==1.0.0", *_SITE),
    "drf-idempotencykey": ("drf-idempotencykey==0.2.0", *_SITE),
    "django-idempotency-key": ("django-idempotency-key==1.3.0", *_SITE),
    "powertools": ("aws-lambda-powertools==3.37.0", "boto3", *_WORK),
    "celery-once": ("celery-once==3.0.1", "celery[redis]", *_WORK),
    "dbos": ("dbos==3.4.0", *_WORK),
    "celery-singleton": ("celery-singleton==0.3.1", "celery[redis]", *_WORK),
}


_INSTALL = """
folder=$1; shift
"$0" -m venv --clear "$folder" &&
exec "$folder/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
"""


def python_of(environment: str) -> str:
    """
    Return the interpreter of an environment, which is made if it is not there: `.bench/NAME`.

    Raises MissingService if its packages cannot be installed.
    """
    if environment == OURS:
        return sys.executable
    folder = ROOT / ".bench" / environment
    folder.mkdir(parents=True, exist_ok=True)
    wanted = RIVALS[environment]
    command: list[str | Path] = ["/bin/sh", "-c", _INSTALL, sys.executable, folder, *wanted]
    install_once(folder / "installed", "\n".join(wanted), command)
    return str(folder / "bin" / "python")
