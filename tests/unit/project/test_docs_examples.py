"""The examples of the documentation run, and do what the pages say."""

from __future__ import annotations

import hashlib
import hmac
import inspect
import json
import re
import sys
import time
import unittest
from contextlib import nullcontext
from datetime import timedelta
from itertools import product
from types import ModuleType, SimpleNamespace
from urllib.error import HTTPError

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.core import checks
from django.core.exceptions import BadRequest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.management import call_command
from django.db import connections
from django.http import Http404
from django.test import Client, override_settings
from django.urls import path as url
from django.utils import timezone
from django.utils.module_loading import import_string
from rest_framework.exceptions import APIException
from rest_framework.response import Response
from rest_framework.test import APIClient, APIRequestFactory, force_authenticate

import django_idempotency as idempotency
from django_idempotency.client import RetryPolicy
from django_idempotency.conf import stores
from django_idempotency.engine.waiting import Waiter
from django_idempotency.models import IdempotencyRecord
from django_idempotency.records import State
from django_idempotency.stores.memory import MemoryStore
from django_idempotency.testing import FakeClock, crash_at, keyed_clients, override_store
from tests.app.models import Event, Order, Payment, Row, Subscriber
from tests.pages import BLOCKS, DOCS, name_of, table_of
from tests.services.scripted import BROKEN, scripted

EXAMPLES = [block for block in BLOCKS if block.language == "python"]
SETTINGS = [block for block in EXAMPLES if block.marker == "settings"]
COFFEE = {"amount": 1250, "reference": "coffee"}


@pytest.mark.parametrize("page", dict.fromkeys(name_of(block.page) for block in EXAMPLES))
def test_examples_run(run_page, page):
    run_page(page)


def test_few_blocks_do_not_run():
    languages = [block.language for block in BLOCKS if block.language[0] != "{"]
    assert set(languages) == {"python", "console", "html+django", "sql", "text"}
    assert languages.count("text") == 8, (
        "the main path, the modes, crontab, ALTER TABLE, four of sizes and Redis"
    )


#: What a documented setting has to have besides passing the checks.
MEANS = {
    "MIDDLEWARE": lambda paths: all(callable(import_string(path)) for path in paths),
    "CELERY_BEAT_SCHEDULE": lambda schedule: (
        {import_string(entry["task"]).name for entry in schedule.values()}
        == {"django_idempotency.tasks.sweep_expired"}
    ),
    "LOGGING": lambda logging: (
        set(logging["loggers"]) == {"django_idempotency"}
        and all(callable(import_string(h["class"])) for h in logging["handlers"].values())
    ),
}


def settings_of(*blocks):
    """Return what blocks of settings set."""
    names = {}
    for block in blocks:
        exec(block.compiled(), names)
    return {name: value for name, value in names.items() if name.isupper()}


@pytest.mark.parametrize("block", SETTINGS, ids=lambda b: f"{name_of(b.page)}:{b.line}")
def test_settings_are_what_a_project_may_have(run_page, block):
    run_page(name_of(block.page))
    given = settings_of(block)
    assert given, "a block of settings that sets nothing"

    checked = {
        name: given[name] for name in given if name in ("CACHES", "IDEMPOTENCY", "MIDDLEWARE")
    }
    with override_settings(**checked):
        found = {message.id for message in checks.run_checks(tags=["idempotency"])}
        of_postgresql = {"django_idempotency.E026", "django_idempotency.E027"}  # here is SQLite
        assert found <= of_postgresql
        assert all(stores.configured(alias).store for alias in stores)
        if dotted := stores.configured("default").http_policy.scope:
            assert callable(import_string(dotted))
    for name in given.keys() & MEANS.keys():
        assert MEANS[name](given[name]), name


def replays(responses):
    return ["Idempotency-Replayed" in response.headers for response in responses]


def code_of(response):
    return response.status_code, json.loads(response.content).get("code")


def test_quickstart_and_README_answer_as_the_table_says(run_page, alice, post):
    readme = run_page("README.md").PaymentViewSet
    answers = [post(readme, COFFEE, key="readme") for _ in range(2)]
    assert (replays(answers), answers[0].content) == ([False, True], answers[1].content)

    IdempotencyRecord.objects.all().delete()
    run_page("docs/quickstart.md")
    client, bob = APIClient(), User.objects.create(username="bob")

    def send(user, payload=COFFEE, key='"8e03978e-40d5-43e8-bc93-6894a57f9324"'):
        client.force_authenticate(user)
        return client.post("/payments/", payload, headers={"Idempotency-Key": key} if key else {})

    first, again, bobs = send(alice), send(alice), send(bob)
    assert [answer.status_code for answer in (first, again, bobs)] == [201, 201, 201]
    assert (again.content, replays([first, again, bobs])) == (first.content, [False, True, False])
    assert code_of(send(alice, {**COFFEE, "amount": 9900})) == (422, "idempotency_key_reused")
    assert code_of(send(alice, key=None)) == (400, "idempotency_key_missing")


