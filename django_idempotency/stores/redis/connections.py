"""Connections to one server, each lent to one command at a time."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from queue import Empty, SimpleQueue
from typing import Any

from redis import BlockingConnectionPool, Redis
from redis.exceptions import ConnectionError, ReadOnlyError, ResponseError


class Connections:
    """
    Clients of one connection each, lent to one command at a time.

    redis-py's pool looks at a connection before each command, which doubles the cost of a command.
    Here one that has broken meanwhile is found by the command itself, which redis-py sends again.
    """

    def __init__(self, url: str, options: Mapping[str, Any], *, most: int, timeout: float) -> None:
        self._url = url
        self._options = options
        self._most = most
        self._timeout = timeout
        self._of_parents: list[Any] = []
        self._reset()

    def _reset(self) -> None:
        #: A place for each command that may be sent at the same time. (A Semaphore in C.)
        self._places: SimpleQueue[None] = SimpleQueue()
        for _ in range(self._most):
            self._places.put(None)
        #: The last one that was used is used next: a server may close those that are long idle.
        self._free: list[Any] = []

    def forget(self) -> None:
        """Start with none in a forked child; those of the parent are never closed."""
        self._of_parents.append(self._free)
        self._reset()

    def execute_command(self, *command: Any) -> Any:
        """Send a command and return its answer; see the method of redis-py's client."""
        place: list[None] = []
        try:
            # A single call of C: an exception that another thread raises in this one, while it
            # waits, takes no place along.
            place += map(self._places.get, (True,), (self._timeout,))
            client = self._take()
            answered = False
            try:
                answer = client.execute_command(*command)
                answered = True
            except ResponseError:
                answered = True
                raise
            finally:
                if not answered:
                    # The answer may still come, and would be taken for that of the next command.
                    client.connection_pool.disconnect()
                self._free.append(client)
            return answer
        except Empty:
            raise ConnectionError("No connection available.") from None
        finally:
            if place:
                self._places.put(None)

    def _take(self) -> Any:
        try:
            return self._free.pop()
        except IndexError:
            pool = careful(BlockingConnectionPool.from_url(self._url, **self._options))
            return Redis(connection_pool=pool, single_connection_client=True)


def careful(pool: Any) -> Any:
    """
    Return the pool; from now on its connections do not outlive what they cannot answer.

    A connection whose answer was not read is closed: the answer would be taken for that of the next
    command. redis-py does so, but not for threads with sentinels. One to a server that has become a
    replica is closed, too, and the command is sent again: its address may lead to the new primary.
    """
    pool.connection_class = _careful(pool.connection_class)
    return pool


@cache
def _careful(cls: type) -> type:
    return type(cls.__name__, (_Careful, cls), {})


class _Careful:
    def read_response(self, *args: Any, **options: Any) -> Any:
        options.setdefault("disconnect_on_error", True)  # with sentinels the default is False
        connection: Any = super()
        try:
            return connection.read_response(*args, **options)
        except ResponseError as error:
            if not _is_of_replica(error):
                raise
            connection.disconnect()
            raise ConnectionError("The server has become a replica.") from error


def _is_of_replica(error: ResponseError) -> bool:
    """Return whether a replica has refused a write; Redis 6.2 says it within a script's error."""
    return isinstance(error, ReadOnlyError) or "-READONLY " in str(error)
