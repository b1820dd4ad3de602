"""One URL: the view of the variant."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.urls import path

from benchmarks.site import views

_name = settings.VARIANT.view  # type: ignore[misc]
_view: Any = getattr(views, _name, None) or views.ours(_name)

urlpatterns = [path("payments/", _view.as_view() if hasattr(_view, "as_view") else _view)]