def test_guide_to_DRF_guards_create_and_capture_alone(run_page, post, alice):
    view = run_page("docs/howto/drf.md").PaymentViewSet
    payment = json.loads(post(view, COFFEE).content)

    def request(method, action, key):
        sent = getattr(APIRequestFactory(), method)("/", {}, headers={"Idempotency-Key": key})
        force_authenticate(sent, alice)
        called = view.as_view({method: action}, **vars(view.capture).get("kwargs", {}))
        return called(sent, pk=payment["id"])

    answers = [request("post", "capture", "key-2") for _ in range(2)]
    assert (json.loads(answers[0].content)["captured"], replays(answers)) == (True, [False, True])
    assert request("delete", "destroy", "key-3").status_code == 204
    assert set(IdempotencyRecord.objects.values_list("key", flat=True)) == {"key-1", "key-2"}


def test_guide_to_DRF_takes_methods_for_callables(run_page, post, alice):
    view = run_page("docs/howto/drf.md").TransferViewSet
    alice.groups.create(name="north")
    alice.groups.create(name="south")
    assert post(view, COFFEE, X_Branch="north").status_code == 201
    assert IdempotencyRecord.objects.get().scope == f"branch:{alice.pk}:north"
    assert code_of(post(view, COFFEE, X_Branch="east")) == (400, "scope_missing")
    assert code_of(post(view, COFFEE)) == (400, "scope_missing")
    assert code_of(post(view, COFFEE, X_Branch="north")) == (403, "replay_refused")
    assert post(view, COFFEE, X_Branch="south").status_code == 201


@pytest.mark.parametrize(
    ("number", "status"), [(0, 201), (0, 409), (1, -409), (2, 400), (3, -400), (4, 500), (4, -503)]
)
def test_R55_R57_guide_to_DRF_says_what_is_kept(run_page, post, number, status):
    raised, status = status < 0, abs(status)  # -409: a raised 409

    def create(view, request):
        Payment.objects.create(amount=1, reference="try")
        if not raised:
            return Response(status=status)
        error = APIException()
        error.status_code = status
        raise error

    base = run_page("docs/howto/drf.md").PaymentViewSet
    view = type("View", (base,), {"create": create})
    _, writes, response, same, other = table_of(DOCS / "howto/drf.md", "## What is kept")[number]

    assert post(view, COFFEE).status_code == status
    assert writes == ("commit" if Payment.objects.exists() else "roll back")
    [again] = replays([post(view, COFFEE)])
    assert (response, same) == (("is kept", "gets it") if again else ("is not kept", "runs"))
    mismatch = post(view, {**COFFEE, "amount": 9900}).status_code == 422
    assert other == ("gets 422" if mismatch else "runs")


def test_guide_to_scopes_names_operations(run_page):
    page = run_page("docs/howto/scope.md")
    keywords = page.PaymentViewSet.capture.kwargs
    capture = page.PaymentViewSet.as_view({"post": "capture"}, **keywords)
    anyone = {"default": {"HTTP": {"SCOPE": "django_idempotency.http.scopes.anyone"}}}

    with override_settings(IDEMPOTENCY=anyone):
        for view, key in ((page.pay, "paid"), (capture, "captured")):
            request = APIRequestFactory().post("/", COFFEE, headers={"Idempotency-Key": key})
            assert view(request).status_code < 300

    operations = IdempotencyRecord.objects.values_list("key", "operation")
    assert dict(operations) == {"paid": "POST payment-create", "captured": "POST payment-capture"}


def test_guide_to_scopes_keeps_tenants_apart(run_page, post):
    view = run_page("docs/quickstart.md").PaymentViewSet
    run_page("docs/howto/scope.md")
    scoped = {"default": {"HTTP": {"SCOPE": "shop.scopes.by_tenant_and_user"}}}
    with override_settings(IDEMPOTENCY=scoped):
        answers = [post(view, COFFEE, X_Tenant=tenant) for tenant in ("acme", "apex", "acme")]
        assert replays(answers) == [False, False, True]
        assert code_of(post(view, COFFEE)) == (400, "scope_missing")


class TokenUser:
    """A user made of the claims of a token, as Simple JWT's: no model."""

    is_authenticated = True

    def __init__(self, pk):
        self.pk = str(pk)


@pytest.mark.parametrize("scoped", [False, True])
def test_R19_R20_guide_to_scopes_gives_the_user_of_a_token_and_of_a_session_one_scope(
    run_page, post, alice, scoped
):
    view = run_page("docs/quickstart.md").PaymentViewSet
    one_user = run_page("docs/howto/scope.md").one_user
    view.permission_classes = []
    by_session, by_token = alice, TokenUser(alice.pk)

    first = post(view, COFFEE, user=by_session)
    with override_settings(
        IDEMPOTENCY={"default": {"HTTP": {"SCOPE": one_user} if scoped else {}}}
    ):
        again = [post(view, COFFEE, user=user) for user in (by_session, by_token)]
        other = post(view, COFFEE, user=TokenUser(0))
        assert code_of(post(view, COFFEE, user=AnonymousUser())) == (400, "scope_missing")

    assert replays([first, *again, other]) == [False, True, scoped, False]


