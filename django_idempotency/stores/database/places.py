"""Where a claim wrote: its table, and what of its session says which rows are seen there (R98)."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import NamedTuple


class Place(NamedTuple):
    """
    A place, as a claim or a look gives it.

    The session is its role, or a JSON list of its role and of the store's `session_variables`.
    """

    table: str
    search_path: str
    session: str

    @property
    def values(self) -> list[str]:
        """The values of the session: of its role, and of each variable."""
        if not self.session.startswith("["):
            return [self.session]
        return [value or "" for value in json.loads(self.session)]

    @property
    def is_plain(self) -> bool:
        """Whether any session is like this one: without a role, and without a variable."""
        role, *variables = self.values
        return role == "none" and not any(variables)


@lru_cache(maxsize=1024)
def place_of(text: str) -> Place:
    """Return the place that a lease or a record carries as `text`."""
    return Place(*json.loads(text))


def is_one_table(place: str | None, other: str | None) -> bool:
    """Return whether two places have one table; None may be any place."""
    return place is None or other is None or place_of(place).table == place_of(other).table
