"""A broker for a machine that has none: the Redis or Valkey of a wheel, on the port of the URL."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from urllib.parse import urlsplit

from example_project.demo.stores import NoSuchStore
from example_project.demo.stores.redis import find

DIRECTORY = Path(__file__).resolve().parent / ".broker"


def main() -> None:
    """Become the server. Its log of writes brings its messages back after a crash."""
    port = urlsplit(os.environ["EXAMPLE_BROKER_URL"]).port or 6379
    try:
        server = find()
    except NoSuchStore as error:
        sys.exit(str(error))
    DIRECTORY.mkdir(exist_ok=True)
    options = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(DIRECTORY)]
    options += ["--save", "", "--appendonly", "yes", "--maxmemory-policy", "noeviction"]
    os.execv(server, [str(server), *options])  # noqa: S606


if __name__ == "__main__":
    main()