def sent_twice(client, path, data=None):
    return [client.post(path, data, headers={"Idempotency-Key": "key-1"}) for _ in range(2)]


@pytest.mark.parametrize("path", ["pay", "refund", "orders", "returns", "webhook", "capture"])
def test_guide_to_views_pays_once(run_page, client, path):
    run_page("docs/howto/views.md")
    path = f"/{path}/"

    answers = sent_twice(client, path, {"amount": 5})

    assert [answer.status_code for answer in answers] == [201, 201]
    assert (answers[0].content, replays(answers)) == (answers[1].content, [False, True])
    assert code_of(client.post(path, {"amount": 5})) == (400, "idempotency_key_missing")
    assert Payment.objects.count() == 1


def test_R62_guide_to_views_streams_what_can_be_read_again(run_page, client):
    page = run_page("docs/howto/views.md")
    sys.modules["shop.page"].urlpatterns.append(url("export/", page.export))

    first, retry = sent_twice(client, "/export/", {"amount": 5})

    payment = Payment.objects.get()
    assert first["Location"] == f"/payments/{payment.pk}/"
    assert b"".join(first) == f"{payment.pk},5\n".encode()
    assert code_of(retry) == (409, "result_unavailable")


NINJA = {"payments": 201, "refunds": 200, "charges": 200, "bank/transfers": 200}


@pytest.mark.parametrize("atomic", [False, True])
@pytest.mark.parametrize("name", NINJA)
def test_guide_to_ninja_pays_once(run_page, alice, monkeypatch, name, atomic):
    """Its last example exempts the API's views from ATOMIC_REQUESTS: coroutines can be served."""
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", atomic)
    run_page("docs/howto/ninja.md")
    who = {"Authorization": "Bearer alice", "X-Client": "shop"}

    def send(body=COFFEE, **headers):
        sent = {"content_type": "application/json", "headers": {**who, **headers}}
        return Client().post(f"/api/{name}", body, **sent)

    answers = [send(**{"Idempotency-Key": "key-1"}) for _ in range(2)]

    assert [answer.status_code for answer in answers] == [NINJA[name]] * 2
    assert (answers[0].content, replays(answers)) == (answers[1].content, [False, True])
    assert code_of(send()) == (400, "idempotency_key_missing")
    assert Payment.objects.count() == 1
    assert send({**COFFEE, "amount": "much"}, **{"Idempotency-Key": "key-2"}).status_code == 422
    scope = "client:shop" if name == "charges" else f"user:auth.user:{alice.pk}"
    [record] = IdempotencyRecord.objects.all()
    assert record.scope == scope


@pytest.mark.parametrize("path", ["/payments/", "/set/", "/set/1/capture/", "/refunds/"])
def test_guide_to_adrf_pays_once(run_page, client, path):
    run_page("docs/howto/adrf.md")
    sent = {"content_type": "application/json", "headers": {"Idempotency-Key": "key-1"}}
    answers = [client.post(path, COFFEE, **sent) for _ in range(2)]
    assert replays(answers) == [False, True]
    assert answers[0].content == answers[1].content


@pytest.mark.parametrize("key", ["key-1", None])
def test_R57_R90_guide_to_transactions_says_what_survives_a_refusal(run_page, client, key):
    run_page("docs/howto/transaction.md")
    headers = {"Idempotency-Key": key} if key else {}

    answers = [client.post("/unlock/", {"pin": str(pin)}, headers=headers) for pin in range(5)]

    assert [answer.status_code for answer in answers] == [403, 403, 403, 403, 423]


@pytest.mark.parametrize(
    ("keep", "error"),
    [*product(("default", "success"), (Http404, BadRequest, KeyError)), ("stripe", Http404)],
)
def test_guide_to_views_says_what_becomes_of_an_exception(run_page, client, keep, error):
    page = run_page("docs/howto/views.md")

    def failing(request):
        Payment.objects.create(amount=1, reference="failing")
        raise error

    guarded = page.idempotent(keep=keep)(failing)
    sys.modules["shop.page"].urlpatterns.append(url("failing/", guarded))
    client.raise_request_exception = False

    answers = sent_twice(client, "/failing/")

    rows = table_of(DOCS / "howto/views.md", "## What becomes of an exception")
    [row] = [row for row in rows if f"`{error.__name__}`" in row[0]] or rows[1:]
    documented = {"default": row[1], "success": row[2], "stripe": "completed"}[keep]
    assert documented.startswith(IdempotencyRecord.objects.get().state.lower())
    assert replays(answers) == [False, keep == "stripe"]
    assert not Payment.objects.exists()


@pytest.mark.parametrize("path", ["/pay/", "/transfer/"])
def test_guide_to_the_middleware_pays_once(run_page, client, settings, path):
    name = "docs/howto/middleware.md"
    run_page(name)
    given = settings_of(*[block for block in SETTINGS if name_of(block.page) == name])
    settings.MIDDLEWARE = given["MIDDLEWARE"]

    answers = sent_twice(client, path, {"amount": 5})
    keyless = [client.post(path, {"amount": 5}) for _ in range(2)]

    assert replays([*answers, *keyless]) == [False, True, False, False]
    assert Payment.objects.count() == 3


