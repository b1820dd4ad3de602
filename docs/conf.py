"""Sphinx configuration. Nothing is fetched unless DOCS_INTERSPHINX is set."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import django
from django.conf import settings

import django_idempotency

sys.path.insert(0, str(Path(__file__).parent))
import pagelist

settings.configure(
    INSTALLED_APPS=[
        "django.contrib.auth",
        "django.contrib.contenttypes",
        "rest_framework",
        "django_idempotency",
    ]
)
django.setup()

project = "django-idempotency"
author = "the django-idempotency contributors"
copyright = author
version = release = django_idempotency.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
if os.environ.get("DOCS_INTERSPHINX"):
    extensions.append("sphinx.ext.intersphinx")
    intersphinx_mapping = {
        "python": ("https://docs.python.org/3", None),
        "django": ("https://docs.djangoproject.com/en/stable/", None),
    }

# A name of ours that leads nowhere is an error; those of others are looked up by intersphinx alone.
nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(?!django_idempotency\.).*")]

exclude_patterns = ["_build", "discussion/comparison-*table.md"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 88

html_theme = "furo"
pygments_dark_style = "github-dark"
html_title = f"{project} {release}"
html_static_path = ["_static"]
html_css_files = ["tables.css"]
html_copy_source = False
html_show_sourcelink = False


def _without_rule_numbers(app, what, name, obj, options, lines):
    """Docstrings name rules of the design, (R42), which are nothing to readers of these pages."""
    lines[:] = [re.sub(r" \((R\d+[, to]*)+\)", "", line) for line in lines]


def _of_an_annotation(app, env, node, contnode):
    """A type in a signature need not have a place on these pages; a name in a text must."""
    in_text = "refwarn" in node
    return None if in_text or node.get("refdomain") != "py" else contnode


def _with_the_list(app, docname, source):
    if docname == "pages":
        source[0] = pagelist.with_list(source[0], minutes=True)


def setup(app):
    app.connect("missing-reference", _of_an_annotation)
    app.connect("source-read", _with_the_list)
    app.connect("env-get-outdated", lambda *_: ["pages"])  # it says how long the others are
    app.connect("autodoc-process-docstring", _without_rule_numbers)
