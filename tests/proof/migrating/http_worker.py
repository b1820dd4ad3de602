"""
A process of one deployment that answers requests: the project that a guide shows.

``python -m benchmarks.worker`` starts it in the environment of another package, with the source of
this one beside it.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.pages import ROOT, blocks_of

#: JSON: the settings of the project, and where its view is.
PROJECT = "MIGRATING_PROJECT"
#: For how long a request waits for another process.
PATIENCE = 30
USERS = ("alice", "bob")

#: What "..." in the settings of a guide stands for.
_REST: dict[str, list[str]] = {
    "INSTALLED_APPS": [
        "django.contrib.auth",
        "django.contrib.contenttypes",
        "rest_framework",
        "rest_framework.authtoken",
        "shop",
    ],
    "MIDDLEWARE": ["django.middleware.common.CommonMiddleware"],
}
_MODELS = """
from django.db import models


class Payment(models.Model):
    amount = models.IntegerField()
"""
_URLS = """
from django.urls import path
from shop import views

view = views.{view}
urlpatterns = [path("{path}", view.as_view() if isinstance(view, type) else view)]
"""


def prepare(variant: str) -> dict[str, Callable[..., Any]]:
    """Start a deployment of a guide, ``docs/howto/….md before``, and return its commands."""
    page, deployment = variant.split()
    given = json.loads(os.environ[PROJECT])
    shown = _write_shop(ROOT / page, deployment, given)
    from django.conf import settings

    settings.configure(
        ALLOWED_HOSTS=["testserver"],
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        REST_FRAMEWORK={
            "DEFAULT_AUTHENTICATION_CLASSES": ["rest_framework.authentication.TokenAuthentication"],
        },
        ROOT_URLCONF="shop.urls",
        SECRET_KEY="of a test",
        USE_TZ=True,
        **_merged(shown, given["settings"]),
    )
    import django

    django.setup()
    from django.core.management import call_command

    call_command("migrate", run_syncdb=True, verbosity=0)
    return {**_commands(given["path"]), "manage": lambda words: call_command(*words, verbosity=0)}


def _write_shop(page: Path, deployment: str, given: dict[str, Any]) -> dict[str, Any]:
    """Write the modules of the project where they can be imported, and return its settings."""
    folder = Path(tempfile.mkdtemp(dir=given["folder"]))
    sys.path.insert(0, str(folder))
    files = {
        "shop": "",
        "shop.models": _MODELS,
        "shop.urls": _URLS.format(view=given["view"], path=given["path"]),
    }
    settings: dict[str, Any] = {}
    for block in blocks_of(page):
        words = block.marker.split()
        if words[:1] != [f"deployment={deployment}"]:
            continue
        if words[1:] == ["settings"]:
            exec(block.text.replace("redis://127.0.0.1:6379", given["redis"]), settings)
        else:
            files[words[1].removeprefix("module=")] = block.text
    (folder / "shop").mkdir()
    for name, text in files.items():
        path = folder / name.replace(".", "/")
        (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).write_text(text)
    return {name: value for name, value in settings.items() if name.isupper()}


def _merged(shown: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a guide with the rest of the project's, and with those `given`."""
    merged = {
        name: [*rest, *(item for item in shown.get(name, ()) if item is not ...)]
        for name, rest in _REST.items()
    }
    merged = {**shown, **merged}
    for name, value in given.items():
        merged[name] = {**merged.get(name, {}), **value} if isinstance(value, dict) else value
    return merged


def _commands(path: str) -> dict[str, Callable[..., Any]]:
    from django.contrib.auth.models import User
    from django.db import transaction
    from django.db.models.signals import post_save
    from rest_framework.authtoken.models import Token
    from rest_framework.test import APIClient
    from shop.models import Payment

    for name in USERS:
        user, _ = User.objects.get_or_create(username=name)
        Token.objects.get_or_create(user=user, defaults={"key": name})

    @contextmanager
    def while_working(do: Callable[..., Any] | None) -> Any:
        if do is not None:
            post_save.connect(do, sender=Payment)
        try:
            yield
        finally:
            post_save.disconnect(do, sender=Payment)

    def send(
        key: str | None,
        amount: int = 2000,
        *,
        user: str | None = "alice",
        body: str | None = None,
        form: bool = False,
        hold: str = "",
        fails: bool = False,
        dies: str = "",
    ) -> tuple[int, dict[str, str], str]:
        """
        Send a request, and return status, header fields and body of its answer.

        Its work waits in the folder `hold` for the test, fails, or dies: "in the work", or "after
        the commit".
        """

        def wait(**kwargs: Any) -> None:
            (Path(hold) / "begun").touch()
            deadline = time.monotonic() + PATIENCE
            while not (Path(hold) / "go on").exists():
                assert time.monotonic() < deadline, "nobody lets the work go on"
                time.sleep(0.01)

        def fail(**kwargs: Any) -> None:
            raise ConnectionError("the gateway is down")

        def die(**kwargs: Any) -> None:
            if dies == "in the work":
                os._exit(9)
            transaction.on_commit(lambda: os._exit(9))

        headers = {"Idempotency-Key": key} if key else {}
        if user:
            headers["Authorization"] = f"Token {user}"
        if form:
            content: dict[str, Any] = {"data": {"amount": amount}, "format": "multipart"}
        else:
            text = json.dumps({"amount": amount, "currency": "usd"}) if body is None else body
            content = {"data": text, "content_type": "application/json"}
        with while_working(wait if hold else fail if fails else die if dies else None):
            client = APIClient(raise_request_exception=False)
            response = client.post(f"/{path}", headers=headers, **content)
        return response.status_code, dict(response.headers), response.content.decode()

    return {"send": send, "effects": Payment.objects.count}
