"""The page of the settings has each field and each option, as the code has it."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import re
from datetime import timedelta

import pytest
from django.http import HttpResponse
from django.utils.module_loading import import_string

from django_idempotency import stores
from django_idempotency.http.verdicts import verdict_on
from django_idempotency.policy import HTTPPolicy, Policy
from tests.pages import DOCS, code_in, table_of

PAGE = DOCS / "reference/settings.md"
HEADINGS = re.findall(r"^### (.+)$", PAGE.read_text(), re.MULTILINE)
FIELDS = [
    (policy, field) for policy in (Policy, HTTPPolicy) for field in dataclasses.fields(policy)
]
STORES = [name.strip("`") for name in HEADINGS if "Store" in name]
NAMES = {"timedelta": timedelta}
#: The tables of all fields: the link to each one's section, and its default.
OVERVIEW = {
    policy: {link: default for link, default, _ in table_of(PAGE, line)}
    for policy, line in (
        (Policy, "The policy, for views, tasks and calls:"),
        (HTTPPolicy, "The HTTP policy, for views only:"),
    )
}


def test_each_field_has_a_section():
    documented = [name for name in HEADINGS if "Store" not in name]
    assert documented == [field.name.upper() for _, field in FIELDS]


@pytest.mark.parametrize(("policy", "field"), FIELDS, ids=lambda it: getattr(it, "name", ""))
def test_field_is_documented_as_it_is(policy, field):
    upper = field.name.upper()
    text = PAGE.read_text().split(f"\n### {upper}\n")[1].split("\n## ")[0].split("\n### ")[0]
    [default] = re.findall(r"^[^*\n]+ Default: `(.+)`\.$", text, re.MULTILINE)
    assert eval(default, NAMES) == field.default
    assert re.search(r"^\*\*(Change|Set) it\*\*", text, re.MULTILINE)
    assert OVERVIEW[policy][f"[`{upper}`](#{upper.lower()})"] == f"`{default}`"


@pytest.mark.parametrize("policy", OVERVIEW)
def test_overview_has_each_field_in_the_order_of_the_sections(policy):
    assert len(OVERVIEW[policy]) == len(dataclasses.fields(policy))
    names = re.findall(r"`(\w+)`\]", " ".join(OVERVIEW[policy]))
    assert names == [field.name.upper() for field in dataclasses.fields(policy)]


def test_KEEP_says_what_becomes_of_each_status():
    for value, *verdicts in table_of(PAGE, "### KEEP"):
        policy = HTTPPolicy(keep=eval(code_in(value)))
        for first, said in zip((200, 400, 500), verdicts, strict=True):
            released, _, others = said.rpartition("; ")
            named = re.findall(r"\d{3}", released)
            for status in range(first, 400 if first == 200 else first + 100):
                expected = "release" if str(status) in named else others.split(":")[0]
                response = HttpResponse(status=status)
                assert verdict_on(policy, response) == expected, (value, status)


def test_stores_are_documented():
    modules = pkgutil.walk_packages(stores.__path__, f"{stores.__name__}.")
    found = {
        f"{module.name}.{name}"
        for module in modules
        for name in getattr(importlib.import_module(module.name), "__all__", ())
        if name.endswith("Store") and not name.startswith(("Base", "Exclusive"))
    }
    # A folder gives the name that is documented, its module has the class.
    assert set(STORES) == {path for path in found if ".store." not in path}


@pytest.mark.parametrize("path", STORES)
def test_options_are_documented_as_they_are(path):
    parameters = {
        name: it
        for name, it in inspect.signature(import_string(path)).parameters.items()
        if it.kind is not it.VAR_KEYWORD
    }
    rows = {code_in(row[0]): row[1:] for row in table_of(PAGE, f"### `{path}`")}
    assert list(rows) == list(parameters)
    for name, (kind, default, _) in rows.items():
        assert code_in(kind) == parameters[name].annotation, name
        match default:
            case "":
                assert parameters[name].default is inspect.Parameter.empty
            case "the host's":
                assert callable(parameters[name].default)
            case _:
                assert eval(code_in(default)) == parameters[name].default, name
