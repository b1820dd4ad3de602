"""The clients of Redis in a process, which its threads share."""

from __future__ import annotations

import functools
import inspect
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    ClusterDownError,
    ConnectionError,
    NoScriptError,
    RedisClusterException,
    RedisError,
    TimeoutError,
)
from redis.retry import Retry
from redis.sentinel import Sentinel

from django_idempotency.exceptions import StoreError
from django_idempotency.stores.forks import in_each_child
from django_idempotency.stores.options import text_of
from django_idempotency.stores.redis.cluster import Calls, on_each_node
from django_idempotency.stores.redis.connections import Connections, careful
from django_idempotency.stores.redis.scripts import Script

#: Connections of one process; a call that finds all in use waits for one. Those for commands, and
#: those for pipelines, are counted apart.
MAX_CONNECTIONS = 100
#: How often a command is sent again over a new connection. Each is repeated under its own token.
RESENDS = 1

#: No server was reached, or it did not answer in time.
_UNREACHABLE = (
    ClusterDownError,
    ConnectionError,
    RedisClusterException,
    TimeoutError,
    OSError,
)
#: Connection errors of redis-py that are answers of a server.
_ANSWERED = (AuthenticationError, AuthorizationError, BusyLoadingError)
_ERRORS = (RedisError, *_UNREACHABLE)


@contextmanager
def _store_errors(name: str) -> Iterator[None]:
    """Turn the driver's errors into StoreError."""
    try:
        yield
    except _ERRORS as error:
        raise _store_error(name, error) from error


def _store_error(name: str, error: Exception) -> StoreError:
    kind = type(error).__name__
    failure = StoreError(
        f"The store could not run its {name} script on Redis: {kind}.",
        unreachable=isinstance(error, _UNREACHABLE) and not isinstance(error, _ANSWERED),
    )
    failure.__cause__ = error
    return failure


