"""Packages that wrap ``Atomic.__enter__`` and ``Atomic.__exit__``, as caches of queries do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext, suppress
from itertools import count, product
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from cachalot.cache import cachalot_caches
from cachalot.settings import cachalot_settings
from django.core.cache import cache
from django.db import Error, connection, transaction
from django.db.transaction import Atomic

from django_idempotency import IdempotencyError, StoreError
from django_idempotency.engine import Engine
from django_idempotency.engine.ending import RollBack
from django_idempotency.stores.database import DatabaseStore
from tests.app.models import Effect
from tests.integration.database.claims import Boom, effects, operation, work
from tests.integration.database.sessions import execute
from tests.unit.core.conftest import run_in_loop

pytestmark = [
    pytest.mark.django_db(transaction=True, databases=["default", "other"]),
    pytest.mark.leg("postgres18", "sqlite", "mariadb"),
]

MODES = pytest.mark.parametrize("transaction_mode", ["single", "joined", "separate"])


class Blocks:
    """What was entered: each block is left once, the innermost first."""

    def __init__(self) -> None:
        self.open: dict[Any, list[Atomic]] = {}
        self.entered = 0
        self.uneven: list[str] = []

    def enter(self, block: Atomic, original: Any) -> None:
        original(block)
        self.entered += 1
        self.open.setdefault(transaction.get_connection(block.using), []).append(block)

    def leave(self, block: Atomic, original: Any, *raised: Any) -> None:
        opened = self.open.get(transaction.get_connection(block.using))
        if not opened or opened.pop() is not block:
            self.uneven.append("left, and not the innermost one that was entered")
        original(block, *raised)

    def __call__(self) -> int:
        """Return how many were entered since the last call, all of which were left."""
        assert (self.uneven, [blocks for blocks in self.open.values() if blocks]) == ([], [])
        entered, self.entered = self.entered, 0
        return entered


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> Blocks:
    """Count what enters and leaves Django's own blocks."""
    blocks, enter, leave = Blocks(), Atomic.__enter__, Atomic.__exit__
    monkeypatch.setattr(Atomic, "__enter__", lambda self: blocks.enter(self, enter))
    monkeypatch.setattr(Atomic, "__exit__", lambda self, *given: blocks.leave(self, leave, *given))
    return blocks


@pytest.fixture
def cachalot() -> Iterator[None]:
    """The cache of queries, as its app installs it."""
    cachalot_settings.load()
    yield
    cachalot_settings.unload()
    cache.clear()


def fail(lease: Any) -> Any:
    work("lost")(lease)
    raise Boom


def refuse(lease: Any) -> Any:
    """A returned 5xx: its answer is kept without its work, or is not kept."""
    work("lost")(lease)
    raise RollBack("keep", "refused")


def roll_back(lease: Any) -> Any:
    work("lost")(lease)
    if connection.in_atomic_block:
        transaction.set_rollback(True)


def swallow(lease: Any) -> Any:
    """WorkRolledBack, where the work is in a transaction."""
    work("lost")(lease)
    with suppress(Error), connection.cursor() as cursor:
        cursor.execute("SELECT * FROM no_such_table")
    if connection.in_atomic_block:
        connection.needs_rollback = True


def nest(lease: Any) -> Any:
    with transaction.atomic(), transaction.atomic(savepoint=False):
        return work("nested")(lease)


ENDS = {
    "success": work("done"),
    "nested": nest,
    "error": fail,
    "kept error": refuse,
    "wish": roll_back,
    "doomed": swallow,
}


@pytest.mark.parametrize(
    ("transaction_mode", "within"),
    [("single", False), ("single", True), ("joined", False), ("separate", False)],
    ids=["single", "single in the caller's", "joined", "separate"],
)
@pytest.mark.parametrize("end", ENDS)
def test_R57_what_is_entered_is_left(blocks, transaction_mode, within, end):
    """Also where the statements of `single` have been prepared, and set its savepoint."""
    engine, numbers = Engine(DatabaseStore(prepare=True)), count()

    def run(then: Any) -> int:
        asked = operation(str(next(numbers)), transaction=transaction_mode)
        with transaction.atomic() if within else nullcontext():
            with suppress(Boom, IdempotencyError):
                engine.run(asked, then)
            with suppress(Boom, IdempotencyError):
                engine.run(asked, work("again"))  # a replay, or a run after an error
        return blocks()

    outcomes = {run(ENDS[end]) for _ in range(5)}
    expected = {"single": 2, "joined": 1, "separate": 0}[transaction_mode]
    assert min(outcomes) >= expected + within


@MODES
@pytest.mark.parametrize("end", ["success", "error", "kept error"])
def test_R57_what_a_coroutine_enters_is_left(blocks, transaction_mode, end):
    engine = Engine(DatabaseStore(prepare=True))

    async def then(lease: Any) -> Any:
        return await sync_to_async(ENDS[end])(lease)

    async def main() -> None:
        for number in range(5):
            with suppress(Boom):
                await engine.arun(operation(str(number), transaction=transaction_mode), then)

    run_in_loop(main)
    assert (blocks() > 0) is (transaction_mode != "separate")


def test_R90_what_a_request_enters_is_left(api, blocks, mode, atomic_requests):
    """With a key and without one."""
    api.client.raise_request_exception = False
    for then in ("created", "returned", "raised", "boom", "broken", "deferred"):
        for status, key in product((409, 503), ("a", "b", "c", "d", None)):
            api.then(then, status=status, key=key and f"{then}-{status}-{key}", path="/optional/")
        assert blocks() > 0 or mode == "separate", then


@MODES
@pytest.mark.leg("postgres18", "mariadb")
@pytest.mark.parametrize("when", ["work", "before"])
def test_R60_what_is_entered_is_left_where_the_session_is_lost(
    blocks, other, transaction_mode, when
):
    engine, numbers = Engine(DatabaseStore()), count()
    own, kill = ("SELECT pg_backend_pid()", "SELECT pg_terminate_backend({}, 60000)")
    if connection.vendor == "mysql":
        own, kill = ("SELECT CONNECTION_ID()", "KILL {}")

    def lose(lease: Any = None) -> None:
        other(execute, kill.format(execute(own)))

    for _ in range(4):
        engine.run(operation(str(next(numbers)), transaction=transaction_mode), work("done"))
    blocks()
    with suppress(StoreError):
        if when == "before":
            lose()
        then = lose if when == "work" else work("lost")
        engine.run(operation(str(next(numbers)), transaction=transaction_mode), then)
    blocks()
    connection.close()


@MODES
@pytest.mark.usefixtures("cachalot")
def test_R57_a_cache_of_queries_shows_what_has_committed(transaction_mode):
    """Its caches of open blocks end with the blocks, after a success and after an error."""
    engine = Engine(DatabaseStore(prepare=True))
    done: list[str] = []
    for number in range(5):
        name = str(number)
        assert effects() == done
        assert effects() == done  # from the cache
        engine.run(operation(name, transaction=transaction_mode), work(name))
        done.append(name)
        assert effects() == done
        with suppress(Boom):
            engine.run(operation(f"failed {name}", transaction=transaction_mode), fail)
        done += ["lost"] if transaction_mode == "separate" else []
        assert effects() == done
        Effect.objects.create(name=name)
        done.append(name)
        assert effects() == done
        assert cachalot_caches.atomic_caches["default"] == []
