"""The worker of the comparison: what a variant does in the cases that keys are there for."""

from __future__ import annotations

import io
import json
import os
import random
import sys
import time
import uuid
from collections.abc import Callable
from typing import Any

from benchmarks.worker import race

#: Seconds after which a key is called stuck, and how long a lease or lock lasts that can be set.
PATIENCE, LEASE = 12, 3
#: How many races there are, of which the worst counts, and how long their work takes.
RACES, WORK_SECONDS = 5, 0.2


def prepare(variant: str) -> dict[str, Callable[..., Any]]:
    """Set the variant's project up, and return the commands."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.site.settings"
    import django
    from django.conf import settings

    if "django_idempotency" in settings.INSTALLED_APPS:
        settings.IDEMPOTENCY["default"]["LEASE"] = LEASE
    if "drf_idempotency" in settings.INSTALLED_APPS:
        settings.IDEMPOTENCY = {
            **getattr(settings, "IDEMPOTENCY", {}),
            "LOCK_TTL_SECONDS": LEASE,
        }
    django.setup()
    from django.contrib.auth.models import User
    from django.core.handlers.wsgi import WSGIHandler
    from django.core.management import call_command
    from django.db import connections, transaction
    from django.db.models.signals import post_save, pre_save

    from benchmarks.site.models import Payment
    from benchmarks.site.users import Known

    call_command("migrate", run_syncdb=True, verbosity=0)
    handler: Any = WSGIHandler()
    users = {name: User.objects.create(username=name) for name in ("alice", "bob")}

    def authenticate(self: Known, request: Any) -> tuple[User, None]:
        return users[request.META["HTTP_X_USER"]], None

    Known.authenticate = authenticate  # type: ignore[method-assign]

    def send(key: str, *, user: str = "alice", amount: int = 1250) -> tuple[int, bytes]:
        body = json.dumps({"reference": "order-1234", "amount": amount, "key": key}).encode()
        environ = {
            "REQUEST_METHOD": "POST",
            "PATH_INFO": "/payments/",
            "SERVER_NAME": "localhost",
            "SERVER_PORT": "80",
            "CONTENT_TYPE": "application/json",
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_IDEMPOTENCY_KEY": key,
            "HTTP_X_USER": user,
            "wsgi.input": io.BytesIO(body),
            "wsgi.errors": sys.stderr,
            "wsgi.url_scheme": "http",
        }
        statuses: list[int] = []
        response = handler(environ, lambda status, fields: statuses.append(int(status[:3])))
        answer = b"".join(response)
        response.close()
        return statuses[0], answer

    def effects(key: str) -> int:
        return Payment.objects.filter(key=key).count()

    def new_key() -> str:
        return str(uuid.uuid4())

    def soon(key: str) -> None:
        time.sleep(random.uniform(0, WORK_SECONDS / 2))  # noqa: S311
        try:
            send(key)
        finally:
            connections.close_all()

    def in_a_race() -> int:
        """Return how often the work took effect for 8 requests while it runs, at most."""

        def take_time(**kwargs: Any) -> None:
            time.sleep(WORK_SECONDS)

        pre_save.connect(take_time, sender=Payment)
        found = []
        for key in [new_key() for _ in range(RACES)]:
            race(lambda key=key: soon(key))  # type: ignore[misc]
            found.append(effects(key))
        pre_save.disconnect(take_time, sender=Payment)
        return max(found)

    def killed(when: str) -> dict[str, Any]:
        """Kill a process in the middle of a request, and return what its retries get."""
        key = new_key()
        connections.close_all()
        if (child := os.fork()) == 0:

            def die(**kwargs: Any) -> None:
                if when == "in the work":
                    os._exit(0)
                transaction.on_commit(lambda: os._exit(0))

            post_save.connect(die, sender=Payment)
            send(key)
            os._exit(1)
        _, status = os.waitpid(child, 0)
        began = time.monotonic()
        at_first = last = send(key)[0]
        while last >= 400 and time.monotonic() - began < PATIENCE:
            time.sleep(0.5)
            last = send(key)[0]
        return {"at first": at_first, "last": last, "effects": effects(key), "died": status == 0}

    def failed() -> dict[str, Any]:
        """Let the work raise once, and return what the retry gets."""
        key = new_key()

        def fail(**kwargs: Any) -> None:
            post_save.disconnect(fail, sender=Payment)
            raise ConnectionError("the gateway is down")

        post_save.connect(fail, sender=Payment)
        first, retry = send(key)[0], send(key)[0]
        return {"first": first, "retry": retry, "effects": effects(key)}

    def facts() -> dict[str, Any]:
        key = new_key()
        first, again, other = send(key), send(key), send(key, amount=9900)
        bobs = send(key, user="bob")
        return {
            "replay is the first answer": first == again,
            "another body": other[0],
            "another body gets the first answer": other == first,
            "another user gets the first answer": bobs[1] == first[1],
            "another user": bobs[0],
            "race": in_a_race(),
            "failed": failed(),
            "killed in the work": killed("in the work"),
            "killed after the commit": killed("after the commit"),
        }

    return {"facts": facts}
