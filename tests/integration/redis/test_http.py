"""What a client sees of the Redis store."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.redis.conftest import BACKEND
from tests.integration.stories import HTTPStory
from tests.services.proxy import Proxy
from tests.unit.http.api import Api


class TestHTTP(HTTPStory):
    @pytest.fixture
    def link(self, proxied: tuple[Proxy, str]) -> Proxy:
        return proxied[0]

    @pytest.fixture
    def api(self, settings: Any, prefix: str, proxied: tuple[Proxy, str]) -> Api:
        options = {"url": proxied[1], "prefix": prefix, "timeout": 0.5}
        settings.IDEMPOTENCY = {"default": {"BACKEND": BACKEND, "OPTIONS": options}}
        api = Api()
        api.client.raise_request_exception = False
        return api
