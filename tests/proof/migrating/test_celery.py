"""From celery-once and celery-singleton: old and new processes at once, as the guides say."""

from __future__ import annotations

import itertools
from contextlib import ExitStack

import pytest
import redis

from tests.proof.migrating.project import Project
from tests.services.redis import RedisServer

pytestmark = [
    pytest.mark.processes,
    pytest.mark.xdist_group("migrating_celery"),  # which shares processes
]

#: The package, and how its locks begin.
LOCKS = {"celery-once": "qo_*", "celery-singleton": "SINGLETONLOCK_*"}
DEPLOYMENTS = ("before", "guard", "release", "after")
orders = (f"order-{number}" for number in itertools.count())


class Shop(Project):
    """A project whose broker, results and locks are in a Redis of its own."""

    def __init__(self, package, folder, url):
        servers = {"CELERY_BROKER_URL": url, "CELERY_RESULT_BACKEND": url}
        super().__init__(f"migrating-{package}", package, folder, {}, **servers)
        self.package, self.url = package, url

    def locks(self):
        with redis.Redis.from_url(self.url) as client:
            return list(client.scan_iter(LOCKS[self.package]))


@pytest.fixture(scope="module", params=LOCKS)
def shop(request, tmp_path_factory):
    with RedisServer() as server:
        yield Shop(request.param, tmp_path_factory.mktemp("shop"), server.url)


@pytest.fixture(scope="module")
def processes(shop):
    """A process of each deployment, all at once."""
    with ExitStack() as stack:
        yield {name: stack.enter_context(shop.start(name)) for name in DEPLOYMENTS}


@pytest.mark.parametrize(
    ("first", "then", "worker"),
    [
        ("before", "before", "before"),
        ("before", "guard", "guard"),
        ("guard", "before", "before"),
        ("guard", "guard", "release"),
    ],
)
def test_while_locks_are_taken_one_message_is_sent(shop, processes, first, then, worker):
    order = [next(orders), 5]

    sent = processes[first].ask("send", args=order)
    again = processes[then].ask("send", args=order)
    processes[worker].ask("work")

    assert again == ("AlreadyQueued" if shop.package == "celery-once" else sent)
    assert (processes[first].ask("end", task_id=sent)[0], shop.effects(order[0])) == ("SUCCESS", 1)
    assert shop.locks() == []


@pytest.mark.parametrize(
    ("worker", "then", "effects"),
    [
        ("before", "before", 2),  # what the guides say of the packages
        ("before", "guard", 2),
        ("guard", "before", 2),
        ("guard", "release", 1),
        ("release", "after", 1),
        ("after", "release", 1),
    ],
)
def test_message_that_comes_again_runs_once_where_workers_guard(
    shop, processes, worker, then, effects
):
    order = [next(orders), 5]
    task = processes[worker].ask("send", args=order)
    processes[worker].ask("work")
    done = processes[worker].ask("end", task_id=task)

    processes[worker].ask("send_again", task_id=task, args=order)
    processes[then].ask("work")

    assert shop.effects(order[0]) == effects
    if effects == 1:
        assert processes[then].ask("end", task_id=task) == done


@pytest.mark.parametrize(
    ("senders", "worker"),
    [(("guard", "release"), "release"), (("release", "after"), "after")],
)
def test_once_all_workers_guard_second_message_gets_the_result(shop, processes, senders, worker):
    order = [next(orders), 5]

    tasks = [processes[sender].ask("send", args=order) for sender in senders]
    processes[worker].ask("work", messages=2)

    ends = [processes[worker].ask("end", task_id=task) for task in tasks]
    assert (ends[0][0], ends[0], shop.effects(order[0])) == ("SUCCESS", ends[1], 1)
    assert shop.locks() == []


@pytest.mark.parametrize(("worker", "is_sent"), [("release", True), ("after", False)])
def test_locks_are_released_by_workers_that_take_none(shop, processes, worker, is_sent):
    order = [next(orders), 5]
    first = processes["guard"].ask("send", args=order)
    processes[worker].ask("work")

    second = processes["guard"].ask("send", args=order)

    assert (second not in (first, "AlreadyQueued")) == is_sent
    assert bool(shop.locks())  # of the second message, or of the first one that nobody releases
    if is_sent:
        processes["release"].ask("work")
    elif shop.package == "celery-singleton":
        with shop.start("clear"):
            pass
    else:
        with redis.Redis.from_url(shop.url) as client:
            client.delete(*shop.locks())
    assert (shop.locks(), shop.effects(order[0])) == ([], 1)