def test_guide_to_forms_answers_as_its_table_says(run_page):
    run_page("docs/howto/forms.md")
    visitor = Client(headers={"Accept": "text/html,*/*;q=0.8"})

    def send(**form):
        return visitor.post("/checkout/", form)

    def key_in(page):
        [key] = re.findall(r'name="idempotency_key" value="(.+?)"', page.content.decode())
        return {"idempotency_key": key}

    key = key_in(visitor.get("/checkout/"))
    clicks = [send(**COFFEE, **key) for _ in range(2)]
    changed = send(**{**COFFEE, "amount": 9900}, **key)
    other_tab = send(**COFFEE, **key_in(visitor.get("/checkout/")))
    mistaken = send(amount="much", **key_in(visitor.get("/checkout/")))
    corrected = send(**COFFEE, **key_in(mistaken))

    assert clicks[0].headers["Location"] == clicks[1].headers["Location"]
    assert replays(clicks) == [False, True]
    assert changed.status_code == 422
    assert '<a href="/checkout/">Open the form again</a>' in changed.content.decode()
    found = [answer.status_code for answer in (other_tab, mistaken, corrected)]
    assert (found, Payment.objects.count()) == ([302, 200, 302], 3)


def test_guide_to_uploads_receives_once(run_page, client, settings):
    run_page("docs/howto/uploads.md")
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 1000

    def uploaded():
        file = SimpleUploadedFile("a.txt", b"x" * 5000)
        return client.post("/upload/", {"file": file}, headers={"Idempotency-Key": "key-1"})

    def put(size, key):
        sent = {"content_type": "application/octet-stream", "headers": {"Idempotency-Key": key}}
        return client.put("/files/a.bin", b"x" * size, **sent)

    assert replays([uploaded(), uploaded()]) == [False, True]
    for key, size in {"small": 10, "large": 100_000}.items():
        first, again = put(size, key), put(size, key)
        assert first.json() == again.json() == {"name": "a.bin", "bytes": size}
        assert replays([first, again]) == [False, True]
        assert put(size + 1, key).status_code == 422


@pytest.mark.parametrize("path", ["/events/", "/events-by-body/"])
def test_guide_to_webhooks_takes_an_event_once(run_page, path):
    page = run_page("docs/howto/webhooks.md")
    provider = Client(enforce_csrf_checks=True)
    body = json.dumps({"id": "evt-1", "order": "order-1", "amount": 5}).encode()
    signature = hmac.new(page.SECRET, body, hashlib.sha256).hexdigest()

    def deliver(signature):
        headers = {"X-Event-Id": "evt-1", "X-Signature": signature}
        return provider.post(path, body, content_type="application/json", headers=headers)

    statuses = [deliver(given).status_code for given in (signature, signature, "forged")]

    assert (statuses, Payment.objects.count()) == ([204, 204, 403], 1)


