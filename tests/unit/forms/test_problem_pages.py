"""R89: problems as pages for browsers, and as problem details for everybody else."""

from __future__ import annotations

import re

import pytest
from django.http import HttpResponse
from django.template import TemplateDoesNotExist
from django.template.loader import render_to_string
from django.utils import translation

from django_idempotency import FingerprintMismatch, InProgress, InvalidKey
from django_idempotency.exceptions.refusals import REFUSALS
from django_idempotency.http import problems
from django_idempotency.policy import HTTPPolicy

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/webp,*/*;q=0.8"
PAGE = "django_idempotency/problem.html"
OFFERS_FORM = {
    "idempotency_key_missing",
    "idempotency_key_invalid",
    "idempotency_key_reused",
    "scope_missing",
}
HTML, JSON = "text/html; charset=utf-8", "application/problem+json"


@pytest.fixture
def told(rf):
    """``told(error)``: what a browser is told of it."""

    def told(error=None, accept=BROWSER, path="/") -> HttpResponse:
        request = rf.post(path, headers={"Accept": accept})
        return problems.problem_response(error or FingerprintMismatch(), request, HTTPPolicy())

    return told


def test_R89_R31_R49_a_browser_gets_a_page(told):
    titles = {
        InProgress(): "Your first click is still being processed",
        FingerprintMismatch(): "This form was already sent",
    }
    for error, title in titles.items():
        response = told(error)

        assert ("Retry-After" in response.headers) == (response.status_code == 409)
        assert response.headers["Content-Type"] == HTML
        assert response.headers["Cache-Control"] == "no-store"
        for part in (f"<h1>{title}</h1>", f"<title>{title}</title>", '<html lang="en-us">'):
            assert part in response.text


def test_R89_who_prefers_html_gets_a_page_and_everybody_else_problem_details(told):
    prefers = {
        "text/html;q=0.9, application/json;q=0.5": HTML,
        "*/*": JSON,
        "application/problem+json": JSON,
        "application/json, text/html;q=0.5": JSON,
    }
    assert {accept: told(accept=accept).headers["Content-Type"] for accept in prefers} == prefers


@pytest.mark.parametrize("language", ["en", "de"])
def test_R89_a_page_has_no_jargon(language):
    jargon = re.compile(r"idempoten|key|schlüssel|request|anfrage|\blease|caller|store")
    for problem in REFUSALS:
        with translation.override(language):
            page = render_to_string(PAGE, {"problem": vars(problem)})

        text = re.sub(r"<style>.*?</style>|<[^>]+>", " ", page).lower()
        assert not jargon.search(text), problem.code
        assert re.search(r"<h1>(.+)</h1>\s*<p>(.+)</p>", page), problem.code


@pytest.mark.parametrize("code", [problem.code for problem in REFUSALS])
def test_R89_a_page_offers_the_form_where_it_may_be_sent_again(code):
    page = render_to_string(PAGE, {"problem": {"code": code}})

    assert ("Open the form again</a>" in page) == (code in OFFERS_FORM)


def test_R80_the_page_escapes_and_links_to_no_other_host(told, settings):
    settings.DEBUG = True  # in which the page has the reason, too

    page = told(InvalidKey("Not of ours: <script>alert(1)</script>{{7*7}}")).text

    assert "<script>" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;{{7*7}}" in page
    # As a catch-all in the URLconf lets it through.
    assert "evil" not in told(path="//evil.example/form/").text


@pytest.mark.parametrize(("language", "said"), [("de-at", "de-at"), ("ar", None)])
def test_R89_R78_the_page_says_which_language_it_is_in(told, settings, language, said):
    """Nobody has translated it into Arabic: it is in English, and says nothing else."""
    settings.USE_I18N = True
    with translation.override(language):
        response = told()

    assert response.headers.get("Content-Language") == said
    assert f'<html lang="{said or "en"}">' in response.text
    assert ("Dieses Formular wurde schon gesendet" in response.text) == bool(said)


# Templates of the project.


def loaded(*loaders):
    processors = ["django.template.context_processors.request"]
    backend = "django.template.backends.django.DjangoTemplates"
    return {"BACKEND": backend, "OPTIONS": {"loaders": loaders, "context_processors": processors}}


def test_R89_without_the_page_a_browser_gets_problem_details(told, settings):
    for templates in ([loaded("django.template.loaders.filesystem.Loader")], []):
        settings.TEMPLATES = templates

        assert told().headers["Content-Type"] == JSON


def test_R89_a_project_may_have_a_page_of_its_own_whose_errors_are_its_own(told, settings):
    def use(source):
        loader = ("django.template.loaders.locmem.Loader", {PAGE: source})
        settings.TEMPLATES = [loaded(loader)]

    use("Ours: {{ problem.code }}")
    assert told().content == b"Ours: idempotency_key_reused"

    use('{% extends "nowhere.html" %}')
    with pytest.raises(TemplateDoesNotExist, match=r"nowhere\.html"):
        told()
