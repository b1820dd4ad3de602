"""
Try the built packages as a user installs them: ``python -m tests.proof.packages``, or `make dist`.

Each extra is installed from the wheel into an environment of its own, in which a project with one
guarded view answers a request and its retry. The tutorial is typed into an empty folder. The tests
then run against the wheel, from a folder in which the source is not.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

from tests.pages import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: What must be importable with each extra alone; "" stands for none.
EXTRAS: dict[str, tuple[str, ...]] = {
    "": ("django_idempotency.http", "django_idempotency.testing"),
    "celery": ("django_idempotency.contrib.celery", "packaging"),
    "drf": ("django_idempotency.contrib.rest_framework",),
    "dynamodb": ("boto3", "django_idempotency.stores.dynamodb"),
    "encryption": ("cryptography", "django_idempotency.codecs.encryption"),
    "events": ("django_idempotency.contrib.events", "jmespath"),
    "httpx": ("django_idempotency.client.httpx",),
    "ninja": ("django_idempotency.contrib.ninja",),
    "openapi": ("django_idempotency.contrib.spectacular",),
    "opentelemetry": ("django_idempotency.contrib.opentelemetry.metrics",),
    "postgres": ("psycopg", "psycopg_pool", "psycopg_binary"),
    "postgres-python": ("psycopg_pool",),
    "prometheus": (
        "django_idempotency.contrib.prometheus.collector",
        "django_idempotency.contrib.prometheus.metrics",
    ),
    "redis": ("redis", "hiredis", "django_idempotency.stores.redis"),
    "requests": ("django_idempotency.client.requests",),
}
#: What the tests read of the checkout besides the package.
_SUITE = (
    *("tests", "example_project", "docs", "pyproject.toml", "tox.ini", "Makefile"),
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"),
)
#: Tests that read the source, or put defects into it.
_OF_THE_SOURCE = ("project", "contract", "core/test_imports.py", "core/test_columns.py")
_COPIED = shutil.ignore_patterns("__pycache__", "_build", "node_modules")
#: A project in one file: its settings, its view, a request and its retry.
_PROJECT = """
import importlib, sys
import django
from django.conf import settings
from django.http import JsonResponse
from django.urls import path

settings.configure(
    SECRET_KEY="packages", ROOT_URLCONF=__name__, ALLOWED_HOSTS=["testserver"],
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "django_idempotency"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    IDEMPOTENCY={"default": {"HTTP": {"SCOPE": "django_idempotency.http.scopes.anyone"}}},
)
django.setup()
from django.core.management import call_command
from django.test import Client
from django_idempotency.http import idempotent

runs = []

@idempotent(required=True)
def pay(request):
    runs.append(1)
    return JsonResponse({"payment": len(runs)}, status=201)

urlpatterns = [path("pay/", pay)]
for name in sys.argv[1:]:
    importlib.import_module(name)
call_command("check", fail_level="WARNING")
call_command("migrate", verbosity=0)
first, retry = (Client().post("/pay/", headers={"Idempotency-Key": "k"}) for _ in range(2))
assert (first.status_code, first.content, runs) == (201, retry.content, [1]), (first, retry, runs)
assert retry.headers["Idempotency-Replayed"] == "true"
assert "/site-packages/" in importlib.import_module("django_idempotency").__file__
"""


def main() -> int:
    """Try what is named, or everything; 0 if all of it works."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof.packages", description=__doc__)
    parser.add_argument("wheel", type=Path, help="the built wheel")
    parser.add_argument("--without-suite", action="store_true", help="only the extras")
    arguments = parser.parse_args()
    wheel = arguments.wheel.resolve()
    with tempfile.TemporaryDirectory(prefix="idempotency-packages-") as directory:
        folder = Path(directory)
        (folder / "project.py").write_text(_PROJECT)
        with ThreadPoolExecutor(2) as pool:
            right = all(list(pool.map(lambda extra: _tried(wheel, extra, folder), EXTRAS)))
        if right and not arguments.without_suite:
            right = _tutorial(wheel) and _suite(wheel, folder)
    print("Every package came out right." if right else "A package is wrong: see above.")
    return 0 if right else 1


def extras_of_the_project() -> dict[str, list[str]]:
    """Return the requirements of each extra."""
    return _project()["optional-dependencies"]


def lowest_versions() -> set[str]:
    """Return each requirement of the project as the lowest version that it allows."""
    wanted = [*_project()["dependencies"], *chain(*extras_of_the_project().values())]
    return {re.sub(r">=([\d.]+).*", r"==\1", requirement) for requirement in wanted}


def _project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def _tried(wheel: Path, extra: str, folder: Path) -> bool:
    """Whether a project works where the wheel is installed with this extra and nothing else."""
    python = _environment(folder / f"extra-{extra}", f"{wheel}[{extra}]" if extra else str(wheel))
    done = _run(str(python), str(folder / "project.py"), *EXTRAS[extra], cwd=folder)
    print(f"{'ok  ' if done else 'FAIL'} the extra {extra or '(none)'}", flush=True)
    return done


def _tutorial(wheel: Path) -> bool:
    """Whether the tutorial comes out right, from `pip install` on."""
    done = _run(sys.executable, "-m", "tests.tutorial", str(wheel.parent), cwd=ROOT)
    print(f"{'ok  ' if done else 'FAIL'} the tutorial", flush=True)
    return done


def _suite(wheel: Path, folder: Path) -> bool:
    """Whether the tests that need no server pass on the wheel."""
    copy = folder / "suite"
    copy.mkdir()
    for name in _SUITE:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=_COPIED)
        else:
            shutil.copy(source, copy)
    group = ("--group", f"{ROOT / 'pyproject.toml'}:test")
    python = _environment(folder / "suite-environment", str(wheel), *group)
    ignored = [*(f"--ignore=tests/unit/{name}" for name in _OF_THE_SOURCE)]
    command = ["-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", *ignored, "tests/unit"]
    done = _run(str(python), *command, cwd=copy)
    print(f"{'ok  ' if done else 'FAIL'} the tests on the wheel", flush=True)
    return done


def _environment(folder: Path, *requirements: str) -> Path:
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if "--group" in requirements:
        subprocess.run([*pip[:-2], "--quiet", "--upgrade", "pip"], check=True)
    subprocess.run([*pip, *requirements], check=True)
    return python


def _run(*command: str, cwd: Path) -> bool:
    """Run a command outside of the checkout, and print what it said if it fails."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(done.stdout[-4000:], done.stderr[-4000:], flush=True)
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
