"""The whole contract on moto."""

from __future__ import annotations

from tests.integration.dynamodb.conftest import servers  # noqa: F401
from tests.integration.dynamodb.test_contract import MotoContract, server  # noqa: F401


class TestMoto(MotoContract):
    pass