def test_CORS_settings_are_enough(settings, tmp_path, monkeypatch):
    page = "docs/howto/clients.md"
    given = settings_of(*[block for block in SETTINGS if name_of(block.page) == page])
    (tmp_path / "corsheaders").mkdir()
    (tmp_path / "corsheaders/__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    cors = {"django_idempotency.W006", "django_idempotency.W007"}

    def found():
        return cors & {message.id for message in checks.run_checks(tags=["idempotency"])}

    with override_settings(INSTALLED_APPS=[*settings.INSTALLED_APPS, "corsheaders"]):
        assert found() == cors
        with override_settings(**given):
            assert found() == set()


def test_guide_to_stores_switches_and_loses_no_key(run_page):
    page = run_page("docs/howto/choosing-a-store.md")
    runs = []

    def run(key, *, payload=1, **policy):
        def work(lease):
            runs.append(key)
            if runs.count(key) == 1 and key == "failed":
                raise KeyError
            return key

        policy = {"scope": "tests", "payload": payload, **policy}
        return idempotency.run(work, key=key, **policy).result

    def crash():
        with crash_at("in_work") as die:
            idempotency.run(lambda lease: die(), key="stale", scope="tests", payload=1)

    for key, error in {"done": None, "failed": KeyError, "expired": None}.items():
        with pytest.raises(error) if error else nullcontext():
            run(key)
    crash()
    past = timezone.now() - timedelta(seconds=1)
    IdempotencyRecord.objects.filter(key="expired").update(expires_at=past)
    clock = FakeClock()
    copied = MemoryStore(clock=clock)
    with pytest.raises(RuntimeError, match="at work"):
        page.copy_records(stores["default"], copied)
    IdempotencyRecord.objects.filter(key="stale").update(lease_until=past)
    for _ in range(2):
        page.copy_records(stores["default"], copied)

    with override_store(copied):
        with pytest.raises(idempotency.InProgress):
            run("stale")
        clock.advance(61)
        for key in ("done", "failed", "stale", "expired"):
            assert run(key) == key
            with pytest.raises(idempotency.FingerprintMismatch):
                run(key, payload=2)
    assert [runs.count(key) for key in ("done", "failed", "stale", "expired")] == [1, 2, 1, 2]


def test_guide_to_stores_switches_calls_without_a_stop(run_page):
    page = run_page("docs/howto/choosing-a-store.md")
    runs = []
    memory = {"BACKEND": "django_idempotency.stores.memory.MemoryStore"}
    with override_settings(IDEMPOTENCY={"default": {}, "fast": memory}):
        for alias in ("default", "fast"):  # before the first, and after the second deployment

            def one(key, store=alias):
                idempotency.run(lambda _: runs.append(key), key=key, scope="billing", store=store)

            def both(key):
                page.charge(key, lambda _: runs.append(key))

            for first, retry, key in ((one, both, f"{alias}-1"), (both, one, f"{alias}-2")):
                first(key)
                retry(key)
    assert len(runs) == 4


def test_guide_to_testing_has_tests_that_pass(run_page, settings):
    urls = ModuleType("shop.urls")
    urls.urlpatterns = []
    for name in ("docs/quickstart.md", "docs/howto/forms.md", "docs/howto/views.md"):
        urls.urlpatterns += run_page(name).urlpatterns
    page = run_page("docs/howto/testing.md")
    settings.ROOT_URLCONF = urls
    Payment.objects.all().delete()  # those of the examples above
    suite = unittest.TestSuite()
    names = "Payment OldPayment Checkout Refund Charge Call Order Crash Step"
    for name in names.split():
        case = getattr(page, f"{name}Tests")
        suite.addTests(unittest.defaultTestLoader.loadTestsFromTestCase(case))
    result = unittest.TestResult()
    suite.run(result)
    assert [text for _, text in [*result.errors, *result.failures]] == []
    assert result.testsRun == 11

    dora = inspect.unwrap(page.dora)(Client(), User)
    page.test_a_refund_without_a_key(dora)
    with keyed_clients():
        page.test_a_refund(dora)


PROBLEM = {"Content-Type": "application/problem+json"}


def test_client_retries_with_one_key_until_there_is_an_answer(run_page, monkeypatch):
    page = run_page("docs/howto/clients.md")
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    answers = [
        (BROKEN,),
        (201, {"Content-Length": "100"}, b"half"),
        (429, {"Retry-After": "Fri, 31 Dec 2100 23:59:59 GMT"}, b""),
        (503, {**PROBLEM, "Retry-After": "3"}, {"retryable": True}),
        (409, {**PROBLEM, "Retry-After": "30"}, {"retryable": True}),
        (500, {}, {}),
        (201, {}, {"id": 1}),
    ]

    with scripted(answers) as server:
        assert page.post(server.url, COFFEE) == (201, b'{"id": 1}')

    assert (len(server.seen), len(set(server.seen))) == (7, 1)
    assert (slept[3] >= 3, slept[4]) == (True, 30)


def test_guide_to_clients_pays_and_knows_when_to_ask_later(run_page):
    page = run_page("docs/howto/clients.md")
    reused = {"code": "idempotency_key_reused", "retryable": False, "safe_new_key": False}

    with page.payments, scripted([(201, {}, COFFEE), (422, PROBLEM, reused)]) as server:
        assert page.pay(server.url, 5, "order-1") == COFFEE
        with pytest.raises(page.httpx.HTTPStatusError) as error:
            page.pay(server.url, 9, "order-1")

    assert [request.key for request in server.seen] == ["order-1"] * 2
    assert not page.may_ask_later(error.value.response)
    page.session.close()
    page.impatient.close()


def test_guide_to_clients_has_the_defaults_of_the_policy():
    page = (DOCS / "howto/clients.md").read_text()
    documented = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", page, re.MULTILINE))
    policy = RetryPolicy()
    assert list(documented) == list(vars(policy))
    assert documented["statuses"] == ", ".join(map(str, sorted(policy.statuses)))
    for name in ("attempts", "seconds", "backoff", "max_backoff", "header"):
        assert eval(documented[name].strip("`")) == getattr(policy, name), name


@pytest.mark.parametrize(
    "answer",
    [
        (422, PROBLEM, {"retryable": False}),
        (409, {}, {"detail": "sold out"}),
        (503, {"Idempotency-Stored": "false"}, b"ran unguarded"),
    ],
)
def test_client_does_not_retry_what_is_an_answer(run_page, answer):
    page = run_page("docs/howto/clients.md")
    with scripted([answer]) as server, pytest.raises(HTTPError) as error:
        page.post(server.url, COFFEE)
    error.value.close()
    assert len(server.seen) == 1


def test_operator_releases_a_stale_record(run_page):
    page = run_page("docs/howto/records.md")

    def run():
        call = {"key": "k", "scope": "tests", "transaction": "separate", "on_stale": "refuse"}
        return idempotency.run(lambda lease: "done", **call)

    with crash_at("after_claim"):
        run()
    record = IdempotencyRecord.objects.get()
    assert page.release(record.pk, record.epoch) is False, "a live lease"
    IdempotencyRecord.objects.update(lease_until=timezone.now() - timedelta(seconds=1))
    with pytest.raises(idempotency.InProgress) as stale:
        run()
    assert stale.value.stale

    epochs = (record.epoch - 1, record.epoch)
    assert [page.release(record.pk, epoch) for epoch in epochs] == [False, True]
    assert page.complete(record.pk, record.epoch + 1, "x") is False, "released"
    assert (run().replayed, run().replayed) == (False, True)


@pytest.fixture
def checkout(run_page, client):
    """The page of the checkout, and a client whose requests may end in the middle."""
    page = run_page("docs/howto/steps.md")
    receipts = {}
    sys.modules["shop.page"].send_receipt = lambda order, key: receipts.setdefault(key, order)
    client.raise_request_exception = False

    def send():
        return client.post("/checkout/", headers={"Idempotency-Key": "key-1"})

    return SimpleNamespace(page=page, send=send, receipts=receipts, client=client)


@pytest.mark.parametrize("fails", ["before the order", "order", "charge", "mark", "receipt", None])
def test_P1_P2_P6_P7_guide_to_steps_charges_once_wherever_an_attempt_ends(
    checkout, monkeypatch, fails
):
    module, gateway = sys.modules["shop.page"], checkout.page.gateway
    created, charge, mark = Order.objects.create, gateway.charge, module.set_state
    left = [fails]

    def failing(place, real):
        def called(*args, **kwargs):
            answer = real(*args, **kwargs)
            if left == [place]:
                left.clear()
                raise OSError("the attempt ends here")
            return answer

        return called

    monkeypatch.setattr(module, "create_order", failing("order", module.create_order))
    monkeypatch.setattr(gateway, "charge", failing("charge", charge))
    monkeypatch.setattr(module, "set_state", failing("mark", mark))
    monkeypatch.setattr(module, "send_receipt", failing("receipt", module.send_receipt))
    if fails == "before the order":
        monkeypatch.setattr(module, "create_order", lambda user: created(total="no number"))
        assert checkout.send().status_code == 500
        monkeypatch.undo()
        module.send_receipt = lambda order, key: checkout.receipts.setdefault(key, order)
    elif fails:
        assert checkout.send().status_code == 500

    answers = [checkout.send() for _ in range(2)]

    [order] = Order.objects.all()
    assert [answer.status_code for answer in answers] == [201, 201]
    assert replays(answers) == [False, True] if fails else True
    assert (gateway.charged, order.state) == (order.total, "paid")
    assert [answer["id"] for answer in gateway.charges.values()] == [order.charge]
    assert list(checkout.receipts.values()) == [order.pk]


def test_guide_to_steps_remembers_a_refusal_that_is_returned(checkout, monkeypatch):
    declined = SimpleNamespace(charge=lambda total, idempotency_key: {"status": "declined"})
    monkeypatch.setattr(sys.modules["shop.page"], "gateway", declined)
    answers = [checkout.send() for _ in range(2)]
    assert [answer.status_code for answer in answers] == [402, 402]
    assert replays(answers) == [False, True]
    assert Order.objects.get().state == "declined"


@pytest.mark.parametrize("fails", [None, "the undo"])
def test_T7_guide_to_steps_undoes_a_charge_and_goes_on_at_the_undo(checkout, fails):
    page, module = checkout.page, sys.modules["shop.page"]
    asked = []

    def reserve(order, key):
        asked.append(key)
        return {"status": "none"}

    module.warehouse = SimpleNamespace(reserve=reserve)
    void, left = page.gateway.void, [fails]

    def failing(charge, *, idempotency_key):
        if left and left.pop():
            raise OSError("the provider is down")
        return void(charge, idempotency_key=idempotency_key)

    page.gateway.void = failing

    @page.idempotent(transaction="steps")
    def sell(request):
        lease = request.idempotency
        order = lease.step("order", page.create_order, None)

        def charge(key):
            return page.gateway.charge(order["total"], idempotency_key=key)

        return page.reserve(lease, order, lease.external("charge", charge, uncertain="repeat"))

    module.urlpatterns.append(url("sell/", sell))
    headers = {"Idempotency-Key": "sell"}
    answers = [checkout.client.post("/sell/", headers=headers).status_code for _ in range(3)]

    assert answers == [500 if fails else 422, 422, 422]
    assert (len(asked), page.gateway.voided) == (1, ["ch_0"])
    assert Order.objects.get().state == "voided"


@pytest.fixture
def uncertain(run_page):
    """`run(work)` of one key in steps; `ended()` ends its lease, as the time does."""
    page = run_page("docs/howto/steps.md")

    def run(work):
        return idempotency.run(work, key="k", scope="tests", transaction="steps").result

    def ended():
        IdempotencyRecord.objects.update(lease_until=timezone.now() - timedelta(seconds=1))

    return SimpleNamespace(page=page, run=run, ended=ended)


ENDS = {
    "P5-killed before": 0,
    "P6-killed after": 1,
    "raises before": 0,
    "raises after": 1,
    "refused": 0,
}


@pytest.mark.parametrize("ends", ENDS)
def test_T12_guide_to_steps_asks_the_bank(uncertain, monkeypatch, ends):
    page, run = uncertain.page, uncertain.run
    bank, send = page.bank, page.bank.send
    error = ConnectionRefusedError if ends == "refused" else TimeoutError

    def ending(iban, amount, *, reference):
        if ENDS[ends]:
            send(iban, amount, reference=reference)
        if ends.startswith("P"):
            crash()
        raise error

    def work(lease):
        return page.pay_out(lease, "DE02", 5)

    monkeypatch.setattr(bank, "send", ending)
    if ends.startswith("P"):
        with crash_at("in_work") as crash:
            run(work)
        uncertain.ended()
    else:
        with pytest.raises(idempotency.NotDone if ends == "refused" else error):
            run(work)
    assert IdempotencyRecord.objects.get().expires_at is None or ends == "refused"
    monkeypatch.undo()
    asked = []
    monkeypatch.setattr(bank, "find", lambda find=bank.find, **by: asked.append(1) or find(**by))

    assert run(work) == bank.transfers[0]
    assert (len(bank.transfers), len(asked)) == (1, 0 if ends == "refused" else 1)
    assert IdempotencyRecord.objects.get().expires_at is not None


@pytest.mark.parametrize("done", [True, False])
def test_T12_S13_S18_guide_to_steps_lets_an_operator_decide(checkout, monkeypatch, done):
    page, carrier = checkout.page, checkout.page.carrier
    print_label, ordered = carrier.print_label, []

    @page.idempotent(transaction="steps")
    def ship(request):
        order = request.idempotency.step("order", lambda: ordered.append(1) or {"id": 17})
        return page.JsonResponse(page.print_label(request.idempotency, order))

    sys.modules["shop.page"].urlpatterns.append(url("ship/", ship))

    def send():
        return checkout.client.post("/ship/", headers={"Idempotency-Key": "ship"})

    def times_out(order):
        if done:
            print_label(order)
        raise TimeoutError

    monkeypatch.setattr(carrier, "print_label", times_out)
    assert send().status_code == 500
    monkeypatch.undo()
    refused = [send() for _ in range(2)]
    assert [code_of(answer) for answer in refused] == [(409, "stale")] * 2
    assert "Retry-After" not in refused[0].headers

    [held] = stores["default"].browse(filters={"held": True}).records
    assert (held.key, held.state, held.expires_at) == ("ship", State.FAILED, None)
    said = ["--done", '{"id": "L-1"}'] if done else ["--not-done"]
    call_command("idempotency_resume", "ship", "--step", "label", *said, "--yes", verbosity=0)
    assert stores["default"].browse(filters={"held": True}).records == ()

    assert json.loads(send().content) == {"id": "L-1"}
    assert (len(carrier.labels), ordered) == (1, [1])


@pytest.mark.parametrize("closes", [True, False])
def test_P10_guide_to_steps_closes_the_call_of_a_process_that_stalls(
    uncertain, monkeypatch, closes
):
    page, run, bank = uncertain.page, uncertain.run, uncertain.page.bank
    pay, send, stalls = page.pay_out_once if closes else page.pay_out, bank.send, [True]

    def work(lease):
        return pay(lease, "DE02", 5)

    def stalling(iban, amount, *, reference):
        if stalls:
            stalls.clear()
            uncertain.ended()
            assert run(work)["status"] == "sent", "the other attempt"
        return send(iban, amount, reference=reference)

    monkeypatch.setattr(bank, "send", stalling)
    with pytest.raises(ValueError if closes else idempotency.LeaseLost):
        run(work)
    assert len(bank.transfers) == (1 if closes else 2)


@pytest.mark.parametrize("after", [False, True])
def test_R92_guide_to_steps_says_when_the_session_is_kept(checkout, after):
    """Rule 6 of the page."""
    ends = [500, 200]

    @checkout.page.idempotent(transaction="steps")
    def cart(request):
        def empty():
            request.session["cart"] = "empty"

        request.idempotency.step("empty", (lambda: None) if after else empty)
        if after:
            empty()
        return checkout.page.JsonResponse({}, status=ends.pop(0))

    sys.modules["shop.page"].urlpatterns.append(url("cart/", cart))
    headers = {"Idempotency-Key": "cart"}
    kept = []
    for _ in range(2):
        checkout.client.post("/cart/", headers=headers)
        kept.append("cart" in checkout.client.session)
    assert kept == [False, after]


@pytest.mark.parametrize("ends", ["killed", "raises"])
def test_guide_to_steps_imports_each_row_once(run_page, tmp_path, monkeypatch, ends):
    page = run_page("docs/howto/steps.md")
    file, module = tmp_path / "rows.csv", sys.modules["shop.page"]
    file.write_text("text\n" + "".join(f"row {number}\n" for number in range(1200)))
    loaded, load, sent = [], module.load, []
    monkeypatch.setattr(page.import_file, "delay", sent.append)

    def ends_once(name, rows):
        load(name, rows)
        loaded.append(len(rows))
        if loaded == [500, 500]:  # P2: the batch rolls back
            crash() if ends == "killed" else int("no number")

    monkeypatch.setattr(module, "load", ends_once)
    if ends == "killed":
        with crash_at("in_work") as crash:
            page.import_file(str(file))
        page.finish_imports()
        assert sent == [], "its lease has not lapsed"
        IdempotencyRecord.objects.update(lease_until=timezone.now() - timedelta(seconds=1))
    else:
        with pytest.raises(ValueError, match="no number"):
            page.import_file(str(file))
    assert Row.objects.count() == 500
    page.finish_imports()
    assert sent == [str(file)]

    assert page.import_file(*sent) == 1200
    assert loaded == [500, 500, 500, 200]
    assert Row.objects.values("text").distinct().count() == Row.objects.count() == 1200


def test_guide_to_steps_leaves_an_expired_import_alone(run_page, tmp_path, monkeypatch):
    page, file, sent = run_page("docs/howto/steps.md"), tmp_path / "rows.csv", []
    monkeypatch.setattr(page.import_file, "delay", sent.append)
    file.write_text("no field\nrow\n")
    with pytest.raises(TypeError):
        page.import_file(str(file))
    IdempotencyRecord.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    page.finish_imports()
    assert sent == []


def test_guide_to_steps_tells_each_subscriber_once(run_page, client):
    run_page("docs/howto/steps.md")
    told = []
    with scripted([(200, {}, {})]) as up, scripted([(503, {}, {}), (200, {}, {})]) as down:
        for server in (up, down):
            Subscriber.objects.create(url=server.url)
        for _ in range(3):
            headers = {"X-Event-Id": "evt-1"}
            body = json.dumps({"text": "paid"})
            sent = {"content_type": "application/json", "headers": headers}
            told.append(client.post("/events/", body, **sent).status_code)
        keys = [[request.key for request in server.seen] for server in (up, down)]

    assert told == [502, 204, 204]
    assert ([len(each) for each in keys], Event.objects.count()) == ([1, 2], 1)
    assert (len(set(keys[1])), keys[0][0] != keys[1][0]) == (1, True)


def test_S17_guide_to_steps_has_threads(run_page):
    page = run_page("docs/howto/steps.md")
    outcomes = [page.load_all(["a", "b", "c"]) for _ in range(2)]
    assert (outcomes[0].result, outcomes[1].replayed) == (outcomes[1].result, True)
    assert Row.objects.count() == 3


@pytest.fixture
def events(run_page):
    page = run_page("docs/howto/events.md")
    Payment.objects.all().delete()
    return page


def references():
    return list(Payment.objects.values_list("reference", flat=True))


def test_C7_loop_over_SQS_books_each_message_once_and_goes_on_after_a_bad_one(events):
    left = {"m-1": {"Body": "sqs-1"}, "m-2": {"Boddy": "x"}, "": {"Body": "no id"}}
    left["m-3"] = {"Body": "sqs-3"}
    dies = [True]

    def delete(*, QueueUrl, ReceiptHandle):
        if not dies:
            del left[ReceiptHandle]

    def receive(**asked):
        return {"Messages": [{"MessageId": m, "ReceiptHandle": m, **left[m]} for m in left]}

    sqs = SimpleNamespace(receive_message=receive, delete_message=delete)
    events.consume(sqs, "url")  # a consumer that dies before it deletes
    dies.clear()
    events.consume(sqs, "url")

    assert (list(left), references()) == (["m-2", ""], ["sqs-1", "sqs-3"])


def test_loop_over_Kafka_books_each_offset_once(events):
    commits = []

    class Consumer(list):
        def commit(self):
            commits.append(len(commits))

    at = {"topic": "orders", "partition": 0}
    messages = [SimpleNamespace(**at, offset=n, value=f"kafka-{n}") for n in (1, 2)]
    events.poll(Consumer(messages))
    events.poll(Consumer(messages))  # after a rebalance

    assert (len(commits), references()) == (4, ["kafka-1", "kafka-2"])


def test_callback_of_AMQP_answers_for_every_message(events, monkeypatch):
    monkeypatch.setattr(Waiter, "goes_on", lambda waiter, met: False)
    told = []
    channel = SimpleNamespace(
        basic_ack=lambda tag: told.append("ack"),
        basic_nack=lambda tag, requeue: told.append(f"nack, requeue={requeue}"),
    )

    def deliver(message_id, body):
        method, properties = SimpleNamespace(delivery_tag=1), SimpleNamespace(message_id=message_id)
        events.callback(channel, method, properties, body)

    deliver("a-1", b"amqp-1")
    deliver("a-1", b"amqp-1")  # C4: a duplicate
    deliver(None, b"amqp-1")  # C1: no id
    deliver("a-1", b"forged")  # C3: another body
    deliver("a-2", b"\xff")  # C7: its work fails
    idempotency.run(  # C6: while the first is at work
        lambda lease: deliver("a-3", b"amqp-3"),
        key="a-3",
        scope="orders-exchange",
        payload={"message_id": "a-3", "body": b"amqp-3"},
        operation=f"{events.__name__}.on_delivery",
        transaction="separate",
    )

    bad, again = "nack, requeue=False", "nack, requeue=True"
    assert (told, references()) == (["ack", "ack", bad, bad, again, again], ["amqp-1"])
