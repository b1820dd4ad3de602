"""The template tag that puts an idempotency key into a form (R89)."""

from __future__ import annotations

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString

from django_idempotency.conf import DEFAULT_ALIAS, http_policy_for
from django_idempotency.http.scopes import session_token

register = template.Library()


@register.simple_tag(takes_context=True)
def idempotency_key(context: template.Context, store: str = DEFAULT_ALIAS) -> SafeString:
    """
    Return a hidden field with a new key: each page that shows the form is one submission.

    A visitor's session gets its name here, not with the first click: two clicks at once must be
    of one.
    """
    request = context.get("request") or getattr(context, "request", None)
    session = getattr(request, "session", None)
    user = getattr(request, "user", None)
    if session is not None and getattr(user, "pk", None) is None:
        session_token(session)
    http = http_policy_for(store)
    field = '<input type="hidden" name="{}" value="{}">'
    return format_html(field, http.form_field, http.new_key())
