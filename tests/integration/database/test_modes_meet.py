"""A record that one mode wrote is read and replayed by each other; make proof has all pairs."""

from __future__ import annotations

import pytest

from django_idempotency.engine import Engine
from django_idempotency.stores.database import DatabaseStore
from tests.meetings import MEANS, what_it_means

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.leg("postgres18", "sqlite", "mariadb"),
]

PAIRS = [("joined", "single"), ("single", "separate"), ("separate", "joined")]


@pytest.mark.parametrize("reader", ["run"])
@pytest.mark.parametrize(("wrote", "reads"), PAIRS)
def test_I3_I4_record_of_each_mode_means_the_same_to_each_other(
    store: DatabaseStore, reader: str, wrote: str, reads: str
) -> None:
    # A `single` attempt that dies leaves no record in progress.
    states = [x for x in MEANS if wrote != "single" or x not in ("live", "lapsed")]

    meant = what_it_means(Engine(store), reader, wrote=wrote, reads=reads, states=states)

    assert meant == {state: MEANS[state] for state in states}
