"""The shop as a Django app."""

from __future__ import annotations

from django.apps import AppConfig


class ShopConfig(AppConfig):
    name = "example_project.shop"
    verbose_name = "Payments shop"
