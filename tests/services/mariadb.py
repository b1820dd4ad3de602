"""A MariaDB server of our own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tests.services import MissingService
from tests.services.packages import find
from tests.services.servers import HOST, OwnServer

URL_VARIABLE = "IDEMPOTENCY_TEST_MARIADB_URL"
#: What an entry of DATABASES says beside where the server is.
DJANGO_SETTINGS: dict[str, Any] = {
    "ENGINE": "django.db.backends.mysql",
    "OPTIONS": {"charset": "utf8mb4"},
    "TEST": {"CHARSET": "utf8mb4", "COLLATION": "utf8mb4_bin"},
}


def require_driver() -> Any:
    """Return MySQLdb, the driver that Django wants; MissingService where it is not installed."""
    try:
        import MySQLdb
    except ImportError as error:
        raise MissingService(
            "mysqlclient is not installed. Install it with: make services (on Debian as root: "
            "apt-get install libmariadb-dev pkg-config gcc, then pip install mysqlclient)"
        ) from error
    return MySQLdb


class MariaDBServer(OwnServer):
    """MariaDB; the user is root, without a password."""

    name = "mariadb"
    port_taken = "Can't start server: Bind on TCP/IP port"

    def __init__(self) -> None:
        super().__init__()
        self._server, self._install = find("mariadbd"), find("mariadb-install-db")
        self._driver = require_driver()

    @property
    def url(self) -> str:
        return f"mysql://root@{HOST}:{self.port}/"

    def _prepare(self) -> None:
        options = ["--auth-root-authentication-method=normal", "--skip-test-db", *_as_root()]
        data = f"--datadir={self.directory}/data"
        self._run([self._install, "--no-defaults", data, *options])

    def _command(self) -> list[str | Path]:
        folder = self.directory
        files = [
            f"--datadir={folder}/data",
            f"--socket={folder}/socket",
            f"--pid-file={folder}/pid",
        ]
        place = [f"--bind-address={HOST}", f"--port={self.port}", "--skip-name-resolve"]
        sizes = ["--max-connections=300", "--innodb-buffer-pool-size=64M"]
        fast = "--innodb-flush-log-at-trx-commit=0"
        return [self._server, "--no-defaults", *files, *place, *sizes, fast, *_as_root()]

    def _answers(self) -> bool:
        try:
            self._driver.connect(host=HOST, port=self.port, user="root").close()
        except self._driver.OperationalError:
            return False
        return True


def _as_root() -> list[str]:
    """It refuses to run as root unless told so."""
    return ["--user=root"] if os.geteuid() == 0 else []
