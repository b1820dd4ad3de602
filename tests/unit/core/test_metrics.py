"""Metrics for Prometheus and OpenTelemetry: labels, gauges, span events, dashboard and alerts."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from contextlib import suppress
from importlib import import_module
from math import inf
from subprocess import run as run_process
from unittest.mock import Mock

import promql_parser
import pytest
import yaml
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import REGISTRY, CollectorRegistry

from django_idempotency import LeaseLost, StoreError
from django_idempotency.conf import store_for
from django_idempotency.contrib.metrics import BUCKETS
from django_idempotency.contrib.opentelemetry.apps import OpenTelemetryConfig
from django_idempotency.contrib.opentelemetry.metrics import OpenTelemetryMetrics
from django_idempotency.contrib.opentelemetry.metrics import metrics as opentelemetry
from django_idempotency.contrib.prometheus import collector as collecting
from django_idempotency.contrib.prometheus.apps import PrometheusConfig
from django_idempotency.contrib.prometheus.collector import StoreCollector
from django_idempotency.contrib.prometheus.metrics import metrics as prometheus
from django_idempotency.engine.report import Report
from django_idempotency.records import Page
from django_idempotency.stores.base import BaseStore
from django_idempotency.sweep import sweep
from tests.pages import DOCS, ROOT, code_in, table_of
from tests.unit.core.conftest import begin, fail, run

MONITORING = DOCS / "howto/monitoring"


@pytest.fixture(autouse=True)
def connected():
    prometheus.connect(), opentelemetry.connect()
    yield
    prometheus.disconnect(), opentelemetry.disconnect()


def done(lease):
    return "done"


def exported(*registries):
    """The labels and the last value of each sample that is exported, by its name."""
    found = {}
    for registry in registries:
        for family in registry.collect():
            for sample in family.samples:
                if sample.name.startswith("django_idempotency"):
                    labels, values = found.setdefault(sample.name, (set(), {}))
                    labels.update(sample.labels)
                    values[sample.labels["alias"]] = sample.value
    return found


@pytest.fixture
def scraped(monkeypatch):
    """``scraped(...)``: a collector of these arguments, each of whose scrapes awaits its look."""
    monkeypatch.setattr(collecting, "_WAIT", 60)

    def make(**arguments):
        registry = CollectorRegistry()
        registry.register(collector := StoreCollector(["default"], **arguments))  # asks no store
        return collector, registry

    return make


def later(collector, seconds):
    """Let it be so many seconds later than the collector's last look."""
    collector._began -= seconds


def test_stale_leases_and_the_backlog_are_asked_for_once_a_minute_at_most(
    memory, clock, caplog, scraped
):
    collector, registry = scraped(every=0)
    run(done, "expired", retention=1)
    stale = {"a": {"lease": 1}, "b": {"lease": 1, "on_stale": "refuse"}}
    running = {"c": {"lease": 100, "on_stale": "refuse"}}
    left = [begin(key, retention=1000, **given) for key, given in {**stale, **running}.items()]
    [block.__enter__() for block in left]
    clock.advance(10)

    found = gauges(registry)
    assert 0 <= found.pop("store_look_age_seconds") < 60
    numbers = {"stale_leases": 2, "held_records": 1, "expired_records": 1}
    assert found == {"store_up": 1, **numbers}
    assert sweep("default") == {"default": 1}
    later(collector, 30)
    assert gauges(registry)["expired_records"] == 1
    later(collector, 31)
    assert gauges(registry)["expired_records"] == 0
    store_for().get = never_answers
    later(collector, 61)
    assert {*gauges(registry)} == {"store_up", "store_look_age_seconds"}
    assert gauges(registry)["store_up"] == 0
    assert "The gauges of default could not be read." in caplog.text
    clock.advance(-10)
    del store_for().get
    for block in left:
        block.__exit__(ValueError, ValueError(), None)


