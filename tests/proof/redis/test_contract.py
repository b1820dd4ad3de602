"""The whole contract on the oldest Redis."""

from __future__ import annotations

from tests.integration.redis.conftest import urls  # noqa: F401
from tests.integration.redis.test_contract import Redis62Contract, server  # noqa: F401


class TestRedis62(Redis62Contract):
    pass
