"""The project that the examples of the documentation belong to."""

from __future__ import annotations

import inspect
import re
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from celery import _state
from django.conf import settings as django_settings
from django.contrib.auth.models import User
from django.test import Client
from rest_framework import serializers
from rest_framework.test import APIRequestFactory, force_authenticate

from tests.app.models import Event, Order, Payment, Row, Subscriber
from tests.pages import ROOT, blocks_of


class Gateway:
    """A payment provider that knows keys: the second call gets the first one's answer."""

    def __init__(self):
        self.charges: dict[str, dict[str, Any]] = {}
        self.charged = 0
        self.voided: list[str] = []

    def charge(self, amount, *, idempotency_key):
        if idempotency_key not in self.charges:
            self.charged += amount
            answer = {"id": f"ch_{len(self.charges)}", "amount": amount, "status": "paid"}
            self.charges[idempotency_key] = answer
        return self.charges[idempotency_key]

    def void(self, charge, *, idempotency_key):
        self.voided.append(charge)
        return {"id": charge, "status": "void"}


class Bank:
    """A bank that knows no keys, and finds a transfer by its reference."""

    def __init__(self):
        self.transfers: list[dict[str, Any]] = []
        self.cancelled: set[str] = set()

    def send(self, iban, amount, *, reference):
        if reference in self.cancelled:
            raise ValueError("this reference is cancelled")
        transfer = {"iban": iban, "amount": amount, "reference": reference, "status": "sent"}
        self.transfers.append(transfer)
        return transfer

    def find(self, *, reference):
        found = [each for each in self.transfers if each["reference"] == reference]
        return found[0] if found else None

    def cancel(self, reference):
        if found := self.find(reference=reference):
            return found
        self.cancelled.add(reference)
        return {"status": "cancelled"}


class Carrier:
    """A carrier that cannot be asked, and prints a label for each call."""

    def __init__(self):
        self.labels: list[Any] = []

    def print_label(self, order):
        self.labels.append(order)
        return {"id": f"L-{len(self.labels)}"}


class PaymentSerializer(serializers.ModelSerializer[Payment]):
    class Meta:
        model = Payment
        fields = ["id", "amount", "reference", "captured"]


@pytest.fixture
def run_page(transactional_db, settings, monkeypatch):
    """`run_page("docs/quickstart.md")`: run its examples in order, and return their names."""
    settings.IDEMPOTENCY = {"default": {}}
    # What a page makes a shared task is none for the apps of other tests.
    shared = set(_state._on_app_finalizers)
    monkeypatch.setattr(_state, "_on_app_finalizers", set(shared))

    def forget_tasks():
        _state._on_app_finalizers.intersection_update(shared)
        for app in list(_state._get_active_apps()):
            for task in [task for task in app.tasks if task.startswith("shop.")]:
                app.tasks.unregister(task)

    def add_module(name, **names):
        module = ModuleType(name)
        vars(module).update(names)
        monkeypatch.setitem(sys.modules, name, module)
        parent, _, child = name.rpartition(".")
        if parent:  # Python 3.10 patches a name by the attributes that lead to it
            monkeypatch.setattr(sys.modules[parent], child, module, raising=False)
        return module

    add_module("shop")
    models = (Event, Order, Payment, Row, Subscriber)
    add_module("shop.models", **{model.__name__: model for model in models})
    add_module("shop.serializers", PaymentSerializer=PaymentSerializer)

    templates = {}

    def run(name):
        forget_tasks()  # those of another page, or of this one before
        others = {"gateway": Gateway(), "bank": Bank(), "carrier": Carrier()}
        module = add_module("shop.page", **others)
        for block in blocks_of(ROOT / name):
            if block.language == "html+django":
                own = re.fullmatch(r"template=(\S+)", block.marker)
                assert own, f"{name}:{block.line}: which template is it?"
                templates[own[1]] = block.text
        settings.TEMPLATES = with_templates(templates)
        for block in blocks_of(ROOT / name):
            elsewhere = block.marker == "settings" or block.marker.startswith("deployment=")
            if block.language == "python" and not elsewhere:
                own = re.fullmatch(r"module=(\S+)", block.marker)
                assert own or not block.marker, f"{name}:{block.line}: what is {block.marker}?"
                _run(block, vars(add_module(own[1]) if own else module))
        settings.ROOT_URLCONF = "shop.page"
        return SimpleNamespace(**vars(module))

    return run


def with_templates(texts):
    """Return TEMPLATES of a project that has these templates, which are searched first."""
    [engine] = django_settings.TEMPLATES
    first = ("django.template.loaders.locmem.Loader", texts)
    loaders = [first, "django.template.loaders.app_directories.Loader"]
    rest = {name: value for name, value in engine.items() if name != "APP_DIRS"}
    return [{**rest, "OPTIONS": {**engine["OPTIONS"], "loaders": loaders}}]


def _run(block, names):
    code = block.compiled()
    if code.co_flags & inspect.CO_COROUTINE:

        async def main():
            await eval(code, names)

        async_to_sync(main)()
    else:
        exec(code, names)


@pytest.fixture
def alice(transactional_db):
    return User.objects.create(username="alice")


@pytest.fixture
def post(alice):
    """Post to a view, or to an action of a ViewSet, as alice and with a key."""

    def post(view, payload, *, key="key-1", user=alice, **fields):
        headers = {"Idempotency-Key": key, **{k.replace("_", "-"): v for k, v in fields.items()}}
        request = APIRequestFactory().post("/", payload, format="json", headers=headers)
        force_authenticate(request, user)
        return view.as_view({"post": "create"})(request)

    return post


@pytest.fixture
def client(alice):
    client = Client()
    client.force_login(alice)
    return client
