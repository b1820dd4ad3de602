"""Where the shop's pages and endpoints are."""

from __future__ import annotations

from django.apps import apps
from django.contrib import admin
from django.contrib.staticfiles.urls import staticfiles_urlpatterns
from django.urls import include, path
from drf_spectacular.views import SpectacularAPIView
from rest_framework.routers import DefaultRouter

from example_project.reference import reference_page
from example_project.shop.checkout import checkout, order_page
from example_project.shop.purchases import PurchaseView
from example_project.shop.quotes import create_quote
from example_project.shop.views import (
    AccountViewSet,
    OrderViewSet,
    PaymentViewSet,
    TransferViewSet,
)
from example_project.shop.webhooks import payment_received
from example_project.start import start_page

router = DefaultRouter()
router.register("accounts", AccountViewSet, basename="account")
router.register("transfers", TransferViewSet, basename="transfer")
router.register("orders", OrderViewSet, basename="api-order")
router.register("payments", PaymentViewSet, basename="payment")

urlpatterns = [
    path("", start_page, name="start"),
    path("checkout/", checkout, name="checkout"),
    path("orders/<uuid:pk>/", order_page, name="order"),
    path("quotes/", create_quote, name="quotes"),
    path("webhooks/<slug:provider>/", payment_received, name="webhook"),
    path("api/schema/", SpectacularAPIView.as_view(), name="schema"),
    path("api/docs/", reference_page, name="docs"),
    path("api/purchases/", PurchaseView.as_view(), name="purchases"),
    path("api/", include(router.urls)),
    path("api-auth/", include("rest_framework.urls")),
    path("admin/", admin.site.urls),
]
# With DEBUG, gunicorn serves the admin's style sheets, too.
urlpatterns += staticfiles_urlpatterns()

if apps.is_installed("django_idempotency.contrib.prometheus"):
    from example_project.metrics import metrics_page

    urlpatterns.append(path("metrics/", metrics_page))
