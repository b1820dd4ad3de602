"""Play the demo: ``python -m example_project.demo``; ``SERVE=1`` leaves the server running."""

from __future__ import annotations

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

from example_project.demo import stores, tasks_worker
from example_project.demo.output import Printer
from example_project.demo.server import Server

#: Where SERVE=1 serves, unless something else does.
PORT = 8000


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
    out.says("17 steps: the same request or message comes twice, or 20 times at once, and servers")
    out.says("are killed in the middle of their work. After each step the books are looked at:")
    out.says("✓ is right, ✗ is wrong. All servers and files are the demo's own, and go with it.")
    if os.environ.get("SERVE") == "1":
        out.says("SERVE=1: the shop then stays up, for you to look at.")
    out.says("Starting the servers ...")


def play(
    directory: Path, out: Printer, store: stores.Started | None, worker: tasks_worker.Worker
) -> int:
    """Set the shop up, play the story, and return the exit code."""
    pause_file = directory / "pause"
    os.environ.update(
        DJANGO_SETTINGS_MODULE="example_project.demo.settings",
        EXAMPLE_SECRET_KEY=secrets.token_urlsafe(),
        EXAMPLE_DATABASE=str(directory / "shop.sqlite3"),
        EXAMPLE_PAUSE_FILE=str(pause_file),
        **(store.environ if store else {}),
    )
    lease = float(os.environ.setdefault("EXAMPLE_LEASE", "3"))
    set_up()
    # Needs the settings that have just been named.
    from example_project.demo.tasks_story import TaskStory

    serves = os.environ.get("SERVE") == "1"
    with Server(directory, dict(os.environ), port=PORT if serves else 0) as server:
        try:
            server.start()
            worker.start()
            records = f", records in {store.name}" if store else ""
            out.says(f"Payments shop on {server.url}, four processes, {_database()}{records}.")
            story = TaskStory(
                server,
                out,
                worker=worker,
                pause_file=pause_file,
                lease=lease,
                transaction=os.environ.get(
                    "EXAMPLE_TRANSACTION", "separate" if store else "joined"
                ),
            )
            story.play()
        except Exception as error:  # whatever it is, the story did not come out right
            out.wrong(f"{type(error).__name__}: {error}")
            print(server.log(), worker.log(), sep="\n", file=sys.stderr)
            return 1
        out.headline("Every step came out right.")
        if serves:
            serve(server, out, records=store is None)
    return 0


def set_up() -> None:
    """Make the tables and fill them."""
    django.setup()
    call_command("migrate", verbosity=0)
    call_command("seed", verbosity=0)
    connections.close_all()


def serve(server: Server, out: Printer, *, records: bool) -> None:
    """Leave the server running until Ctrl-C, and name what there is to look at."""
    from example_project.shop.management.commands.seed import PASSWORDS

    admin = f"admin, password {PASSWORDS['admin']}"
    alice = f"alice, password {PASSWORDS['alice']}"
    pages = [
        ("/checkout/", "nobody", "a form: click twice, or go back and send it again"),
        ("/api/payments/", alice, "the browsable API, whose forms send a key"),
        ("/api/docs/", "nobody", "the reference, and /api/schema/ for OpenAPI"),
        ("/admin/shop/payment/", admin, "the books"),
    ]
    if records:
        where = "/admin/django_idempotency/idempotencyrecord/"
        pages.append((where, admin, "the records: search for a key"))
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
