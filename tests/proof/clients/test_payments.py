"""A thousand payments with each client."""

from __future__ import annotations

import pytest

from tests.acceptance.clients.paying import CLIENTS, each_is_charged_once, kill_all

pytestmark = pytest.mark.processes


@pytest.mark.parametrize(
    ("client", "server"), [("httpx", "gunicorn"), ("requests", "uvicorn"), ("fetch", "gunicorn")]
)
def test_each_payment_is_charged_once_though_the_server_dies(shop, client, server):
    first = 1000 * list(CLIENTS).index(client)
    with getattr(shop, server)() as it:
        numbers = range(first, first + 1000)
        each_is_charged_once(it, shop.database, CLIENTS[client], numbers, kill=kill_all)
