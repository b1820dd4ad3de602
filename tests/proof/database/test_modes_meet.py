"""A record that one mode wrote means the same to each other mode, whoever asks."""

from __future__ import annotations

import pytest

from django_idempotency.stores.database import DatabaseStore
from tests.integration.database import test_modes
from tests.meetings import READERS

pytestmark = test_modes.pytestmark

MODES = ["joined", "single", "separate"]


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("reads", MODES)
@pytest.mark.parametrize("wrote", MODES)
def test_I3_I4_record_of_each_mode_means_the_same_to_each_reader(
    store: DatabaseStore, wrote: str, reads: str, reader: str
) -> None:
    test_modes.test_I3_I4_record_of_each_mode_means_the_same_to_each_other(
        store, reader, wrote, reads
    )
