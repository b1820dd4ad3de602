"""R89: problems as pages for browsers, and as problem details for everybody else."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.template import TemplateDoesNotExist
from django.template.loader import render_to_string
from django.test import RequestFactory
from django.utils import translation

from django_idempotency import InvalidKey
from django_idempotency.http import problems
from tests.unit.forms.conftest import Visitor
from tests.unit.http.conftest import InProgress, SetPolicy

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.unit.forms.urls")]

PROBLEMS = {
    problem.code: problem
    for problem in vars(problems).values()
    if isinstance(problem, problems.Problem)
}
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/webp,*/*;q=0.8"


@pytest.fixture
def alice(visitor: Visitor) -> Visitor:
    visitor.client.force_login(User.objects.create(username="alice"))
    return visitor


@pytest.fixture
def refused(request: pytest.FixtureRequest, alice: Visitor, in_progress: InProgress) -> Any:
    """``refused(Accept=…)``: submit a form that gets 422, or the status of the parameter."""
    status = getattr(request, "param", 422)
    fields = {**alice.page(), "item": "tea"}
    alice.submit(fields)
    if status == 409:
        in_progress()
    else:
        fields["item"] = "coffee"

    def submit(**headers: str) -> Any:
        response = alice.submit(fields, Prefer="wait=0", **headers)
        assert response.status_code == status
        return response

    return submit


both = pytest.mark.parametrize("refused", [409, 422], indirect=True)


@both
@pytest.mark.parametrize("accept", [BROWSER, "text/html;q=0.9, application/json;q=0.5"])
def test_R89_R31_R39_R49_a_browser_gets_a_page(refused: Any, accept: str) -> None:
    response = refused(Accept=accept)

    assert ("Retry-After" in response.headers) == (response.status_code == 409)
    assert response.headers["Content-Type"] == "text/html; charset=utf-8"
    assert "django_idempotency/problem.html" in [template.name for template in response.templates]
    titles = {
        409: "Your first click is still being processed",
        422: "This form was already sent",
    }
    page = response.content.decode()
    assert "tea" not in page
    assert "coffee" not in page
    assert response.headers["Cache-Control"] == "no-store"
    assert "Idempotency-Replayed" not in response.headers
    assert f"<h1>{titles[response.status_code]}</h1>" in page
    assert f"<title>{titles[response.status_code]}</title>" in page
    assert '<html lang="en-us">' in page


@pytest.mark.parametrize("language", ["en", "de"])
def test_R89_a_page_has_no_jargon(settings: Any, language: str) -> None:
    settings.LANGUAGE_CODE = language
    jargon = re.compile(r"idempoten|key|schlüssel|request|anfrage|\blease|caller|store")
    for code, problem in PROBLEMS.items():
        with translation.override(language):
            members = {**vars(problem), "title": problem.title}
            page = render_to_string("django_idempotency/problem.html", {"problem": members})

        text = re.sub(r"<style>.*?</style>|<[^>]+>", " ", page).lower()
        assert not jargon.search(text), code
        assert re.search(r"<h1>(.+)</h1>\s*<p>(.+)</p>", page), code


@pytest.mark.parametrize(
    "accept",
    ["*/*", "application/json", "application/problem+json", "application/json, text/html;q=0.5"],
)
def test_R89_everybody_else_gets_problem_details(refused: Any, accept: str) -> None:
    response = refused(Accept=accept)

    assert response.headers["Content-Type"] == "application/problem+json"
    assert json.loads(response.content)["status"] == response.status_code


def test_R89_R80_the_page_escapes(alice: Visitor, policy: SetPolicy, settings: Any) -> None:
    settings.DEBUG = True  # in which the page has the reason, too

    def refuse(key: str) -> None:
        raise InvalidKey(f"Not a key of ours: {key}")

    policy(HTTP={"KEY_VALIDATOR": refuse})

    response = alice.submit(
        {**alice.page(), "idempotency_key": "<script>alert(1)</script>{{7*7}}", "item": "tea"}
    )

    page = response.content.decode()
    assert response.status_code == 400
    assert "<script>" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;{{7*7}}" in page


def test_R80_the_page_links_to_no_other_host(rf: RequestFactory) -> None:
    request = rf.post("/")
    request.path = "//evil.example/form/"  # as a catch-all in the URLconf lets it through

    members = vars(PROBLEMS["idempotency_key_reused"])
    page = render_to_string("django_idempotency/problem.html", {"problem": members}, request)

    assert "evil" not in page


@pytest.mark.parametrize(
    ("language", "said"), [("de", "de"), ("de-at", "de-at"), ("en-gb", "en-gb"), ("ar", None)]
)
def test_R89_R78_the_page_says_which_language_it_is_in(
    refused: Any, settings: Any, language: str, said: str | None
) -> None:
    """Nobody has translated it into Arabic: it is in English, and says nothing else."""
    settings.LANGUAGE_CODE = language
    settings.USE_I18N = True

    response = refused()

    assert response.headers.get("Content-Language") == said
    page = response.content.decode()
    assert f'<html lang="{said or "en"}">' in page
    assert ("Dieses Formular wurde schon gesendet" in page) == language.startswith("de")


def _loaded(*loaders: Any) -> dict[str, Any]:
    return {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "OPTIONS": {
            "loaders": list(loaders),
            "context_processors": ["django.template.context_processors.request"],
        },
    }


@pytest.mark.parametrize(
    "templates",
    [[_loaded("django.template.loaders.filesystem.Loader")], []],
    ids=["without APP_DIRS", "none"],
)
def test_R89_without_the_page_a_browser_gets_problem_details(
    refused: Any, settings: Any, templates: Any
) -> None:
    settings.TEMPLATES = templates

    response = refused(Accept=BROWSER)

    assert response.headers["Content-Type"] == "application/problem+json"
    assert json.loads(response.content)["status"] == response.status_code


def test_R89_a_page_of_the_project_that_cannot_be_rendered_is_its_error(
    refused: Any, settings: Any
) -> None:
    broken = {"django_idempotency/problem.html": '{% extends "nowhere.html" %}'}
    settings.TEMPLATES = [_loaded(("django.template.loaders.locmem.Loader", broken))]

    with pytest.raises(TemplateDoesNotExist, match=r"nowhere\.html"):
        refused(Accept=BROWSER)


def test_R89_a_project_may_have_a_page_of_its_own(
    refused: Any, settings: Any, tmp_path: Any
) -> None:
    (tmp_path / "django_idempotency").mkdir()
    (tmp_path / "django_idempotency" / "problem.html").write_text("Ours: {{ problem.code }}")
    settings.TEMPLATES = [{**settings.TEMPLATES[0], "DIRS": [tmp_path]}]

    assert refused().content == b"Ours: idempotency_key_reused"
