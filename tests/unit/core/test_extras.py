"""Adapters whose package is not installed say which extra brings it."""

from __future__ import annotations

import importlib
import re
import sys

import pytest

from tests.services.processes import ROOT

ADAPTERS = [
    ("celery", "celery", "celery"),
    ("rest_framework", "rest_framework", "drf"),
    ("spectacular", "drf_spectacular", "openapi"),
]


@pytest.mark.parametrize(("name", "package", "extra"), ADAPTERS)
def test_adapter_without_its_package_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, name: str, package: str, extra: str
) -> None:
    adapter = f"django_idempotency.contrib.{name}"
    importlib.import_module(adapter)
    monkeypatch.delitem(sys.modules, adapter)
    for module in [package, *(name for name in sys.modules if name.startswith(f"{package}."))]:
        monkeypatch.setitem(sys.modules, module, None)  # what "not installed" looks like

    with pytest.raises(ImportError, match=rf"pip install 'django-idempotency\[{extra}\]'") as told:
        importlib.import_module(adapter)

    assert isinstance(told.value.__cause__, ModuleNotFoundError)


@pytest.mark.parametrize(
    ("extra", "requirement"),
    [
        ("celery", "packaging"),  # kombu's Redis transport imports it
        ("openapi", "drf-spectacular"),
        ("postgres", "psycopg[binary,pool]"),
        ("postgres-python", "psycopg[pool]"),
    ],
)
def test_extra_brings_what_its_adapter_imports(extra: str, requirement: str) -> None:
    project = (ROOT / "pyproject.toml").read_text()
    found = re.search(rf"^{extra} = \[(.*?)\]\n", project, re.MULTILINE | re.DOTALL)

    assert found is not None
    assert f'"{requirement}>=' in found[1]
