"""The shop's URLs, and the admin's style sheets, which a server without DEBUG leaves to others."""

from __future__ import annotations

from django.contrib.staticfiles.views import serve
from django.urls import re_path

from example_project.urls import urlpatterns as shop_urls

urlpatterns = [*shop_urls, re_path(r"^static/(?P<path>.*)$", serve, {"insecure": True})]
