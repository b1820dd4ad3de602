"""What counts as a store that cannot be reached: no server, and none that refuses (R61)."""

from __future__ import annotations

import pytest
from django.db import Error, connection
from django.db.backends.base.base import BaseDatabaseWrapper

from django_idempotency.transactions.errors import is_unreachable

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.leg("postgres18", "mariadb")]


def unreachable(wrapper: BaseDatabaseWrapper | None = None, **settings: object) -> bool:
    """Whether a connection with other settings meets no server; it must fail."""
    failing = (wrapper or connection).copy()
    failing.settings_dict.update(settings)
    with pytest.raises(Error) as raised:
        failing.ensure_connection()
    return is_unreachable(failing, raised.value)


def test_R61_server_that_is_not_there_is_out_of_reach():
    assert unreachable(HOST="127.0.0.1", PORT="1")


@pytest.mark.parametrize(
    "wrong", [{"NAME": "no_such_database"}, {"USER": "nobody_knows", "PASSWORD": "wrong"}]
)
def test_R61_server_that_refuses_a_session_is_not_out_of_reach(wrong):
    assert not unreachable(**wrong)


@pytest.mark.leg("postgres18")
@pytest.mark.parametrize(("away", "expected"), [(False, False), (True, True)])
def test_R61_pool_whose_connections_are_in_use_is_not_out_of_reach(away, expected):
    """It times out alike where the server is away: another connection tells."""
    options = {**connection.settings_dict["OPTIONS"]}
    pooled = connection.copy("pooled")
    pooled.settings_dict["OPTIONS"] = {
        **options,
        "pool": {"min_size": 0, "max_size": 1, "timeout": 0.2},
    }
    if away:
        pooled.settings_dict.update(HOST="127.0.0.1", PORT="1")
        held = None
    else:
        held = pooled.copy("pooled")
        held.ensure_connection()
    try:
        assert unreachable(pooled) is expected
    finally:
        if held is not None:
            held.close()
        pooled.close_pool()
