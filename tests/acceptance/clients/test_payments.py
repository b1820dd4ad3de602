"""`make proof` makes a thousand payments with each client."""

from __future__ import annotations

import pytest

from tests.acceptance.clients.paying import CLIENTS, each_is_charged_once, kill_workers

pytestmark = pytest.mark.processes

#: A thousand together.
NUMBERS = {"httpx": range(334), "requests": range(334, 667), "fetch": range(667, 1000)}


@pytest.mark.parametrize("client", NUMBERS)
def test_each_payment_is_charged_once_though_workers_die(shop, gunicorn, client):
    pay = CLIENTS[client]
    each_is_charged_once(gunicorn, shop.database, pay, NUMBERS[client], kill=kill_workers)
