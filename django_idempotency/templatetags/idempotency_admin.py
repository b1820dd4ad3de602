"""The filter that the pages of the admin use."""

from __future__ import annotations

from django import template
from django.contrib.humanize.templatetags.humanize import intcomma

register = template.Library()
# Thousands are separated as in the language, whatever the settings say, and without its app.
register.filter("grouped", intcomma)
