"""Every rule that can be seen from outside, on all views of both projects."""

from __future__ import annotations

import pytest

from tests.acceptance.contract_http.served import Served
from tests.app.contract import declared, shop

pytestmark = [
    pytest.mark.processes,
    pytest.mark.leg("postgres18", "postgres16"),
    pytest.mark.xdist_group("contract_http"),  # which shares databases and servers
]


class TestViews(Served, declared.Views):
    project = "work"


class TestCoroutines(Served, declared.Coroutines):
    project = "work"


class TestShop(Served, shop.Shop):
    project = "shop"
