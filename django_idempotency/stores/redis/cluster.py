"""Calls on many records of a cluster: grouped by node, and sent in parallel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from redis.exceptions import SlotNotCoveredError

#: The key of each record, and the arguments of the script that runs on it.
Calls = Sequence[tuple[str, Sequence[Any]]]


class _Group(NamedTuple):
    """A node, and the positions of its records in the calls."""

    node: Any
    places: list[int]


def on_each_node(client: Any, calls: Calls, run: Callable[[Any, Calls], list[Any]]) -> list[Any]:
    """Call `run` with each node and its calls, in parallel; return the answers in order."""
    groups = _by_node(client, calls)

    def run_group(group: _Group) -> list[Any]:
        return run(group.node, [calls[place] for place in group.places])

    if len(groups) < 2:
        answered = [run_group(group) for group in groups]
    else:
        with ThreadPoolExecutor(len(groups)) as pool:
            answered = list(pool.map(run_group, groups))
    by_place: dict[int, Any] = {}
    for group, answers in zip(groups, answered, strict=True):
        by_place.update(zip(group.places, answers, strict=True))
    return [by_place[place] for place in range(len(calls))]


def _by_node(client: Any, calls: Calls) -> list[_Group]:
    groups: dict[str, _Group] = {}
    for place, (key, _) in enumerate(calls):
        try:
            node = client.get_node_from_key(key)
        except SlotNotCoveredError:  # whichever is asked says so, or knows better by now
            node = client.get_default_node()
        groups.setdefault(node.name, _Group(node, [])).places.append(place)
    return list(groups.values())