class Clients:
    """
    The clients of one store: made when first used, shared by all, safe over a fork.

    If a connection breaks, its command is sent once more. After a timeout it is not.
    """

    def __init__(
        self,
        url: str | None,
        *,
        cluster: bool,
        sentinels: Sequence[tuple[str, int]] | None,
        service_name: str | None,
        sentinel_options: Mapping[str, Any],
        timeout: float,
        options: Mapping[str, Any],
    ) -> None:
        for name, value in {"url": url, "service_name": service_name}.items():
            if value is not None:
                text_of(name, value)
        parsed = parse_url(url) if url is not None else {}  # type: ignore[no-untyped-call]
        for name in ("decode_responses", "retry", "retry_on_error", "retry_on_timeout"):
            if name in {**options, **parsed}:
                raise TypeError(f"{name!r} is not an option: the store decides it.")
        if sentinels is None and url is None:
            raise TypeError("a url is needed, or sentinels and a service_name.")
        if (sentinels is None) is not (service_name is None):
            raise TypeError("sentinels and service_name belong together.")
        if not sentinels and (sentinels is not None or sentinel_options):
            raise TypeError("sentinels names no server.")
        if cluster and sentinels is not None:
            raise TypeError("a cluster has no sentinels.")
        self._url = url
        self._parsed = parsed
        self._sentinels = [(host, int(port)) for host, port in sentinels or ()]
        self._service_name = service_name
        self._timeout = timeout
        self._timeouts = {"socket_timeout": timeout, "socket_connect_timeout": timeout}
        self._sentinel_options = {**self._timeouts, **sentinel_options}
        self._options = {**self._timeouts, **options}
        self.is_cluster = cluster
        self._mutex = threading.Lock()
        #: For pipelines; in a cluster and with sentinels for each command.
        self._client: Any = None
        #: For single commands to a single server.
        self._connections: Connections | None = None
        self._of_parents: list[Any] = []
        if cluster:
            _check_names(options, redis.RedisCluster, redis.Redis)
        else:
            # Raises for an unknown option; connects to nothing.
            self._client = self._new_client()
            pool = self._client.connection_pool
            try:
                pool.connection_class(**pool.connection_kwargs)
            except redis.RedisError as error:  # of ssl_cert_reqs and protocol
                raise ValueError(str(error)) from error
            if sentinels is None:
                options = self._of_pool(self._resending(_retry()))
                limits = {"most": pool.max_connections, "timeout": pool.timeout}
                self._connections = Connections(str(url), options, **limits)
        in_each_child(self.forget)

    def forget(self) -> None:
        """Forget the client in a forked child; the next call builds another."""
        self._mutex = threading.Lock()
        # Never closed: closing takes the client's mutexes, which threads of the parent may hold.
        self._of_parents.append(self._client)
        self._client = None
        if self._connections is not None:
            self._connections.forget()

    def where(self) -> str:
        """Return the server's address, or those of its sentinels; without user and password."""
        options = {**self._parsed, **self._options}
        if self._sentinels:
            addresses = ", ".join(f"{host}:{port}" for host, port in self._sentinels)
            return f"the sentinels {addresses}"
        if path := options.get("path"):
            return str(path)
        return f"{options.get('host', 'localhost')}:{options.get('port', 6379)}"

    def run(self, script: Script, key: str, arguments: Iterable[Any]) -> Any:
        """Run a script on one record and return its answer: one round trip."""
        try:
            client = self._connected() if self._connections is None else self._connections
            try:
                return client.execute_command("EVALSHA", script.sha, 1, key, *arguments)
            except NoScriptError:
                return client.execute_command("EVAL", script.text, 1, key, *arguments)
        except _ERRORS as error:
            raise _store_error(script.name, error) from error

    def run_many(self, script: Script, calls: Calls) -> list[Any]:
        """
        Run a script on many records, and return the answers; those that failed are StoreErrors.

        One round trip; in a cluster one for each node, side by side. Raises StoreError if a single
        server, which has all of the records, does not answer.
        """
        with _store_errors(script.name):
            client = self._connected()
            if not self.is_cluster:
                return _answers(script, self._pipelined(client, script, calls))
        run = functools.partial(self._run_on_node, client, script)
        return on_each_node(client, calls, run)

    def _run_on_node(self, client: Any, script: Script, node: Any, calls: Calls) -> list[Any]:
        """Run a script on the records of one node, as `run_many`."""
        try:
            with _store_errors(script.name):
                connection = client.get_redis_connection(node)
                answers = _answers(script, self._pipelined(connection, script, calls))
        except StoreError as error:
            answers = [error] * len(calls)
        ends = time.monotonic() + self._timeout
        for place, answer in enumerate(answers):
            # The record may have moved, or the node may have been replaced: `run` looks for it.
            if isinstance(answer, StoreError) and time.monotonic() < ends:
                with suppress(StoreError):  # the first error counts
                    answers[place] = self.run(script, *calls[place])
        return answers

    def replicated(
        self, script: Script, key: str, arguments: Sequence[Any], replicas: int, seconds: float
    ) -> tuple[Any, int]:
        """
        Run a script again; return its answer, and how many replicas have what it wrote.

        Waits until `replicas` have it, for `seconds` at most. WAIT only knows of the writes of its
        own connection, so script and WAIT are one pipeline.
        """
        with _store_errors(script.name):
            client = self._connected()
            if self.is_cluster:
                client = client.get_redis_connection(client.get_node_from_key(key))
            wait = (replicas, int(seconds * 1000))
            answers = self._pipelined(client, script, [(key, arguments)], wait=wait)
            for answer in answers:
                if isinstance(answer, Exception):
                    raise answer
            answer, reached = answers
            return answer, int(reached)

    def scan(
        self, node: str, cursor: int, *, match: str, count: int
    ) -> tuple[str, int | None, list[bytes]]:
        """
        Return the node and cursor of the next SCAN, and the keys of this one.

        The cursor is None after the last one. Raises ValueError for an unknown node.
        """
        with _store_errors("SCAN"):
            client = self._connected()
            if not self.is_cluster:
                following, keys = client.scan(cursor, match=match, count=count)
                return "", following or None, keys
            primaries = {found.name: found for found in client.get_primaries()}
            names = sorted(primaries)
            if node and node not in names:
                raise ValueError("The node of this cursor is not part of the cluster any more.")
            place = names.index(node) if node else 0
            of_node = client.get_redis_connection(primaries[names[place]])
            following, keys = of_node.scan(cursor, match=match, count=count)
            if following:
                return names[place], following, keys
            if names[place + 1 :]:
                return names[place + 1], 0, keys
            return "", None, keys

    def info(self) -> list[Mapping[str, Any]]:
        """Return the INFO of the server, or of each primary of the cluster."""
        with _store_errors("INFO"):
            client = self._connected()
            if not self.is_cluster:
                return [client.info()]
            return [client.get_redis_connection(node).info() for node in client.get_primaries()]

    def _connected(self) -> Any:
        """Return the client of this process; that of a cluster looks for its nodes first."""
        client = self._client
        if client is None:
            with self._mutex:
                if self._client is None:
                    self._client = self._new_client()
                client = self._client
        return client

    def _pipelined(
        self, client: Any, script: Script, calls: Calls, *, wait: tuple[int, int] | None = None
    ) -> list[Any]:
        """Return the answers of one round trip, errors as they are; WAIT is the last, if any."""
        for is_known in (False, True):
            pipeline = client.pipeline(transaction=False)
            for key, arguments in calls:
                pipeline.evalsha(script.sha, 1, key, *arguments)
            if wait is not None:
                pipeline.wait(*wait)
            answers: list[Any] = pipeline.execute(raise_on_error=False)
            if is_known or not any(isinstance(answer, NoScriptError) for answer in answers):
                break
            client.script_load(script.text)
        return answers

    def _new_client(self) -> Any:
        if self.is_cluster:
            return redis.RedisCluster.from_url(str(self._url), **self._options, retry=_retry())
        options = self._resending(_retry())
        if self._service_name is not None:
            sentinel: Any = Sentinel(self._sentinels, sentinel_kwargs=self._sentinel_options)  # type: ignore[no-untyped-call]
            client: Any = sentinel.master_for(self._service_name, **self._of_service(options))
            careful(client.connection_pool)
            return client
        pool = redis.BlockingConnectionPool.from_url(str(self._url), **self._of_pool(options))
        return redis.Redis.from_pool(careful(pool))

    def _resending(self, retry: Any) -> dict[str, Any]:
        # Before redis-py 6 a command was sent again only after the errors of `retry_on_error`.
        return {**self._options, "retry": retry, "retry_on_error": [ConnectionError]}

    def _of_pool(self, options: Mapping[str, Any]) -> dict[str, Any]:
        pool = {"max_connections": MAX_CONNECTIONS, "timeout": self._timeout}
        keepalive = {} if "path" in self._parsed else {"socket_keepalive": True}
        return {**pool, **keepalive, **options}

    def _of_service(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of a service; its address is what the sentinels say, not the URL."""
        place = ("host", "port", "connection_class")
        parsed = {name: value for name, value in self._parsed.items() if name not in place}
        is_tls = self._url is not None and self._url.startswith("rediss:")
        return {"socket_keepalive": True, **options, **parsed, **({"ssl": True} if is_tls else {})}


def _retry() -> Retry:
    return Retry(NoBackoff(), RESENDS, (ConnectionError,))


def _answers(script: Script, answers: list[Any]) -> list[Any]:
    """Return the answers of a pipeline, its errors as StoreError."""
    return [
        _store_error(script.name, answer) if isinstance(answer, Exception) else answer
        for answer in answers
    ]


def _check_names(options: Mapping[str, Any], *classes: type) -> None:
    """Raise TypeError for an option that none of the classes takes."""
    known = {name for cls in classes for name in inspect.signature(cls).parameters}
    for name in options:
        if name not in known:
            raise TypeError(f"the client of a cluster has no option {name!r}.")
