"""The pytest plugin: fixtures and hints for projects, and what is told of store contracts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

# Nothing of Django or of this package is imported before a fixture or a contract needs it: this
# module is loaded in every run of pytest, before coverage is measured and settings are there.
if TYPE_CHECKING:
    from django_idempotency.stores.base import BaseStore
    from django_idempotency.testing.clock import FakeClock

_PARTS = (
    "base",
    "claims",
    "endings",
    "expiry",
    "interleavings",
    "lost_answers",
    "operators",
    "processes",
    "races",
    "steps",
    "uncertain",
    "waiting",
)
pytest.register_assert_rewrite(
    "django_idempotency.testing.http_contract",
    *(f"django_idempotency.testing.contract_{part}" for part in _PARTS),
)

_PROPERTY = "django_idempotency store contract"
_KEYLESS = (
    "A request without an idempotency key was refused. If this test is older than REQUIRED, "
    "@pytest.mark.idempotency_keys adds the keys."
)
_refused = pytest.StashKey[list[Exception]]()


@pytest.fixture
def idempotency_clock() -> FakeClock:
    """The time of `idempotency_store`: it stands still until the test moves it."""
    from django_idempotency.testing.clock import FakeClock

    return FakeClock()


@pytest.fixture
def idempotency_store(idempotency_clock: FakeClock) -> Iterator[BaseStore]:
    """A memory store in place of the default store, with the clock `idempotency_clock`."""
    from django_idempotency.testing.overrides import override_store

    replaced = override_store("memory", clock=idempotency_clock)
    yield replaced.enable()
    replaced.disable()


@pytest.fixture
def idempotency_keys(request: pytest.FixtureRequest) -> Iterator[None]:
    """A key on each unsafe request of a test client, except in tests marked with False."""
    from django_idempotency.testing.keyed import keyed_clients

    marker = request.node.get_closest_marker("idempotency_keys")
    given = dict(marker.kwargs) if marker is not None else {}
    if not given.pop("on", marker is None or False not in marker.args):
        yield
        return
    with keyed_clients(**given):
        yield


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "idempotency_keys(on=True, *, header, new_key): test clients add a key to unsafe requests",
    )


def pytest_itemcollected(item: pytest.Item) -> None:
    """Give a marked test the fixture, which is there before the test's own."""
    names = getattr(item, "fixturenames", None)
    marked = item.get_closest_marker("idempotency_keys") is not None
    if marked and names is not None and "idempotency_keys" not in names:
        names.insert(0, "idempotency_keys")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Note each request that is refused since it has no key: the log need not have its line."""
    from django_idempotency.exceptions import KeyRequired

    refused = item.stash[_refused] = []

    def note(error: KeyRequired, *args: Any, **kwargs: Any) -> None:
        refused.append(error)
        super(KeyRequired, error).__init__(*args, **kwargs)

    with patch.object(KeyRequired, "__init__", note):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Say of a failed test that it sent no key, and of a store's contract what was left out."""
    report = yield
    if report.failed and item.stash.get(_refused, []):
        report.sections.append(("django-idempotency", _KEYLESS))
    case: Any = getattr(item, "cls", None)
    left_out = getattr(case, "left_out", None)
    if report.when == "call" and isinstance(left_out, dict):
        report.user_properties.append((_PROPERTY, json.dumps([case.__name__, left_out])))
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say for each store how many of the contract's tests passed, and what was left out."""
    passed: Counter[str] = Counter()
    others: Counter[str] = Counter()
    left_out: dict[str, dict[str, str]] = {}
    for outcome in ("passed", "failed", "skipped"):
        for report in terminalreporter.stats.get(outcome, ()):
            for name, value in getattr(report, "user_properties", ()):
                if name == _PROPERTY:
                    store, rules = json.loads(value)
                    left_out[store] = rules
                    (passed if outcome == "passed" else others)[store] += 1
    if not left_out:
        return
    terminalreporter.section("store contract")
    for store, rules in left_out.items():
        line = f"{store}: {passed[store]} passed"
        if others[store]:
            line += f", {others[store]} did not"
        terminalreporter.write_line(line)
        for reason, number in Counter(rules.values()).items():
            terminalreporter.write_line(f"  left out: {number}, because {reason}")
            if terminalreporter.verbosity > 0:
                for rule in (name for name, why in rules.items() if why == reason):
                    terminalreporter.write_line(f"    {rule}")
