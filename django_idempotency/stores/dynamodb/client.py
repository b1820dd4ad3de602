"""The low-level client of the DynamoDB store: one per process, every call limited in time."""

from __future__ import annotations

import importlib
import random
import threading
import time
from typing import Any

from django_idempotency.exceptions import StoreError
from django_idempotency.exceptions.base import AFTER_SETUP, missing
from django_idempotency.stores.dynamodb.items import Item
from django_idempotency.stores.forks import in_each_child
from django_idempotency.stores.options import text_of

#: Temporary errors: too many requests, an item in another transaction, a failing server.
TRANSIENT = frozenset(
    {
        "InternalServerError",
        "ProvisionedThroughputExceededException",
        "ReplicatedWriteConflictException",
        "RequestLimitExceeded",
        "ServiceUnavailable",
        "ThrottledException",
        "Throttling",
        "ThrottlingException",
        "TransactionConflictException",
        "TransactionInProgressException",
    }
)
#: Seconds before a call is sent again, doubled each time, and the most of them.
FIRST_PAUSE, LONGEST_PAUSE = 0.025, 0.4
#: Connections that the threads of a process can have open at a time.
CONNECTIONS = 64


class ConditionFailed(Exception):
    """The condition of a write failed; `item` is the item that it met, if the server returns it."""

    def __init__(self, item: Item | None) -> None:
        super().__init__("The condition did not hold.")
        self.item = item


class Client:
    """
    Sends calls to DynamoDB from any thread, and again while that may help and time is left.

    Built when first used, and anew in a forked child, whose parent goes on using its connections.
    """

    def __init__(
        self, *, region_name: str | None, endpoint_url: str | None, timeout: float
    ) -> None:
        for name, value in {"region_name": region_name, "endpoint_url": endpoint_url}.items():
            if value is not None:
                text_of(name, value)
        if endpoint_url is not None and not endpoint_url.startswith(("http://", "https://")):
            raise ValueError("endpoint_url must begin with http:// or https://.")
        try:
            self._boto3 = importlib.import_module("boto3")
        except ImportError as error:
            raise missing("DynamoDBStore needs", "boto3", "dynamodb") from error
        self._errors: Any = importlib.import_module("botocore.exceptions")
        self._config_class: Any = importlib.import_module("botocore.config").Config
        self._arguments = {"region_name": region_name, "endpoint_url": endpoint_url}
        self.timeout = timeout
        self.forget()
        in_each_child(self.forget)

    def forget(self) -> None:
        """Build the client anew when it is next used."""
        self._mutex = threading.Lock()
        self._built: Any = None

    def ready(self) -> Any:
        """Return the boto3 client of this process; building it takes a moment."""
        if self._built is None:
            with self._mutex:
                if self._built is None:
                    self._built = self._client()
        return self._built

    def _client(self) -> Any:
        """Return a client; an attempt at a call takes half the time, as none starts after that."""
        config = self._config_class(
            connect_timeout=self.timeout / 6,
            read_timeout=self.timeout / 3,
            retries={"mode": "standard", "total_max_attempts": 1},  # `send` sends again
            parameter_validation=False,
            user_agent="django-idempotency",
            max_pool_connections=CONNECTIONS,
            tcp_keepalive=True,
        )
        try:
            session = self._boto3.session.Session()
            return session.client("dynamodb", config=config, **self._arguments)
        except (self._errors.BotoCoreError, ValueError) as error:  # of AWS_ENDPOINT_URL, the latter
            code = type(error).__name__
            raise StoreError(
                f"The store could not set up its client of DynamoDB: {code}.", code=code
            ) from error

    def send(self, operation: str, parameters: dict[str, Any]) -> dict[str, Any]:
        """
        Return the answer to a call, such as ``update_item``.

        Raises ConditionFailed, and StoreError for all else that went wrong, whose code is what
        DynamoDB or boto3 calls it. What may have been done already is sent again: each call must
        succeed again, or be recognised.
        """
        call = getattr(self.ready(), operation)
        started = time.monotonic()
        pause = FIRST_PAUSE
        while True:
            try:
                answer: dict[str, Any] = call(**parameters)
            except (self._errors.BotoCoreError, self._errors.ClientError) as error:
                code = self._code(error)
                if code == "ConditionalCheckFailedException":
                    raise ConditionFailed(error.response.get("Item")) from None
                wait = pause * random.uniform(0.5, 1)  # noqa: S311 - a pause is no secret
                spent = time.monotonic() - started + wait
                unreachable = self._is_unreachable(error)
                if not (code in TRANSIENT or unreachable) or spent > self.timeout / 2:
                    raise StoreError(
                        f"The store could not send {operation} to DynamoDB: {code}.",
                        unreachable=unreachable,
                        retry_after=AFTER_SETUP if code == "ResourceNotFoundException" else 1,
                        code=code,
                    ) from error
                time.sleep(wait)
                pause = min(2 * pause, LONGEST_PAUSE)
            else:
                return answer

    def _code(self, error: Any) -> str:
        """Return the name of an error, without its text, which may quote what was sent (R79)."""
        if isinstance(error, self._errors.ClientError):
            return str(error.response.get("Error", {}).get("Code", "ClientError"))
        return type(error).__name__

    def _is_unreachable(self, error: Any) -> bool:
        """Whether no server answered, or one that cannot do its work."""
        if isinstance(error, self._errors.ClientError):
            status: int = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            return status >= 500
        return isinstance(error, (self._errors.ConnectionError, self._errors.HTTPClientError))
