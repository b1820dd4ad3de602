"""R78: the language of problems, and the German catalogue."""

from __future__ import annotations

import ast
import gettext
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.http import HttpResponse
from django.utils import translation

import django_idempotency
from django_idempotency import InvalidKey
from django_idempotency.http import problems

pytestmark = pytest.mark.django_db

PACKAGE = Path(django_idempotency.__file__).parent
CATALOGUE = PACKAGE / "locale/de/LC_MESSAGES"
PROBLEMS = [value for value in vars(problems).values() if isinstance(value, problems.Problem)]


@pytest.fixture
def language(settings: Any) -> Iterator[None]:
    """The request chooses."""
    settings.MIDDLEWARE = ["django.middleware.locale.LocaleMiddleware", *settings.MIDDLEWARE]
    yield
    translation.activate(settings.LANGUAGE_CODE)


@pytest.mark.usefixtures("language")
@pytest.mark.parametrize(
    ("asked", "said", "title"),
    [
        ("de-AT", "de", "Idempotency-Key fehlt"),
        ("en-GB", "en-gb", "Idempotency-Key is missing"),
        ("fr", "en", "Idempotency-Key is missing"),
    ],
)
def test_R78_content_language_is_that_of_the_text(api, asked, said, title):
    response = api(key=None, headers={"Accept-Language": asked})

    assert response.headers["Content-Language"] == said
    assert response.json()["title"] == title
    assert response.json()["code"] == "idempotency_key_missing"


def test_R78_without_translation_it_is_english(api, settings, monkeypatch):
    settings.LANGUAGE_CODE, settings.USE_I18N = "de", False
    monkeypatch.setattr(translation, "_trans", type(translation._trans)())  # read once

    response = api(key=None)

    assert response.json()["title"] == "Idempotency-Key is missing"
    assert response.headers["Content-Language"] == "en"


def refuse(key: str) -> None:
    raise InvalidKey("result")


REASONS: list[tuple[str, dict[str, Any], str, str]] = [
    ("", {}, "is empty", "ist leer"),
    ("x" * 300, {}, "has 300 characters; 1 to 255 are", "hat 300 Zeichen; erlaubt sind 1 bis 255"),
    ('"a', {}, "must be one structured-field String", "muss ein einziger String"),
    ("k", {"KEY_VALIDATOR": "uuid"}, "must be a UUID.", "muss eine UUID sein."),
    ("k", {"KEY_VALIDATOR": "uuid7"}, "UUID of version 7", "muss eine UUID der Version 7 sein."),
    ("k", {"STRICT_HEADER": True}, "must be a structured-field", "muss ein String nach RFC 9651"),
    ("k", {"KEY_VALIDATOR": refuse}, "result", "result"),
]


@pytest.mark.usefixtures("language")
@pytest.mark.parametrize(("field", "http", "english", "german"), REASONS)
def test_R78_reason_of_an_invalid_key_is_translated(api, policy, field, http, english, german):
    """What a validator of the project says stays."""
    policy(HTTP=http)

    said = [api(key=field, headers={"Accept-Language": asked}).json() for asked in ("en", "de")]

    assert english in said[0]["detail"]
    assert german in said[1]["detail"]
    assert said[1]["title"] == "Idempotency-Key ist ungültig"


@pytest.mark.parametrize(("code", "said"), [("de", "de"), ("fr", None)])
def test_R78_an_answer_of_the_project_is_labelled_where_our_texts_are_its_language(
    api, policy, settings, code, said
):
    """What else it says, nobody here knows."""
    settings.LANGUAGE_CODE = code
    policy(HTTP={"ERROR_RENDERER": lambda request, members: HttpResponse(members["title"])})

    assert api(key=None).headers.get("Content-Language") == said


# The catalogue.


def reasons() -> list[tuple[str, str]]:
    """Why keys.py and the guard refuse a key, each with its code."""
    found = []
    for module in ("keys.py", "http/guard.py"):
        for node in ast.walk(ast.parse((PACKAGE / module).read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "InvalidKey":
                given = {word.arg: word.value for word in node.keywords}
                code = ast.literal_eval(given["code"]) if "code" in given else ""
                text = ast.literal_eval(node.args[0]) if code else ast.unparse(node.args[0])
                found.append((text, code))
    return found


def test_R78_german_has_every_text_and_is_compiled_of_its_source():
    with (CATALOGUE / "django.mo").open("rb") as compiled:
        german = gettext.GNUTranslations(compiled)
    lines = (CATALOGUE / "django.po").read_text().splitlines()
    source = [ast.literal_eval(line[6:]) for line in lines if line.startswith("msgid ")][1:]
    said = [ast.literal_eval(line[7:]) for line in lines if line.startswith("msgstr ")][1:]
    page = (PACKAGE / "templates/django_idempotency/problem.html").read_text()
    browsable = (PACKAGE / "contrib/rest_framework/browsable.py").read_text()

    with translation.override(None):
        marked = {str(text) for problem in PROBLEMS for text in (problem.title, problem.detail)}
    marked |= {text for text, code in reasons() if code}
    marked |= set(re.findall(r'{% translate "([^"]+)"', page))
    marked |= set(re.findall(r'_\("([^"]+)"\)', browsable))

    assert set(source) == marked
    assert [german.gettext(text) for text in source] == said
    assert not [text for text, german_text in zip(source, said, strict=True) if text == german_text]


def test_R78_reasons_that_a_client_is_told_have_codes():
    """Without one a reason is not translated. A key that is no str never comes over HTTP."""
    codes = [code for _, code in reasons() if code]

    assert len(codes) == len(set(codes)) == 8
    assert len([text for text, code in reasons() if not code]) == 1
