"""The examples of the documentation run, and do what the pages say."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import sys
import threading
import time
import unittest
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import product
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from urllib.error import HTTPError

import pytest
from django.contrib.auth.models import User
from django.core import checks
from django.core.exceptions import BadRequest, PermissionDenied, SuspiciousOperation
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connections
from django.http import Http404, HttpResponse
from django.test import Client, override_settings
from django.urls import path as url
from django.utils import timezone
from django.utils.module_loading import import_string
from rest_framework.test import APIClient, APIRequestFactory, force_authenticate

import django_idempotency as idempotency
from django_idempotency.conf import stores
from django_idempotency.engine.backoff import Patience
from django_idempotency.models import IdempotencyRecord
from django_idempotency.records import State
from django_idempotency.stores.database import DatabaseStore
from django_idempotency.testing import override_store
from tests.app.models import Payment
from tests.pages import BLOCKS, DOCS, Block, name_of, table_of
from tests.unit.project.conftest import Post, RunPage

EXAMPLES = [block for block in BLOCKS if block.language == "python"]
PAGES_WITH_EXAMPLES = list(dict.fromkeys(block.page for block in EXAMPLES))
SETTINGS = [block for block in EXAMPLES if block.marker == "settings"]


COFFEE = {"amount": 1250, "reference": "coffee"}


# The examples.


@pytest.mark.parametrize("page", [name_of(page) for page in PAGES_WITH_EXAMPLES])
def test_examples_run(run_page: RunPage, page: str) -> None:
    run_page(page)


def test_few_blocks_do_not_run() -> None:
    languages = Counter(block.language for block in BLOCKS)
    directives = {"{toctree}", "{eval-rst}", "{literalinclude}"}
    assert set(languages) - directives == {"python", "console", "html+django", "text"}
    assert languages["text"] == 4, "the main path, a line of a crontab, two of redis-cli"


@pytest.mark.parametrize("block", SETTINGS, ids=lambda b: f"{name_of(b.page)}:{b.line}")
def test_settings_are_what_a_project_may_have(run_page: RunPage, block: Block) -> None:
    run_page(name_of(block.page))
    names: dict[str, Any] = {}
    exec(block.compiled(), names)
    given = {name: value for name, value in names.items() if name.isupper()}
    assert given, "a block of settings that sets nothing"

    with override_settings(**{name: given[name] for name in given if name in CHECKED}):
        assert checks.run_checks(tags=["idempotency"]) == []
        assert all(stores.configured(alias).store for alias in stores)
        if dotted := stores.configured("default").http_policy.scope:
            assert callable(import_string(dotted))
    for name in given.keys() - {"IDEMPOTENCY"}:
        assert MEANS[name](given[name]), name


def is_swept(schedule: Any) -> bool:
    names = {import_string(entry["task"]).name for entry in schedule.values()}
    return names == {"django_idempotency.tasks.sweep_expired"}


def is_of_ours(logging: Any) -> bool:
    handlers = logging["handlers"].values()
    ours = set(logging["loggers"]) == {"django_idempotency"}
    return ours and all(callable(import_string(handler["class"])) for handler in handlers)


CHECKED = ("IDEMPOTENCY", "MIDDLEWARE")
#: What a documented setting has to have besides passing the checks.
MEANS: dict[str, Any] = {
    "INSTALLED_APPS": lambda apps: "django_idempotency" in apps,
    "MIDDLEWARE": lambda paths: all(callable(import_string(path)) for path in paths),
    "CELERY_BEAT_SCHEDULE": is_swept,
    "CORS_ALLOW_HEADERS": bool,  # see test_CORS_settings_are_enough
    "CORS_EXPOSE_HEADERS": bool,
    "LOGGING": is_of_ours,
    "DATABASES": lambda databases: import_string(
        f"{databases['default']['ENGINE']}.base.DatabaseWrapper"
    ),
}


def test_README_view_pays_once(run_page: RunPage, post: Post) -> None:
    page = run_page("README.md")
    before = Payment.objects.count()
    first = post(page.PaymentViewSet, COFFEE)
    again = post(page.PaymentViewSet, COFFEE)
    assert first.status_code == 201
    assert again.headers["Idempotency-Replayed"] == "true"
    assert again.content == first.content
    assert Payment.objects.count() == before + 1


def test_quickstart_answers_as_its_table_says(run_page: RunPage, alice: User) -> None:
    run_page("docs/quickstart.md")
    client, bob = APIClient(), User.objects.create(username="bob")

    def send(user: User, payload: Any = COFFEE, **headers: str) -> Any:
        client.force_authenticate(user)
        return client.post("/payments/", payload, headers=headers)

    key = {"Idempotency-Key": '"8e03978e-40d5-43e8-bc93-6894a57f9324"'}
    first, again = send(alice, **key), send(alice, **key)
    assert (first.status_code, again.status_code) == (201, 201)
    assert (again.content, again.headers["Idempotency-Replayed"]) == (first.content, "true")
    other = send(alice, {**COFFEE, "amount": 9900}, **key)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")
    missing = send(alice)
    assert (missing.status_code, missing.json()["code"]) == (400, "idempotency_key_missing")
    bobs = send(bob, **key)
    assert bobs.status_code == 201
    assert "Idempotency-Replayed" not in bobs.headers


def test_guide_to_DRF_guards_create_and_capture_alone(
    run_page: RunPage, post: Post, alice: User
) -> None:
    view = run_page("docs/howto/drf.md").PaymentViewSet
    payment = json.loads(post(view, COFFEE).content)

    def request(method: str, action: str, key: str) -> Any:
        sent = getattr(APIRequestFactory(), method)("/", {}, headers={"Idempotency-Key": key})
        force_authenticate(sent, alice)
        return view.as_view({method: action}, **vars(view.capture).get("kwargs", {}))(
            sent, pk=payment["id"]
        )

    first, again = request("post", "capture", "key-2"), request("post", "capture", "key-2")
    assert json.loads(first.content)["captured"] is True
    assert again.headers["Idempotency-Replayed"] == "true"
    record = IdempotencyRecord.objects.get(key="key-2")
    assert record.attempts == 1
    assert request("delete", "destroy", "key-3").status_code == 204
    assert not IdempotencyRecord.objects.filter(key="key-3").exists()


def test_guide_to_DRF_takes_methods_for_callables(
    run_page: RunPage, post: Post, alice: User
) -> None:
    view = run_page("docs/howto/drf.md").TransferViewSet
    assert post(view, COFFEE, X_Branch="north").status_code == 201
    assert IdempotencyRecord.objects.get().scope == f"branch:north:{alice.pk}"
    refused = post(view, COFFEE, X_Branch="north")
    assert (refused.status_code, json.loads(refused.content)["code"]) == (403, "replay_refused")
    assert post(view, COFFEE, X_Branch="south").status_code == 201


def test_guide_to_DRF_releases_402(run_page: RunPage, post: Post) -> None:
    page = run_page("docs/howto/drf.md")

    class Poor(page.StrictViewSet):  # type: ignore[name-defined, misc]
        def create(self, request: Any) -> Any:
            return page.Response({}, status=request.data["status"])

    assert post(Poor, {"status": 402}).status_code == 402
    assert IdempotencyRecord.objects.get().state == State.RELEASED
    assert post(Poor, {"status": 409}).status_code == 409
    assert IdempotencyRecord.objects.get().state == State.COMPLETED


def test_guide_to_scopes_keeps_tenants_apart(run_page: RunPage, post: Post) -> None:
    view = run_page("docs/quickstart.md").PaymentViewSet
    run_page("docs/howto/scope.md")
    scoped = {"default": {"HTTP": {"SCOPE": "shop.scopes.by_tenant_and_user"}}}
    with override_settings(IDEMPOTENCY=scoped):
        answers = [post(view, COFFEE, X_Tenant=tenant) for tenant in ("acme", "apex", "acme")]
        nobodys = post(view, COFFEE)
    replayed = ["Idempotency-Replayed" in answer.headers for answer in answers]
    assert replayed == [False, False, True]
    assert (nobodys.status_code, json.loads(nobodys.content)["code"]) == (400, "scope_missing")


def settings_of(page: str) -> dict[str, Any]:
    """Return what the blocks of settings on a page set."""
    names: dict[str, Any] = {}
    for block in SETTINGS:
        if name_of(block.page) == page:
            exec(block.compiled(), names)
    return {name: value for name, value in names.items() if name.isupper()}


def sent_twice(client: Client, path: str, data: Any = None, **arguments: Any) -> list[Any]:
    headers = {"Idempotency-Key": "key-1", **arguments.pop("headers", {})}
    return [client.post(path, data, headers=headers, **arguments) for _ in range(2)]


def replays(responses: list[Any]) -> list[bool]:
    return ["Idempotency-Replayed" in response.headers for response in responses]


@pytest.mark.parametrize("path", ["/pay/", "/refund/", "/orders/", "/capture/"])
def test_guide_to_views_pays_once(run_page: RunPage, client: Client, path: str) -> None:
    run_page("docs/howto/views.md")

    answers = sent_twice(client, path, {"amount": 5})
    keyless = client.post(path, {"amount": 5})

    assert [answer.status_code for answer in answers] == [201, 201]
    assert answers[0].content == answers[1].content
    assert replays(answers) == [False, True]
    assert (keyless.status_code, keyless.json()["code"]) == (400, "idempotency_key_missing")
    assert Payment.objects.count() == 1


@pytest.mark.parametrize("key", ["key-1", None])
def test_R57_R90_guide_to_transactions_says_what_survives_a_refusal(
    run_page: RunPage, client: Client, key: str | None
) -> None:
    run_page("docs/howto/transaction.md")
    headers = {"Idempotency-Key": key} if key else {}

    answers = [client.post("/unlock/", {"pin": str(pin)}, headers=headers) for pin in range(5)]

    assert [answer.status_code for answer in answers] == [403, 403, 403, 403, 423]


ERRORS = [Http404, PermissionDenied, BadRequest, SuspiciousOperation, KeyError]


@pytest.mark.parametrize(
    ("keep", "error"),
    [*product(("default", "success"), ERRORS), ("stripe", Http404)],
)
def test_guide_to_views_says_what_becomes_of_an_exception(
    run_page: RunPage, client: Client, keep: str, error: type[Exception]
) -> None:
    page = run_page("docs/howto/views.md")

    def failing(request: Any) -> Any:
        Payment.objects.create(amount=1, reference="failing")
        raise error

    vars(sys.modules["shop.page"])["urlpatterns"].append(
        url("failing/", page.idempotent(keep=keep)(failing))
    )
    client.raise_request_exception = False

    answers = sent_twice(client, "/failing/")

    path = DOCS / "howto/views.md"
    rows = table_of(path, "## What becomes of an exception")
    [row] = [row for row in rows if f"`{error.__name__}`" in row[0]] or rows[1:]
    documented = {"default": row[1], "success": row[2], "stripe": "completed"}[keep]
    assert documented.startswith(IdempotencyRecord.objects.get().state.lower())
    assert replays(answers) == [False, keep == "stripe"]
    assert not Payment.objects.exists()


def test_guide_to_the_middleware_pays_once(
    run_page: RunPage, client: Client, settings: Any
) -> None:
    run_page("docs/howto/middleware.md")
    settings.MIDDLEWARE = settings_of("docs/howto/middleware.md")["MIDDLEWARE"]

    answers = sent_twice(client, "/pay/", {"amount": 5})
    keyless = [client.post("/pay/", {"amount": 5}) for _ in range(2)]

    assert replays(answers) == [False, True]
    assert replays(keyless) == [False, False]
    assert Payment.objects.count() == 3


def key_in(page: Any) -> str:
    [key] = re.findall(r'name="idempotency_key" value="(.+?)"', page.content.decode())
    return str(key)


def test_guide_to_forms_answers_as_its_table_says(run_page: RunPage) -> None:
    run_page("docs/howto/forms.md")
    visitor = Client(headers={"Accept": "text/html,*/*;q=0.8"})
    form = {**COFFEE, "idempotency_key": key_in(visitor.get("/checkout/"))}

    clicks = [visitor.post("/checkout/", form) for _ in range(2)]
    changed = visitor.post("/checkout/", {**form, "amount": 9900})
    other_tab = {**COFFEE, "idempotency_key": key_in(visitor.get("/checkout/"))}
    submitted = visitor.post("/checkout/", other_tab)
    mistaken = {"amount": "much", "idempotency_key": key_in(visitor.get("/checkout/"))}
    again = visitor.post("/checkout/", mistaken)
    corrected = visitor.post("/checkout/", {**COFFEE, "idempotency_key": key_in(again)})

    assert [click.headers["Location"] for click in clicks] == 2 * [clicks[0].headers["Location"]]
    assert replays(clicks) == [False, True]
    assert changed.status_code == 422
    assert '<a href="/checkout/">Open the form again</a>' in changed.content.decode()
    assert submitted.status_code == 302
    assert again.status_code == 200
    assert corrected.status_code == 302
    assert Payment.objects.count() == 3


def test_guide_to_waiting_gives_a_duplicate_the_answer(run_page: RunPage, settings: Any) -> None:
    page = run_page("docs/howto/waiting.md")
    waits = threading.Event()
    seen = set()

    class Watched(DatabaseStore):
        """Says when somebody has looked at a record, and has waited for a second look."""

        def claim(self, request: Any) -> Any:
            if request.token in seen:
                waits.set()
            seen.add(request.token)
            return super().claim(request)

    def duplicate() -> Any:
        try:
            return page.book("order-1")
        finally:
            connections.close_all()

    def work(lease: Any) -> str:
        futures.append(pool.submit(duplicate))
        assert waits.wait(10)
        return "the first answer"

    futures: list[Future[Any]] = []
    with override_store(Watched), ThreadPoolExecutor(1) as pool:
        idempotency.run(work, key="order-1", scope="billing", transaction="separate")
        assert futures[0].result(10) == "the first answer"


def test_guide_to_uploads_receives_once(run_page: RunPage, client: Client, settings: Any) -> None:
    run_page("docs/howto/uploads.md")
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 1000

    def uploaded() -> Any:
        file = SimpleUploadedFile("a.txt", b"x" * 5000)
        return client.post("/upload/", {"file": file}, headers={"Idempotency-Key": "key-1"})

    def put(size: int, key: str) -> Any:
        return client.put(
            "/files/a.bin",
            b"x" * size,
            content_type="application/octet-stream",
            headers={"Idempotency-Key": key},
        )

    assert replays([uploaded(), uploaded()]) == [False, True]
    for key, size in {"small": 10, "large": 100_000}.items():
        first, again = put(size, key), put(size, key)
        assert first.json() == again.json() == {"name": "a.bin", "bytes": size}
        assert replays([first, again]) == [False, True]
        assert put(size + 1, key).status_code == 422


def test_guide_to_uploads_compares_the_digest(run_page: RunPage, post: Post) -> None:
    page = run_page("docs/howto/uploads.md")

    class Digests(page.UploadView):  # type: ignore[name-defined, misc]
        def post(self, request: Any) -> Any:
            return HttpResponse(status=204)

        @classmethod
        def as_view(cls, actions: Any) -> Any:
            return super().as_view()

    answers = [post(Digests, {"n": n}, Content_Digest="one") for n in range(2)]

    assert replays(answers) == [False, True]
    assert post(Digests, {}, Content_Digest="two").status_code == 422


@pytest.mark.parametrize("path", ["/events/", "/events-by-body/"])
def test_guide_to_webhooks_takes_an_event_once(run_page: RunPage, path: str) -> None:
    page = run_page("docs/howto/webhooks.md")
    provider = Client(enforce_csrf_checks=True)
    body = json.dumps({"id": "evt-1", "order": "order-1", "amount": 5}).encode()
    signature = hmac.new(page.SECRET, body, hashlib.sha256).hexdigest()

    def deliver(signature: str) -> Any:
        headers = {"X-Event-Id": "evt-1", "X-Signature": signature}
        return provider.post(path, body, content_type="application/json", headers=headers)

    statuses = [deliver(given).status_code for given in (signature, signature, "forged")]

    assert statuses == [204, 204, 403]
    assert Payment.objects.count() == 1


def test_CORS_settings_are_enough(settings: Any, tmp_path: Path) -> None:
    given = settings_of("docs/howto/clients.md")
    (tmp_path / "corsheaders").mkdir()
    (tmp_path / "corsheaders/__init__.py").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        with override_settings(INSTALLED_APPS=[*settings.INSTALLED_APPS, "corsheaders"]):
            without = {message.id for message in checks.run_checks(tags=["idempotency"])}
            with override_settings(**given):
                found = [message.id for message in checks.run_checks(tags=["idempotency"])]

    assert {"django_idempotency.W006", "django_idempotency.W007"} <= without
    assert not {"django_idempotency.W006", "django_idempotency.W007"} & set(found)


def test_guide_to_testing_has_tests_that_pass(run_page: RunPage, settings: Any) -> None:
    run_page("docs/quickstart.md")
    settings.ROOT_URLCONF = urls = ModuleType("shop.urls")  # type: ignore[assignment]
    vars(urls)["urlpatterns"] = sys.modules["shop.page"].urlpatterns
    for name in ("docs/howto/forms.md", "docs/howto/views.md"):
        vars(urls)["urlpatterns"] += run_page(name).urlpatterns
    page = run_page("docs/howto/testing.md")
    settings.ROOT_URLCONF = urls
    Payment.objects.all().delete()  # those of the examples above
    suite = unittest.TestSuite()
    for case in (page.PaymentTests, page.CheckoutTests, page.RefundTests, page.CallTests):
        suite.addTests(unittest.defaultTestLoader.loadTestsFromTestCase(case))
    result = unittest.TestResult()
    suite.run(result)
    assert [text for _, text in [*result.errors, *result.failures]] == []
    assert result.testsRun == 5


@contextmanager
def scripted(answers: list[tuple[int, dict[str, str], Any]]) -> Iterator[SimpleNamespace]:
    """A server that gives the answers of a list, one after the other; 0 breaks the connection."""
    seen: list[tuple[str, bytes]] = []
    left = iter(answers)

    class Scripted(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            seen.append((self.headers["Idempotency-Key"], body))
            status, fields, payload = next(left)
            if status:
                self.send_response(status)
                for name, value in fields.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(json.dumps(payload).encode())

        def log_message(self, *args: Any) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Scripted) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield SimpleNamespace(url=f"http://127.0.0.1:{server.server_port}/", seen=seen)
        server.shutdown()
        thread.join()


PROBLEM = {"Content-Type": "application/problem+json"}


def test_client_retries_with_one_key_until_there_is_an_answer(
    run_page: RunPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = run_page("docs/howto/clients.md")
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    answers = [
        (0, {}, None),
        (503, {**PROBLEM, "Retry-After": "3"}, {"retryable": True}),
        (409, {**PROBLEM, "Retry-After": "30"}, {"retryable": True}),
        (500, {}, {}),
        (201, {}, {"id": 1}),
    ]

    with scripted(answers) as server:
        assert page.post(server.url, COFFEE) == (201, b'{"id": 1}')

    assert (len(server.seen), len(set(server.seen))) == (5, 1)
    assert slept[1] >= 3
    assert slept[2] == 30


@pytest.mark.parametrize(
    "answer",
    [(422, PROBLEM, {"retryable": False}), (409, {}, {"detail": "sold out"}), (404, {}, {})],
    ids=lambda answer: str(answer[0]),
)
def test_client_does_not_retry_what_is_an_answer(run_page: RunPage, answer: Any) -> None:
    page = run_page("docs/howto/clients.md")
    with scripted([answer]) as server, pytest.raises(HTTPError) as error:
        page.post(server.url, COFFEE)
    error.value.close()
    assert len(server.seen) == 1


def test_operator_releases_a_stale_record(run_page: RunPage) -> None:
    page = run_page("docs/howto/records.md")
    call = {"key": "k", "scope": "tests", "transaction": "separate", "on_stale": "refuse"}
    outcomes = []

    def work(lease: Any) -> str:
        first = not outcomes
        outcomes.append(lease)
        if first:
            assert page.release(lease.record_id, lease.fencing_token) is False, "a live lease"
            past = timezone.now() - timedelta(seconds=1)
            IdempotencyRecord.objects.update(lease_until=past)
            with pytest.raises(idempotency.InProgress) as stale:
                idempotency.run(work, **call)
            assert stale.value.stale
            assert page.release(lease.record_id, lease.fencing_token - 1) is False
            assert page.release(lease.record_id, lease.fencing_token) is True
            assert IdempotencyRecord.objects.get().epoch == lease.fencing_token + 1
            assert IdempotencyRecord.objects.get().token != lease.token
            assert page.complete(lease.record_id, lease.fencing_token + 1, "x") is False, "released"
            assert idempotency.run(work, **call).result == "second"
            return "first"
        return "second"

    with pytest.raises(idempotency.LeaseLost):
        idempotency.run(work, **call)
    assert idempotency.run(work, **call).result == "second"
    assert len(outcomes) == 2


# The loops of consumers.


def references() -> list[str]:
    return list(Payment.objects.values_list("reference", flat=True))


def test_C7_loop_over_SQS_books_each_message_once_and_goes_on_after_a_bad_one(
    run_page: RunPage,
) -> None:
    page = run_page("docs/howto/events.md")
    Payment.objects.all().delete()
    left = {"m-1": {"Body": "sqs-1"}, "m-2": {"Boddy": "x"}, "": {"Body": "no id"}}
    left["m-3"] = {"Body": "sqs-3"}
    dies = [True]

    def delete(*, QueueUrl: str, ReceiptHandle: str) -> None:
        if not dies:
            del left[ReceiptHandle]

    sqs = SimpleNamespace(
        receive_message=lambda **asked: {
            "Messages": [{"MessageId": m, "ReceiptHandle": m, **left[m]} for m in left]
        },
        delete_message=delete,
    )
    page.consume(sqs, "url")  # a consumer that dies before it deletes
    dies.clear()
    page.consume(sqs, "url")

    assert list(left) == ["m-2", ""]
    assert references() == ["sqs-1", "sqs-3"]


def test_loop_over_Kafka_books_each_offset_once(run_page: RunPage) -> None:
    page = run_page("docs/howto/events.md")
    Payment.objects.all().delete()
    commits: list[int] = []

    class Consumer(list[Any]):
        def commit(self) -> None:
            commits.append(len(commits))

    messages = [
        SimpleNamespace(topic="orders", partition=0, offset=n, value=f"kafka-{n}") for n in (1, 2)
    ]
    page.poll(Consumer(messages))
    page.poll(Consumer(messages))  # after a rebalance

    assert len(commits) == 4
    assert references() == ["kafka-1", "kafka-2"]


def test_callback_of_AMQP_answers_for_every_message(
    run_page: RunPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Patience, "next", lambda patience: 0)
    page = run_page("docs/howto/events.md")
    Payment.objects.all().delete()
    told: list[str] = []
    channel = SimpleNamespace(
        basic_ack=lambda tag: told.append("ack"),
        basic_nack=lambda tag, requeue: told.append(f"nack, requeue={requeue}"),
    )

    def deliver(message_id: str | None, body: bytes) -> None:
        method, properties = SimpleNamespace(delivery_tag=1), SimpleNamespace(message_id=message_id)
        page.callback(channel, method, properties, body)

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
        operation=f"{page.__name__}.on_delivery",
        transaction="separate",
    )

    bad, again = "nack, requeue=False", "nack, requeue=True"
    assert told == ["ack", "ack", bad, bad, again, again]
    assert references() == ["amqp-1"]
