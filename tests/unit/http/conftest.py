"""Fixtures of the HTTP rules: policies, transaction modes, views mounted for one test."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any
from uuid import uuid4

import pytest
from django.db import connections
from django.db.models.signals import post_save
from django.urls import path

from django_idempotency.claims import ClaimRequest
from django_idempotency.conf import store_for
from django_idempotency.leases import Lease
from django_idempotency.models import IdempotencyRecord
from tests.app import urls as app_urls
from tests.app.models import Effect
from tests.unit.http.api import Api
from tests.unit.http.views import ANYONE

#: Changes the policy of the default alias: ``policy(LEASE=5, HTTP={"REQUIRED": True})``.
SetPolicy = Callable[..., None]
#: Mounts a view class: ``mount(View)`` is its path, ``mount(View, "<int:pk>/")`` a pattern.
Mount = Callable[..., str]
#: Turns the one record into one in progress, with the same fingerprint.
InProgress = Callable[..., Lease]


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
def runs() -> Iterator[list[str]]:
    """The name of each Effect that work has written, whether it was rolled back or not."""
    written: list[str] = []

    def note(instance: Effect, **kwargs: Any) -> None:
        written.append(instance.name)

    post_save.connect(note, sender=Effect)
    yield written
    post_save.disconnect(note, sender=Effect)


@pytest.fixture
def policy(settings: Any) -> SetPolicy:
    configured: dict[str, dict[str, Any]] = {
        "default": {"HTTP": {}},
        "memory": {"BACKEND": "django_idempotency.stores.memory.MemoryStore"},
    }

    def change(**fields: Any) -> None:
        http = {**configured["default"]["HTTP"], **fields.pop("HTTP", {})}
        configured["default"] = {**configured["default"], **fields, "HTTP": http}
        settings.IDEMPOTENCY = dict(configured)

    change()
    return change


@pytest.fixture
def anyone(policy: SetPolicy) -> None:
    """All keys have one scope."""
    policy(HTTP={"SCOPE": ANYONE})


@pytest.fixture
def store_is_down(policy: SetPolicy, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The database of the store is not there, in any thread; the project's own is."""
    gone = f"{connections['other'].settings_dict['NAME']}/gone"
    connections["other"].close()
    with monkeypatch.context() as patch:
        for entry in (connections["other"].settings_dict, connections.settings["other"]):
            patch.setitem(entry, "NAME", gone)
        policy(OPTIONS={"using": "other"})
        yield
    connections["other"].close()


@pytest.fixture(params=["single", "joined", "separate"])
def mode(request: pytest.FixtureRequest, policy: SetPolicy) -> str:
    """Each way to commit."""
    policy(TRANSACTION=request.param)
    return str(request.param)


@pytest.fixture(params=[False, True], ids=["autocommit", "atomic_requests"])
def atomic_requests(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """ATOMIC_REQUESTS off and on, on the default database."""
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", request.param)
    return bool(request.param)


@pytest.fixture
def atomic(monkeypatch: pytest.MonkeyPatch) -> None:
    """ATOMIC_REQUESTS is on, on the default database."""
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)


@pytest.fixture
def mount(settings: Any) -> Iterator[Mount]:
    module = ModuleType(f"tests.unit.http.mounted_{uuid4().hex}")
    module.urlpatterns = [*app_urls.urlpatterns]  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module

    def add(view: Any, pattern: str = "", name: str | None = None, **extra: Any) -> str:
        prefix = f"mounted-{len(module.urlpatterns)}/"
        view = view.as_view() if hasattr(view, "as_view") else view
        module.urlpatterns.append(path(prefix + pattern, view, extra, name=name))
        settings.ROOT_URLCONF = module.__name__
        return f"/{prefix}"

    yield add
    del sys.modules[module.__name__]


@pytest.fixture
def in_progress(db: None) -> InProgress:
    """
    Put an attempt in progress in the place of the one record there is.

    It asks for the same thing under the same key, and is claimed through the store.
    """

    def claim(**request: Any) -> Lease:
        record = IdempotencyRecord.objects.get()
        fingerprint = bytes(record.fingerprint)
        IdempotencyRecord.objects.all().delete()
        claimed = store_for("default").claim(
            ClaimRequest(
                record.pk,
                record.scope,
                record.key,
                record.operation,
                **{"fingerprints": (fingerprint,), "transaction": "joined", **request},
            )
        )
        assert isinstance(claimed, Lease)
        return claimed

    return claim
