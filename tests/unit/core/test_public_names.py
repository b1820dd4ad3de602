"""The public names of the package: each can be imported, and none is more than it says."""

from __future__ import annotations

import inspect

import pytest

import django_idempotency
from django_idempotency import exceptions
from tests.services.processes import ROOT

DESIGNED = {
    "FingerprintMismatch",
    "IdempotencyError",
    "InProgress",
    "InvalidKey",
    "InvalidStore",
    "KeyRequired",
    "LeaseLost",
    "Outcome",
    "ResultTooLarge",
    "ResultUnavailable",
    "StoreError",
    "arun",
    "attempt",
    "current",
    "idempotent_function",
    "run",
}
ERRORS = [name for name in exceptions.__all__ if name != "IdempotencyError"]


def test_all_of_the_design_are_there():
    assert set(django_idempotency.__all__) >= DESIGNED


def test_all_is_sorted_and_has_no_name_twice():
    assert django_idempotency.__all__ == sorted(set(django_idempotency.__all__))


@pytest.mark.parametrize("name", django_idempotency.__all__)
def test_can_be_imported(name):
    value = getattr(django_idempotency, name)
    assert value.__name__ == name
    assert value.__module__.startswith("django_idempotency.")
    assert inspect.getdoc(value)


def test_every_error_is_public():
    assert set(exceptions.__all__) <= set(django_idempotency.__all__)


def test_dir_lists_them():
    assert set(django_idempotency.__all__) <= set(dir(django_idempotency))


def test_a_name_that_is_none_is_an_AttributeError():
    with pytest.raises(AttributeError, match="nonesuch"):
        django_idempotency.nonesuch  # noqa: B018


def test_the_version_is_that_of_the_distribution():
    project = (ROOT / "pyproject.toml").read_text()
    assert f'\nversion = "{django_idempotency.__version__}"\n' in project


@pytest.mark.parametrize("name", ERRORS)
def test_an_errors_docstring_is_its_default_message(name):
    error = getattr(exceptions, name)
    assert str(error()) == inspect.getdoc(error)
    assert str(error("mine")) == "mine"
    assert issubclass(error, django_idempotency.IdempotencyError)


def test_InProgress_tells_more():
    error = django_idempotency.InProgress(retry_after=7, stale=True)
    assert (error.retry_after, error.stale, error.record) == (7, True, None)


def test_TransactionOpen_is_a_RuntimeError_as_that_of_durable_is():
    assert issubclass(django_idempotency.TransactionOpen, RuntimeError)


def test_run_and_arun_have_one_signature():
    run = inspect.signature(django_idempotency.run).parameters
    arun = inspect.signature(django_idempotency.arun).parameters
    assert list(run) == list(arun)
    assert {n: p.default for n, p in run.items()} == {n: p.default for n, p in arun.items()}
    keywords = ["key", "scope", "payload", "operation", "store", "codec"]
    assert [n for n, p in run.items() if p.kind is p.KEYWORD_ONLY] == keywords
    assert run["func"].kind is inspect.Parameter.POSITIONAL_ONLY
    assert (run["store"].default, run["operation"].default) == ("default", "")
