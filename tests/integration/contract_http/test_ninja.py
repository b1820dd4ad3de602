"""Every rule that operations of django-ninja can show, functions and coroutines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import pytest
from django.test import override_settings

from django_idempotency.testing.http_contract import Call
from tests.app.contract import declared
from tests.app.contract.in_process import in_process
from tests.app.models import Effect

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.leg("postgres18")]
URLS = override_settings(ROOT_URLCONF="tests.app.contract.ninja")


class TestFunctions(declared.Views):
    other_media_type = None  # type: ignore[assignment]
    leaves_out: ClassVar[Mapping[str, str]] = {
        "R17": "tests/unit/ninja: the middleware, and several guards",
        "R18": "about other kinds of views",
        "R21": "tests/unit/ninja: these operations are for users",
        "R33": "the view of the contract is of Django REST framework",
        "test_R43_raw_uploads_are_compared_byte_by_byte": "ninja reads what it has a parameter for",
    }

    @pytest.fixture(autouse=True)
    def _transport(self, tmp_path: Path) -> Iterator[None]:
        self.directory = tmp_path
        with in_process(tmp_path, "wsgi") as self.transport, URLS:
            yield

    def effects(self, tag: str) -> int:
        return Effect.objects.filter(name=tag.replace("%20", " ")).count()

    def open_methods(self, tag: str) -> Sequence[Call]:
        others = self.to("/only-post/", tag)
        return [others.but(method=method) for method in ("PUT", "PATCH", "DELETE")]

    def unread(self, tag: str) -> Mapping[int, Call]:
        call = self.create(tag)
        return {
            404: call.but(path="/nowhere/"),
            405: call.but(path="/read-only/"),
            422: call.but(body={"then": 5}),
            400: call.but(body=b"{"),
        }


class TestCoroutines(declared.Coroutines):
    leaves_out = {}

    @pytest.fixture(autouse=True)
    def _transport(self, tmp_path: Path) -> Iterator[None]:
        self.directory = tmp_path
        with in_process(tmp_path, "asgi") as self.transport, URLS:
            yield

    def effects(self, tag: str) -> int:
        return Effect.objects.filter(name=tag).count()
