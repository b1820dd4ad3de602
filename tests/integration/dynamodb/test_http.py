"""What a client sees of the DynamoDB store."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.dynamodb.conftest import BACKEND, Options
from tests.integration.stories import HTTPStory
from tests.services.proxy import Proxy
from tests.unit.http.api import Api


class TestHTTP(HTTPStory):
    @pytest.fixture
    def link(self, proxied: tuple[Proxy, str]) -> Proxy:
        return proxied[0]

    @pytest.fixture
    def api(self, settings: Any, options: Options, proxied: tuple[Proxy, str]) -> Api:
        given = options(endpoint_url=proxied[1], timeout=1)
        settings.IDEMPOTENCY = {"default": {"BACKEND": BACKEND, "OPTIONS": given}}
        api = Api()
        api.client.raise_request_exception = False
        return api
