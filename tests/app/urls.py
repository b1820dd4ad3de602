"""URLs of the tests."""

from __future__ import annotations

from django.contrib import admin
from django.urls import URLPattern, URLResolver, include, path
from rest_framework.routers import SimpleRouter

from tests.app import views

router = SimpleRouter()
router.register("set", views.EffectViewSet)

urlpatterns: list[URLPattern | URLResolver] = [
    path("effects/", views.EffectView.as_view(), name="effects"),
    path("effects/<int:pk>/", views.EffectView.as_view(), name="effect"),
    path("optional/", views.OptionalView.as_view(), name="optional"),
    path("admin/", admin.site.urls),
    path("", include(router.urls)),
]
