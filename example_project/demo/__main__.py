"""Play the demo: ``python -m example_project.demo``; ``SERVE=1`` leaves the server running."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import secrets
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType

import django
from django.core.management import call_command
from django.db import connections

from example_project.demo import apps, pauses, stores, tasks_worker
from example_project.demo.output import Printer
from example_project.demo.server import Server

#: Where SERVE=1 serves, unless something else does.
PORT = 8000
#: What is there instead of the library, what it is called, and what it does.
GUARDS = {
    apps.NONE: ("no guard", "The view as it is. The client's key is not looked at."),
    apps.NAIVE: ("a lookup first", "Look the key up, do the work, store the answer under it."),
}


def main() -> int:
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _terminated)
    try:
        with tempfile.TemporaryDirectory(prefix="idempotency-demo-") as name:
            directory, out, chosen = Path(name), Printer(), stores.chosen()
            announce(out)
            with (
                stores.started(chosen, directory) as store,
                tasks_worker.worker(directory) as worker,
            ):
                return play(directory, out, store, worker)
    except stores.NoSuchStore as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def announce(out: Printer) -> None:
    """Say what is about to happen, before anything does."""
    out.headline("A payments shop and its clients, on this machine alone, for about a minute")
    out.says("First without the library, then with it: the same payments come twice, and processes")
    out.says("are killed. Then a story of 18 steps. Last, what the library and its stores cannot")
    out.says("do. Each number is counted in the database: ✓ is right, ✗ is wrong.")
    out.says("All servers and files are the demo's own, and go with it.")
    if os.environ.get("SERVE") == "1":
        out.says("SERVE=1: the shop then stays up, for you to look at.")
    out.says("Starting the servers ...")


def play(
    directory: Path, out: Printer, store: stores.Started | None, worker: tasks_worker.Worker
) -> int:
    """Set the shop up, play the story, and return the exit code."""
    (directory / "pauses").mkdir()
    os.environ.update(
        {
            "DJANGO_SETTINGS_MODULE": "example_project.demo.settings",
            "EXAMPLE_SECRET_KEY": secrets.token_urlsafe(),
            "EXAMPLE_DATABASE": str(directory / "shop.sqlite3"),
            pauses.FOLDER: str(directory / "pauses"),
            apps.CALLS: str(directory / "calls"),
            **(store.environ if store else {}),
        }
    )
    os.environ.setdefault("EXAMPLE_LEASE", "3")
    set_up()
    worker.launch()
    serves = os.environ.get("SERVE") == "1"
    with Server(directory, dict(os.environ), port=PORT if serves else 0) as server:
        try:
            perform(directory, server, out, store, worker)
            gc.collect()  # Celery 5.5 tells the broker of results that go: now, while there is one
        except Exception as error:  # whatever it is, it did not come out as the demo says
            out.wrong(f"{type(error).__name__}: {error}")
            print(server.log(), worker.log(), sep="\n", file=sys.stderr)
            return 1
        out.headline("Every step came out right.")
        if serves:
            serve(server, out)
    return 0


def perform(
    directory: Path,
    server: Server,
    out: Printer,
    store: stores.Started | None,
    worker: tasks_worker.Worker,
) -> None:
    """Play the three acts, and sum them up."""
    # These need the settings that have just been named.
    from example_project.demo import limits, scenes
    from example_project.demo.tasks_story import TaskStory

    transaction = os.environ.get("EXAMPLE_TRANSACTION", "separate" if store else "joined")
    charged: dict[str, scenes.Counts] = {}
    with contextlib.ExitStack() as stack:
        unguarded = {}
        for guard in GUARDS:
            environ = {**os.environ, apps.GUARD: guard}
            unguarded[guard] = stack.enter_context(Server(directory, environ, name=guard))
            unguarded[guard].launch()
        server.launch()
        for guard, (title, what) in GUARDS.items():
            out.act(f"Without the library: {title}")
            out.says(what)
            unguarded[guard].wait_until_it_answers()
            expected = scenes.EXPECTED[guard]
            charged[title] = scenes.play(unguarded[guard], out, expected, before={})
            unguarded[guard].crash()

    out.act("With the library")
    server.wait_until_it_answers()
    worker.wait()
    records = f", records in {store.name}" if store else ""
    out.says(f"Payments shop on {server.url}, four processes, {_database()}{records}.")
    expected = scenes.EXPECTED[transaction]
    charged["the library"] = scenes.play(server, out, expected, before=dict(charged))
    lease = float(os.environ["EXAMPLE_LEASE"])
    story = TaskStory(server, out, worker=worker, lease=lease, transaction=transaction)
    story.play()
    look(out, story.killed)

    out.act("What it cannot do")
    story.receipt_lost()
    limited = limits.play(directory, server, out)

    out.act("How often one payment was charged")
    rows = [[name, *(str(counts[name]) for counts in charged.values())] for name in scenes.SCENES]
    rows += [[name, *("" for _ in GUARDS), str(count)] for name, count in limited.items()]
    out.table(["", *charged], rows)


def set_up() -> None:
    """Make the tables and fill them."""
    django.setup()
    call_command("migrate", verbosity=0)
    call_command("seed", verbosity=0)
    connections.close_all()


def look(out: Printer, key: str) -> None:
    """Show the record of a payment as an operator would look at it."""
    out.headline("A look at step 6, as an operator takes it when a customer asks what happened")
    words = ["idempotency_show", key, "--scope", "alice", "--result"]
    out.says(f"manage.py {' '.join(words)}")
    with io.StringIO() as told:
        call_command(*words, stdout=told)
        for line in told.getvalue().splitlines():
            out.says(line)
    connections.close_all()


def serve(server: Server, out: Printer) -> None:
    """Leave the server running until Ctrl-C, and name what there is to look at."""
    from example_project.shop.management.commands.seed import PASSWORDS

    admin = f"admin, password {PASSWORDS['admin']}"
    alice = f"alice, password {PASSWORDS['alice']}"
    pages = [
        ("/checkout/", "nobody", "a form: click twice, or go back and send it again"),
        ("/api/payments/", alice, "the browsable API, whose forms send a key"),
        ("/api/docs/", "nobody", "the reference, and /api/schema/ for OpenAPI"),
        ("/admin/shop/payment/", admin, "the books"),
        ("/admin/django_idempotency/idempotencyrecord/", admin, "the records: search for a key"),
    ]
    if server.port != PORT:
        out.says(f"Port {PORT} is taken, so it is {server.port}.")
    for path, login, what in pages:
        out.says(f"{server.url}{path}")
        out.says(f"    {what}; log in as {login}" if login != "nobody" else f"    {what}; no login")
    out.says(f"{server.url}/api-auth/login/")
    out.says("    where the browsable API has its login")
    out.says("Send this twice:")
    out.says(
        f"curl -i -u alice:{PASSWORDS['alice']} -H 'Idempotency-Key: my-first-key'"
        f" -d account=1 -d amount=100 -d reference=coffee {server.url}/api/payments/"
    )
    try:
        out.says("Ctrl-C ends it.")
        server.wait()
    except KeyboardInterrupt:
        out.says("Bye.")


def _database() -> str:
    return str(connections["default"].vendor)


def _terminated(signum: int, frame: FrameType | None) -> None:
    sys.exit(128 + signum)


if __name__ == "__main__":
    sys.exit(main())
