"""
A project that one release writes records in, and a later one reads them: ``write`` and ``again``.

The files beside this one are what ``write`` left with commit d45398d, the first build: dumps of an
SQLite and of a PostgreSQL database, the hashes of Redis, the items of DynamoDB. It runs by itself,
with the package of its time on PYTHONPATH, so it uses public names alone. STORE is the entry of
IDEMPOTENCY, DATABASE that of DATABASES, as JSON.
"""

from __future__ import annotations

import json
import os
import sys

import django
from django.conf import settings
from django.http import JsonResponse
from django.urls import path

NOTE = "\u00c6r\u00f8 \u2013 10 \u20ac" * 200
YEARS = 90 * 365 * 24 * 3600

settings.configure(
    SECRET_KEY="upgrade",
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["testserver"],
    INSTALLED_APPS=["django_idempotency"],
    USE_TZ=True,
    DEFAULT_AUTO_FIELD="django.db.models.AutoField",
    DATABASES={"default": json.loads(os.environ["DATABASE"])},
    IDEMPOTENCY={
        "default": {
            **json.loads(os.environ["STORE"]),
            "RETENTION": YEARS,
            "HTTP": {"SCOPE": "django_idempotency.http.scopes.anyone"},
        }
    },
)
django.setup()

from django.core.management import call_command  # noqa: E402
from django.test import Client  # noqa: E402

import django_idempotency as idempotency  # noqa: E402
from django_idempotency.http import idempotent  # noqa: E402

#: What has run in this process.
runs = []


@idempotent(required=True)
def pay(request):
    runs.append("pay")
    if "refuse" in request.GET and os.environ.get("REFUSE"):
        raise ConnectionError("the gateway is down")
    response = JsonResponse({"payment": 17, "note": NOTE}, status=201)
    response["Location"] = "/payments/17"
    response.set_cookie("cart", "empty")
    return response


urlpatterns = [path("pay/", pay)]


def post(key, amount="10.50", query=""):
    """Send a payment."""
    body = json.dumps({"amount": amount, "currency": "EUR"})
    client = Client(raise_request_exception=False)
    headers = {"Idempotency-Key": key}
    return client.post(f"/pay/{query}", body, content_type="application/json", headers=headers)


def charge(lease):
    """Do the work of a call."""
    runs.append("charge")
    return {"charge": len(runs), "fence": lease.fencing_token > 0}


def call(key, work=charge, **policy):
    """Make a call."""
    arguments = {"scope": "billing", "operation": "charge", "payload": {"order": 17}}
    return idempotency.run(work, key=key, **arguments, **policy)


def write():
    """Leave a record of each state, and end in the middle of an attempt."""
    os.environ["REFUSE"] = "yes"
    assert post("paid").status_code == 201
    assert post("failed", query="?refuse").status_code == 500
    assert call("called").result["charge"] == 3
    call("died", lambda lease: os._exit(0), lease=0.1)


def again():
    """Repeat what was asked of the release that wrote the records, and see what they answer."""
    paid, other = post("paid"), post("paid", amount="11.50")
    assert (paid.status_code, paid.headers["Location"]) == (201, "/payments/17")
    assert paid.json() == {"payment": 17, "note": NOTE}
    assert paid.headers["Idempotency-Replayed"] == "true"
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")
    called = call("called")
    assert (called.replayed, called.result) == (True, {"charge": 3, "fence": True})
    assert runs == []

    assert post("failed", query="?refuse").status_code == 201
    died = call("died")
    assert (died.replayed, runs) == (False, ["pay", "charge"])
    assert post("failed", query="?refuse").headers["Idempotency-Replayed"] == "true"
    assert (call("died").replayed, len(runs)) == (True, 2)


if __name__ == "__main__":
    if os.environ.get("MIGRATE"):
        call_command("migrate", verbosity=0)
    {"write": write, "again": again}[sys.argv[1]]()
    print("ok")
