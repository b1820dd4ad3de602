"""What is in the packages: the files that the app needs, and a first page whose links work."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

import django_idempotency
from tests.pages import ROOT
from tests.proof.packages import EXTRAS, extras_of_the_project, lowest_versions


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    [path] = WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    return zipfile.ZipFile(path)


def test_the_wheel_has_the_package_and_no_more(wheel: zipfile.ZipFile) -> None:
    names = [name for name in wheel.namelist() if ".dist-info/" not in name]

    package = Path(django_idempotency.__file__).parent
    there = [path for path in package.rglob("*") if path.is_file() and path.suffix != ".po"]
    kept = [path for path in there if "__pycache__" not in path.parts]
    assert sorted(names) == sorted(str(path.relative_to(ROOT)) for path in kept)
    kinds = {name.rpartition(".")[2] for name in names}
    assert {"py", "typed", "mo", "html", "js"} <= kinds


def test_the_first_page_leads_somewhere_from_a_package_index(wheel: zipfile.ZipFile) -> None:
    [metadata] = [name for name in wheel.namelist() if name.endswith("/METADATA")]
    text = wheel.read(metadata).decode()

    targets = re.findall(r"\]\(([^)]+)\)", text)
    assert len(targets) > 10
    home = "https://django-idempotency.readthedocs.io/en/latest/"
    for target in targets:
        assert target.startswith("https://")
        page = target.removeprefix(home).partition("#")[0]
        page = page.replace(".html", ".md").replace("_images/", "pictures/")
        assert not target.startswith(home) or (ROOT / "docs" / page).is_file()


def test_no_page_and_no_error_asks_an_index_for_a_package_that_has_no_release() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    texts = [*pages, *Path(django_idempotency.__file__).parent.rglob("*.py")]
    written = ("releasing.md", "changelog.md")
    asked = re.compile(r"pip install .?django-idempotency|django-idempotency\[")

    found = [it.name for it in texts if asked.search(it.read_text()) and it.name not in written]

    assert found == []
    assert "[project.urls]" not in (ROOT / "pyproject.toml").read_text(), "none is published"


def test_each_extra_is_tried_by_itself() -> None:
    assert set(EXTRAS) == {"", *extras_of_the_project()}


def test_the_lowest_versions_are_those_that_the_project_asks_for() -> None:
    tox = (ROOT / "tox.ini").read_text()
    section = tox.partition("[testenv:lowest]")[2].partition("\n[")[0]

    assert set(re.findall(r"\S+==[\d.]+", section)) == lowest_versions()
