"""The features of a task, their values, and which of them exclude each other."""

from __future__ import annotations

from dataclasses import dataclass

from tests.proof.pairs.features import Possible, rows

__all__ = ["TaskCase", "task_cases"]

#: Each feature and its values. The first value is the plain one.
FEATURES: dict[str, tuple[str, ...]] = {
    "broker": ("memory", "redis"),
    "pool": ("solo", "threads"),
    "serializer": ("json", "pickle", "of_call"),
    "compression": ("none", "gzip"),
    "queue": ("default", "named", "routed"),
    "retry": ("none", "self", "autoretry", "reject"),
    "call": ("delay", "countdown", "chain", "group", "chord", "eager", "on_commit"),
    "mode": ("joined", "single", "separate", "steps"),
    "uncertain": ("repeat", "refuse"),
    "store": ("database", "redis"),
    "key": ("id", "argument", "enum", "template", "callable", "header"),
    "in_progress": ("retry", "ignore", "raise", "wait"),
    "on_failed": ("run", "replay"),
    "ignore_result": ("no", "yes"),
    "acks_late": ("no", "yes"),
    "encryption": ("no", "yes"),
    "result": ("value", "none", "exception", "large"),
}

#: Of these all triples are covered, not only pairs.
STATEFUL = ("mode", "store", "retry", "call", "result")


@dataclass(frozen=True)
class TaskCase:
    """One value of each feature."""

    broker: str
    pool: str
    serializer: str
    compression: str
    queue: str
    retry: str
    call: str
    mode: str
    uncertain: str
    store: str
    key: str
    in_progress: str
    on_failed: str
    ignore_result: str
    acks_late: str
    encryption: str
    result: str

    def __str__(self) -> str:
        plain = {name: values[0] for name, values in FEATURES.items()}
        told = [f"{name}={value}" for name, value in vars(self).items() if value != plain[name]]
        return ",".join(told) or "plain"


POSSIBLE: tuple[Possible, ...] = (
    # Only a database store joins.
    (("mode", "store"), lambda m, s: m in ("separate", "steps") or s == "database"),
    # Only work in steps has calls of which nobody may know.
    (("uncertain", "mode"), lambda u, m: u == "repeat" or m == "steps"),
    # What is called in place has no message: none that is coded, routed or rejected.
    (("call", "serializer"), lambda c, s: c != "eager" or s == "json"),
    (("call", "compression"), lambda c, z: c != "eager" or z == "none"),
    (("call", "queue"), lambda c, q: c != "eager" or q == "default"),
    (("call", "retry"), lambda c, r: c != "eager" or r != "reject"),
    # A chord needs the results of its members, and does not call back without one of them.
    (("call", "ignore_result"), lambda c, i: c != "chord" or i == "no"),
    # `delay_on_commit` takes neither headers nor an id.
    (("call", "key"), lambda c, k: c != "on_commit" or k not in ("header", "id")),
)


def task_cases(seed: str) -> list[TaskCase]:
    """Return the cases of a seed: each possible pair of values, and each triple of `STATEFUL`."""
    return [TaskCase(**row) for row in rows(FEATURES, [STATEFUL], POSSIBLE, seed)]
