"""The shop's URLs, and a view whose call to a carrier is answered by nobody."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import include, path
from django.views.decorators.csrf import csrf_exempt

from django_idempotency.http import idempotent


def _time_out(key: str) -> dict[str, str]:
    raise TimeoutError("The carrier has not answered.")


@csrf_exempt
@idempotent(transaction="steps", scope="django_idempotency.http.scopes.anyone")
def label(request: HttpRequest) -> HttpResponse:
    """Print a label at a carrier that knows no keys and has no look-up."""
    lease = request.idempotency  # type: ignore[attr-defined]
    order = lease.step("order", lambda: {"id": 17})
    printed = lease.external("label", _time_out, uncertain="refuse")
    return JsonResponse({"order": order["id"], "label": printed["id"]}, status=201)


urlpatterns = [path("labels/", label, name="label"), path("", include("example_project.demo.urls"))]