def test_a_slow_look_keeps_no_scrape_waiting_and_is_the_only_one(memory, scraped, monkeypatch):
    collector, registry = scraped()
    assert gauges(registry)["store_up"] == 1
    monkeypatch.setattr(collecting, "_WAIT", 0)
    begun, answers, asked_for = threading.Event(), threading.Event(), []

    def slowly(record_id):
        asked_for.append(record_id)
        begun.set()
        assert answers.wait(60)

    store_for().get = slowly
    later(collector, 301)
    assert gauges(registry)["store_up"] == 1
    assert begun.wait(60)
    later(collector, 301)
    collector._seen["default"] = (time.monotonic() - 1000, collector._seen["default"][1])
    assert 1000 <= gauges(registry)["store_look_age_seconds"] < 1100
    answers.set()
    collector._look.join(60)
    assert len(asked_for) == 1
    assert gauges(registry)["store_look_age_seconds"] < 1000


def test_a_forked_child_has_a_mutex_of_its_own(memory, scraped):
    collector, registry = scraped()
    collector._mutex.acquire()
    collector._forked()
    assert gauges(registry)["store_up"] == 1


class Costly(BaseStore):
    """A store of another kind, each read of which costs."""

    def get(self, record_id):
        return None

    reads = 0

    def browse(self, **arguments):
        self.read = True
        self.reads += 1
        return Page(())

    def count_expired(self):
        self.read = True
        return 3


def test_a_store_that_must_be_read_whole_is_asked_if_that_is_wanted(settings, scraped):
    settings.IDEMPOTENCY = {"default": {"BACKEND": f"{__name__}.Costly"}}
    assert {*gauges(scraped()[1])} == {"store_up", "store_look_age_seconds"}
    assert not hasattr(store_for(), "read")
    found = gauges(scraped(full_reads=True)[1])
    assert (found["stale_leases"], found["held_records"], found["expired_records"]) == (0, 0, 3)
    assert store_for().reads == 1  # of all that it has: it charges for each


def test_a_store_that_is_not_read_in_its_time_tells_no_number(
    settings, scraped, monkeypatch, caplog
):
    settings.IDEMPOTENCY = {"default": {"BACKEND": f"{__name__}.Costly"}}
    monkeypatch.setattr(Costly, "browse", lambda self, **arguments: Page((), "more"))
    assert {"stale_leases", "held_records"}.isdisjoint(gauges(scraped(full_reads=True)[1]))
    assert "was not read in 5 seconds" in caplog.text


def never_answers(*arguments):
    raise StoreError("down")


def gauges(registry):
    prefix = "django_idempotency_"
    return {name.removeprefix(prefix): v["default"] for name, (_, v) in exported(registry).items()}


def test_dashboard_and_alerts_name_what_is_exported_and_parse(memory, clock, monkeypatch):
    registry = CollectorRegistry()
    registry.register(StoreCollector())
    monkeypatch.setattr(collecting, "_WAIT", 60)

    def stalled(lease):
        clock.advance(61)
        run(done)  # takes over

    with suppress(LeaseLost):
        run(stalled)
    sweep("default")
    known = exported(REGISTRY, registry)
    dashboard = json.loads((MONITORING / "dashboard.json").read_text())
    alerts = yaml.safe_load((MONITORING / "alerts.yaml").read_text())

    rules = [rule for group in alerts["groups"] for rule in group["rules"]]
    panels = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    variables = [it["query"] for it in dashboard["templating"]["list"] if it["type"] == "query"]
    used = set()
    for query in [rule["expr"] for rule in rules] + panels:
        used |= check(re.sub(r"\$__rate_interval", "5m", query), known)
    for query in variables:
        name, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", query).groups()
        assert label in known[name][0]
    ours = {name for name in known if not name.endswith(("_created", "_count", "_sum"))}
    assert used == ours
    rows = table_of(DOCS / "reference/operations.md", "## Metrics")
    said = {code_in(name): {*re.findall("`(.+?)`", labels)} for name, _, labels, _ in rows}
    assert said == {name.removesuffix("_bucket"): known[name][0] - {"le"} for name in ours}
    page = (DOCS / "howto/monitoring.md").read_text()
    assert [rule["alert"] for rule in rules] == re.findall(r"^### `(\w+)`", page, re.MULTILINE)


