"""One URL: the view of the variant."""

from __future__ import annotations

from django.conf import settings
from django.urls import path

from benchmarks.site import views

_view = getattr(views, settings.VARIANT.view, None) or views.ours(settings.VARIANT.view)

urlpatterns = [path("payments/", _view.as_view() if isinstance(_view, type) else _view)]
