"""The admin of a project whose databases have no table of records."""

from __future__ import annotations

import uuid

import pytest

from django_idempotency.models import IdempotencyRecord

pytestmark = pytest.mark.django_db

LIST = "/admin/django_idempotency/idempotencyrecord/"


class NoTable:
    """A router of a project that keeps no records in its databases."""

    def db_for_read(self, model, **hints):
        return "nowhere" if model is IdempotencyRecord else None


def test_no_page_reads_the_model_of_a_project_without_its_table(admin_client, settings):
    settings.IDEMPOTENCY = {"default": {"BACKEND": "django_idempotency.stores.memory.MemoryStore"}}
    settings.DATABASE_ROUTERS = [NoTable()]
    url = f"{LIST}{uuid.UUID(int=1)}"
    for page_of_it in ("", "store/default/overview/", f"{uuid.UUID(int=1)}/change/"):
        assert admin_client.get(LIST + page_of_it, follow=True).status_code == 200
    for page_of_django in ("history", "delete"):
        assert admin_client.get(f"{url}/{page_of_django}/").status_code == 404
