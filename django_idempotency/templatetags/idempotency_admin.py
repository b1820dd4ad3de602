"""The filter that the pages of the admin use."""

from __future__ import annotations

from django import template
from django.utils.formats import number_format

register = template.Library()


@register.filter
def grouped(number: int) -> str:
    """Return a number with the thousands separators of the language, whatever the settings say."""
    return number_format(number, use_l10n=True, force_grouping=True)
