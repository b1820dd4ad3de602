"""The files that start the example say the same, and name what is there."""

from __future__ import annotations

import re

import yaml

from tests.pages import ROOT

EXAMPLE = ROOT / "example_project"
COMPOSE = yaml.safe_load((EXAMPLE / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]
OURS = ("release", "web", "worker", "beat")
#: What the example reads of its environment.
READ = re.compile(r"[\"'](EXAMPLE_\w+|IDEMPOTENCY_STORE|PORT|PROMETHEUS_MULTIPROC_DIR)[\"']")
SETTINGS = {
    name
    for path in EXAMPLE.rglob("*.py")
    if "demo" not in path.parts
    for name in READ.findall(path.read_text())
}
#: What libraries read.
OTHERS = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"}


def test_compose_runs_the_commands_of_the_procfile():
    lines = (EXAMPLE / "Procfile").read_text().splitlines()
    procfile = dict(line.split(": ", 1) for line in lines)

    assert {name: SERVICES[name]["command"] for name in OURS} == {n: procfile[n] for n in OURS}


def test_compose_sets_what_the_settings_read_and_the_page_has_it_all():
    assert "EXAMPLE_DATABASE_URL" in SETTINGS
    for name in OURS:
        assert set(SERVICES[name]["environment"]) <= SETTINGS | OTHERS
    page = (EXAMPLE / "README.md").read_text()
    assert [name for name in sorted(SETTINGS) if f"`{name}`" not in page] == []


def test_compose_names_servers_that_it_has_and_waits_for_their_health():
    for name, service in SERVICES.items():
        for needed, how in service.get("depends_on", {}).items():
            healthy = how["condition"] == "service_healthy"
            assert "healthcheck" in SERVICES[needed] if healthy else needed == "release", name
        for volume in service.get("volumes", []):
            assert volume.partition(":")[0] in COMPOSE["volumes"], name
        if name not in OURS:
            assert re.search(r":\d+\.?\d*", service["image"]), "a version"
    urls = [v for v in SERVICES["web"]["environment"].values() if "://" in v]
    assert {re.search(r"//(?:.*@)?(\w+):", url).group(1) for url in urls} <= set(SERVICES)


def test_the_image_has_what_it_copies_and_nothing_keeps_that_out():
    copied = re.findall(r"(?m)^COPY (.+) \S+$", (EXAMPLE / "Dockerfile").read_text())
    let_in = re.findall(r"(?m)^!(.+)$", (EXAMPLE / "Dockerfile.dockerignore").read_text())

    sources = [source for line in copied for source in line.split()]
    assert sorted(sources) == sorted(let_in)
    assert [source for source in sources if not (ROOT / source).exists()] == []
