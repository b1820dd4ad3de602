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


def main() -> int:
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _terminated)
    try:
        with tempfile.TemporaryDirectory(prefix="idempotency-demo-") as name:
            directory = Path(name)
            with stores.started(directory) as store, tasks_worker.worker(directory) as worker:
                return play(directory, Printer(), store, worker)
    except stores.NoSuchStore as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


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

    with Server(directory, dict(os.environ)) as server:
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
        if os.environ.get("SERVE") == "1":
            serve(server, out)
    return 0


def set_up() -> None:
    """Make the tables and fill them."""
    django.setup()
    call_command("migrate", verbosity=0)
    call_command("seed", verbosity=0)
    connections.close_all()


def serve(server: Server, out: Printer) -> None:
    """Leave the server running until Ctrl-C."""
    from example_project.shop.management.commands.seed import PASSWORDS

    out.says(f"Admin:  {server.url}/admin/   log in as admin, password {PASSWORDS['admin']}")
    out.says(f"API:    {server.url}/api/docs/")
    out.says(
        f"curl -u alice:{PASSWORDS['alice']} -H 'Idempotency-Key: my-first-key'"
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
