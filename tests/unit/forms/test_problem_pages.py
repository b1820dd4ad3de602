"""R89: problems as pages for browsers, and as problem details for everybody else."""

from __future__ import annotations

import json
import re

import pytest
from django.template import TemplateDoesNotExist
from django.template.loader import render_to_string
from django.utils import translation

from django_idempotency import InvalidKey
from django_idempotency.http import problems

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.unit.forms.urls")]

PROBLEMS = [each for each in vars(problems).values() if isinstance(each, problems.Problem)]
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/webp,*/*;q=0.8"
PAGE = "django_idempotency/problem.html"
TITLES = {409: "Your first click is still being processed", 422: "This form was already sent"}


@pytest.fixture
def refused(request, visitor, in_progress):
    """``refused(accept)``: submit a form that gets 422, or the status of the parameter."""
    status = getattr(request, "param", 422)
    visitor.log_in()
    fields = visitor.page()
    visitor.submit(fields)
    if status == 409:
        in_progress()
    else:
        fields["item"] = "coffee"

    def submit(accept=BROWSER):
        response = visitor.submit(fields, Prefer="wait=0", Accept=accept)
        assert response.status_code == status
        return response

    return submit


@pytest.mark.parametrize("refused", [409, 422], indirect=True)
def test_R89_R31_R39_R49_a_browser_gets_a_page(refused):
    response = refused()

    assert ("Retry-After" in response.headers) == (response.status_code == 409)
    assert response.headers["Content-Type"] == "text/html; charset=utf-8"
    assert response.headers["Cache-Control"] == "no-store"
    assert "Idempotency-Replayed" not in response.headers
    assert PAGE in [template.name for template in response.templates]
    title = TITLES[response.status_code]
    for part in (f"<h1>{title}</h1>", f"<title>{title}</title>", '<html lang="en-us">'):
        assert part in response.text
    assert not re.search("tea|coffee", response.text)


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("text/html;q=0.9, application/json;q=0.5", "text/html; charset=utf-8"),
        ("*/*", "application/problem+json"),
        ("application/json", "application/problem+json"),
        ("application/problem+json", "application/problem+json"),
        ("application/json, text/html;q=0.5", "application/problem+json"),
    ],
)
def test_R89_who_prefers_html_gets_a_page_and_everybody_else_problem_details(refused, accept, kind):
    response = refused(accept)

    assert response.headers["Content-Type"] == kind
    assert kind[:4] == "text" or json.loads(response.content)["status"] == 422


@pytest.mark.parametrize("language", ["en", "de"])
def test_R89_a_page_has_no_jargon(language):
    jargon = re.compile(r"idempoten|key|schlüssel|request|anfrage|\blease|caller|store")
    for problem in PROBLEMS:
        with translation.override(language):
            members = {**vars(problem), "title": problem.title}
            page = render_to_string(PAGE, {"problem": members})

        text = re.sub(r"<style>.*?</style>|<[^>]+>", " ", page).lower()
        assert not jargon.search(text), problem.code
        assert re.search(r"<h1>(.+)</h1>\s*<p>(.+)</p>", page), problem.code


def test_R89_R80_the_page_escapes(visitor, policy, settings):
    settings.DEBUG = True  # in which the page has the reason, too

    def refuse(key):
        raise InvalidKey(f"Not a key of ours: {key}")

    policy(HTTP={"KEY_VALIDATOR": refuse})
    visitor.log_in()

    response = visitor.submit(
        {**visitor.page(), "idempotency_key": "<script>alert(1)</script>{{7*7}}"}
    )

    assert response.status_code == 400
    assert "<script>" not in response.text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;{{7*7}}" in response.text


def test_R80_the_page_links_to_no_other_host(rf):
    request = rf.post("/")
    request.path = "//evil.example/form/"  # as a catch-all in the URLconf lets it through

    assert "evil" not in render_to_string(PAGE, {"problem": vars(PROBLEMS[0])}, request)


@pytest.mark.parametrize(
    ("language", "said"), [("de", "de"), ("de-at", "de-at"), ("en-gb", "en-gb"), ("ar", None)]
)
def test_R89_R78_the_page_says_which_language_it_is_in(refused, settings, language, said):
    """Nobody has translated it into Arabic: it is in English, and says nothing else."""
    settings.LANGUAGE_CODE = language
    settings.USE_I18N = True

    response = refused()

    assert response.headers.get("Content-Language") == said
    assert f'<html lang="{said or "en"}">' in response.text
    assert ("Dieses Formular wurde schon gesendet" in response.text) == language.startswith("de")


# Templates of the project.


def loaded(*loaders):
    processors = ["django.template.context_processors.request"]
    backend = "django.template.backends.django.DjangoTemplates"
    return {"BACKEND": backend, "OPTIONS": {"loaders": loaders, "context_processors": processors}}


WITHOUT_APP_DIRS = loaded("django.template.loaders.filesystem.Loader")


@pytest.mark.parametrize("templates", [[WITHOUT_APP_DIRS], []], ids=["without APP_DIRS", "none"])
def test_R89_without_the_page_a_browser_gets_problem_details(refused, settings, templates):
    settings.TEMPLATES = templates

    assert refused().headers["Content-Type"] == "application/problem+json"


def test_R89_a_project_may_have_a_page_of_its_own_whose_errors_are_its_own(refused, settings):
    def use(source):
        loader = ("django.template.loaders.locmem.Loader", {PAGE: source})
        settings.TEMPLATES = [loaded(loader)]

    use("Ours: {{ problem.code }}")
    assert refused().content == b"Ours: idempotency_key_reused"

    use('{% extends "nowhere.html" %}')
    with pytest.raises(TemplateDoesNotExist, match=r"nowhere\.html"):
        refused()
