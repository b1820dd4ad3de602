"""Keys for the forms of Django REST framework's browsable API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.apps import apps
from django.utils.translation import gettext as _
from rest_framework.renderers import BrowsableAPIRenderer
from rest_framework.request import Request

from django_idempotency.http.plans import ViewPlan
from django_idempotency.policy import HTTPPolicy

_TEMPLATE = "django_idempotency/browsable_api.html"


def give_keys(
    renderer: BrowsableAPIRenderer, plan_for: Callable[[str], tuple[ViewPlan, bool]]
) -> None:
    """
    Have the forms of one page send a key each, in the header field (R35).

    The page extends the renderer's own template and has a script send the key: the forms need
    scripts anyway, and a header field leaves bodies, fingerprints and serializers as they are.
    `plan_for` gives the plan of a method, and whether it is guarded.
    """
    if not apps.is_installed("django_idempotency"):  # template and script are the app's
        return
    template, get_context = renderer.template, renderer.get_context

    def with_keys(data: Any, accepted_media_type: Any, renderer_context: Any) -> dict[str, Any]:
        context: dict[str, Any] = get_context(data, accepted_media_type, renderer_context)
        found = {}
        for method in context["allowed_methods"]:
            plan, is_guarded = plan_for(method)
            http = plan.http_policy
            if is_guarded and _takes_a_key(http, renderer_context["request"]):
                found[method] = {"header": http.header, "key": f'"{http.new_key()}"'}
        again = _("No answer came. Send the form again: nothing will be done twice.")
        forms = {"keys": found, "unanswered": again} if found else None
        return {**context, "idempotency_template": template, "idempotency_forms": forms}

    renderer.template = _TEMPLATE
    renderer.get_context = with_keys  # type: ignore[method-assign]


def _takes_a_key(http: HTTPPolicy, request: Request) -> bool:
    """Whether to send a key: always if it is required, else only if nothing can refuse it."""
    if http.required:
        return True
    known = getattr(request.user, "pk", None) is not None
    return known and http.scope is None and not callable(http.key_validator)
