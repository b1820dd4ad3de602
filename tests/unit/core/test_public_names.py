"""The public names of the package: each can be imported, and none is more than it says."""

from __future__ import annotations

import importlib
import inspect
import pickle
import re
import sys

import pytest

import django_idempotency
from django_idempotency import exceptions
from tests.services.processes import ROOT

DESIGNED = {"Outcome", "arun", "attempt", "current", "idempotent_function", "run"}
#: Those that need nothing to be made of.
ERRORS = sorted({*exceptions.__all__} - {"IdempotencyError", "TaskFailed"})


def test_all_of_the_design_are_there_sorted_and_say_what_they_are():
    names = django_idempotency.__all__
    assert len(names) == len(set(names))
    assert set(names) >= DESIGNED | set(exceptions.__all__)
    assert set(dir(django_idempotency)) >= set(names)
    values = {name: getattr(django_idempotency, name) for name in names}
    assert {name: value.__name__ for name, value in values.items()} == {n: n for n in values}
    assert [name for name, value in values.items() if not inspect.getdoc(value)] == []
    modules = {value.__module__.partition(".")[0] for value in values.values()}
    assert modules == {"django_idempotency"}
    project = (ROOT / "pyproject.toml").read_text()
    assert f'\nversion = "{django_idempotency.__version__}"\n' in project


def test_a_name_that_is_none_of_the_packages_is_an_AttributeError():
    with pytest.raises(AttributeError, match="nonesuch"):
        django_idempotency.nonesuch  # noqa: B018


def test_an_error_says_its_docstring_or_its_code_and_parameters_after_a_pickle_too():
    errors = [getattr(exceptions, name) for name in ERRORS]
    assert [str(error()) for error in errors] == [inspect.getdoc(error) for error in errors]
    assert {str(error("mine")) for error in errors} == {"mine"}
    assert all(issubclass(error, django_idempotency.IdempotencyError) for error in errors)
    assert issubclass(django_idempotency.TransactionOpen, RuntimeError)

    text, params = "It has %(length)s characters.", {"length": 300}
    error = exceptions.InvalidKey(text, code="length", params=params)
    kept = pickle.loads(pickle.dumps(error))
    assert [str(error), str(kept)] == ["It has 300 characters."] * 2
    assert (kept.message, kept.code, kept.params) == (text, "length", params)
    assert str(exceptions.InvalidKey(*error.args)) == str(error)  # as Celery makes it of JSON
    assert str(exceptions.StoreError("100 % of it")) == "100 % of it"
    told = django_idempotency.InProgress(retry_after=7, stale=True)
    assert (told.retry_after, told.stale, told.record) == (7, True, None)


def test_run_and_arun_have_one_signature():
    run = inspect.signature(django_idempotency.run).parameters
    arun = inspect.signature(django_idempotency.arun).parameters
    assert [(n, p.default) for n, p in run.items()] == [(n, p.default) for n, p in arun.items()]
    keywords = ["key", "scope", "payload", "operation", "store", "codec"]
    assert [n for n, p in run.items() if p.kind is p.KEYWORD_ONLY] == keywords
    assert run["func"].kind is inspect.Parameter.POSITIONAL_ONLY
    assert (run["store"].default, run["operation"].default) == ("default", "")


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [
        ("contrib.celery", "celery", "celery"),
        ("contrib.rest_framework", "rest_framework", "drf"),
        ("contrib.spectacular", "drf_spectacular", "openapi"),
        ("client.httpx", "httpx", "httpx"),
        ("client.requests", "requests", "requests"),
    ],
)
def test_adapter_without_its_package_names_the_extra(monkeypatch, name, package, extra):
    adapter = f"django_idempotency.{name}"
    importlib.import_module(adapter)
    monkeypatch.delitem(sys.modules, adapter)
    for module in [package, *(name for name in sys.modules if name.startswith(f"{package}."))]:
        monkeypatch.setitem(sys.modules, module, None)  # what "not installed" looks like
    with pytest.raises(ImportError, match=rf"pip install '\.\[{extra}\]'"):
        importlib.import_module(adapter)


def test_extra_brings_what_its_adapter_imports():
    project = (ROOT / "pyproject.toml").read_text()
    for extra, requirement in (
        ("celery", "packaging"),  # kombu's Redis transport imports it
        ("httpx", "httpx"),
        ("openapi", "drf-spectacular"),
        ("requests", "urllib3"),
        ("postgres", "psycopg[binary,pool]"),
        ("postgres-python", "psycopg[pool]"),
    ):
        found = re.search(rf"^{extra} = \[(.*?)\]\n", project, re.MULTILINE | re.DOTALL)
        assert f'"{requirement}>=' in found[1]
