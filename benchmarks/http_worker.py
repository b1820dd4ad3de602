"""The worker of an HTTP variant: requests into the project's WSGI handler, in process."""

from __future__ import annotations

import io
import json
import os
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.worker import count_calls, first_and_replay, race

OURS = f"{Path(__file__).resolve().parent.parent / 'django_idempotency'}{os.sep}"


def prepare(variant: str) -> dict[str, Callable[..., Any]]:
    """Set the variant's project up, and return the commands."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.site.settings"
    import django

    django.setup()
    from django.core.management import call_command

    call_command("migrate", run_syncdb=True, verbosity=0)
    from django.core.handlers.wsgi import WSGIHandler
    from django.db import connection

    from benchmarks.site.models import Payment

    handler: Any = WSGIHandler()
    statuses = threading.local()

    def send(key: str) -> int:
        body = json.dumps({"reference": "order-1234", "amount": 1250, "key": key}).encode()
        environ = {
            "REQUEST_METHOD": "POST",
            "PATH_INFO": "/payments/",
            "SERVER_NAME": "localhost",
            "SERVER_PORT": "80",
            "CONTENT_TYPE": "application/json",
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_IDEMPOTENCY_KEY": key,
            "wsgi.input": io.BytesIO(body),
            "wsgi.url_scheme": "http",
        }

        def start(status: str, headers: Any) -> None:
            statuses.last = int(status[:3])

        response = handler(environ, start)
        for _ in response:
            pass
        response.close()
        return int(statuses.last)

    def expect(key: str) -> None:
        if (status := send(key)) != 201:
            raise RuntimeError(f"{variant} answered {status}")

    def calls() -> dict[str, Any]:
        """Count calls of a first request and of a replay, of a process that serves others, too."""
        send(str(uuid.uuid4()))  # threads of ours end a while after the last request
        key = str(uuid.uuid4())
        return {name: count_calls(lambda: send(key), OURS) for name in ("first", "replay")}

    def statements() -> dict[str, int]:
        """Count what goes through Django's cursors."""
        found = {}
        key = str(uuid.uuid4())
        for name in ("first", "replay"):
            count = [0]

            def wrapper(execute: Any, *rest: Any, count: list[int] = count) -> Any:
                count[0] += 1
                return execute(*rest)

            with connection.execute_wrapper(wrapper):
                send(key)
            found[name] = count[0]
        return found

    def race_on_one_key(times: int) -> list[int]:
        """Race 8 threads on one key, so often; how often the work took effect each time."""
        effects = []

        def at_once(key: str) -> None:
            try:
                send(key)
            finally:
                connection.close()

        for key in [str(uuid.uuid4()) for _ in range(times)]:
            race(lambda key=key: at_once(key))  # type: ignore[misc]
            effects.append(Payment.objects.filter(key=key).count())
        return effects

    return {
        **first_and_replay(expect),
        "calls": calls,
        "statements": statements,
        "race": race_on_one_key,
    }
