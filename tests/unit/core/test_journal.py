"""The journal of a record: its entries, and what is no journal (S16)."""

from __future__ import annotations

import hypothesis
import pytest
from hypothesis import strategies as st

from django_idempotency import journal
from django_idempotency.exceptions import StoreError

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=journal.LONGEST_NAME)
noted = st.lists(st.tuples(names, st.binary(max_size=300)), max_size=20)
TWO = journal.entry("first", b"\0payload") + journal.entry("sécond", b"")


@hypothesis.settings(deadline=None, derandomize=True)
@hypothesis.given(noted)
def test_S1_S12_each_name_has_its_first_payload_in_the_order_of_the_notes(noted):
    written = b"".join(journal.entry(name, payload) for name, payload in noted)
    expected = {}
    for name, payload in noted:
        expected.setdefault(name, payload)
    assert list(journal.read(written).results.items()) == list(expected.items())


@pytest.mark.parametrize("nothing", [None, b""])
def test_S8_nothing_is_an_empty_journal(nothing):
    assert journal.read(nothing).results == {}


def test_S1_journal_of_a_driver_may_be_a_memoryview():
    assert journal.read(memoryview(TWO)).results == {"first": b"\0payload", "sécond": b""}


ENDS = {0, len(journal.entry("first", b"\0payload")), len(TWO)}


@pytest.mark.parametrize("length", sorted(set(range(len(TWO))) - ENDS))
def test_S16_journal_that_was_cut_short_is_damaged(length):
    with pytest.raises(StoreError, match="damaged, or was written by a newer release"):
        journal.read(TWO[:length])


@pytest.mark.parametrize(
    "damaged",
    [
        b"\x04" + TWO[1:],
        b"\x00" + TWO[1:],
        TWO + b"\x01",
        journal.entry("", b"payload"),
        TWO.replace(b"first", b"f\xffrst"),
        TWO.replace(b"\0\0\0\x08", b"\xff\xff\xff\xff"),
    ],
    ids=["a newer kind", "no kind", "a byte more", "no name", "no UTF-8", "a length past the end"],
)
def test_S16_what_is_no_journal_is_damaged(damaged):
    with pytest.raises(StoreError, match="damaged"):
        journal.read(damaged)
