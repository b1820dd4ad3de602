"""Adapters whose package is not installed say which extra brings it."""

from __future__ import annotations

import importlib
import sys

import pytest

ADAPTERS = [("celery", "celery", "celery"), ("rest_framework", "rest_framework", "drf")]


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