def check(query, known):
    """Parse one query; each metric and label in it is exported. Returns the metrics."""
    names, labels, kept = set(), set(), set()

    def visit(node):
        if isinstance(node, promql_parser.VectorSelector):
            names.add(node.name)
            matchers = {matcher.name for matcher in node.matchers.matchers}
            assert matchers <= known[node.name][0], query
            labels.update(known[node.name][0])
        if isinstance(node, promql_parser.AggregateExpr):
            kept.update(node.modifier.labels)

    promql_parser.walk(promql_parser.parse(query), visit)
    assert kept <= labels, query
    return names


@pytest.mark.parametrize("config", [PrometheusConfig, OpenTelemetryConfig])
def test_names_of_operations_are_bounded_by_the_app(memory, monkeypatch, config):
    app = config(config.name, import_module(config.name))
    monkeypatch.setattr(app, "max_operations", 2)
    app.ready()
    metrics = import_module(f"{config.name}.metrics").metrics
    monkeypatch.setattr(metrics, "_operations", set())
    names = ["a", "", "b", "a", "c"]
    assert [metrics._bounded(name) for name in names] == ["a", "unnamed", "other", "a", "other"]


def test_both_exporters_have_buckets_for_seconds(memory):
    reader = InMemoryMetricReader()
    metrics = OpenTelemetryMetrics(MeterProvider([reader]).get_meter("tests"))
    metrics.store_calls(0.03, "default", "claim", "ok")
    [metric] = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
    assert metric.data.data_points[0].explicit_bounds == BUCKETS
    run(done)
    [calls] = (it for it in REGISTRY.collect() if it.name == metric.name)
    assert {float(sample.labels.get("le", "inf")) for sample in calls.samples} == {*BUCKETS, inf}


def test_an_attempt_that_is_interrupted_before_its_work_was_never_in_flight(memory, monkeypatch):
    monkeypatch.setattr(Report, "claimed", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        run(done, operation="counted")
    labels = {"alias": "default", "operation": "counted"}
    assert not REGISTRY.get_sample_value("django_idempotency_in_flight", labels)


def test_a_span_has_an_event_for_each_claim_and_each_end(memory, monkeypatch):
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    for _ in range(2):
        with provider.get_tracer("tests").start_as_current_span("request"):
            outcome = run(done, operation="bill")
    with suppress(ValueError), trace.use_span(trace.INVALID_SPAN):
        run(fail, "another")

    spans = exporter.get_finished_spans()
    events = [[event.name for event in span.events] for span in spans]
    assert events == [["idempotency.claimed", "idempotency.completed"], ["idempotency.replayed"]]
    assert dict(spans[1].events[0].attributes) == {
        "idempotency.alias": "default",
        "idempotency.operation": "bill",
        "idempotency.record_id": str(outcome.record_id),
        "idempotency.outcome": "replayed",
    }


MANY = """
import os, sys
import django
from django.conf import settings
settings.configure(
    SECRET_KEY="secret",
    INSTALLED_APPS=["django_idempotency", "django_idempotency.contrib.prometheus"],
    IDEMPOTENCY={"default": {"BACKEND": "django_idempotency.stores.memory.MemoryStore"}},
)
django.setup()
import django_idempotency
child = os.fork()
django_idempotency.run(lambda lease: 5, key="k", scope="s")
if child:
    assert os.waitpid(child, 0)[1] == 0
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.multiprocess import MultiProcessCollector
    registry = CollectorRegistry()
    MultiProcessCollector(registry)
    sys.stdout.write(generate_latest(registry).decode())
"""


def test_processes_of_a_server_add_up(tmp_path):
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    command = [sys.executable, "-c", MANY]
    done = run_process(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    labels = 'alias="default",operation="unnamed"'
    assert f'attempts_total{{{labels},outcome="completed"}} 2.0' in done.stdout
    assert f"in_flight{{{labels}}} 0.0" in done.stdout


def test_aliases_are_no_single_name():
    with pytest.raises(TypeError, match=r"write \['default'\]"):
        StoreCollector("default")
