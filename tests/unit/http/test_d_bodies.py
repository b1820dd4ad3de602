"""Section D, R44 to R48: forms, header fields, empty bodies, and what is stored."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from asgiref.testing import ApplicationCommunicator
from django.core.asgi import get_asgi_application
from rest_framework.parsers import FormParser, JSONParser, MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from django_idempotency.fingerprint import VERSION
from django_idempotency.models import IdempotencyRecord
from tests.app.models import Effect
from tests.unit.http.api import Api, problem, replayed
from tests.unit.http.conftest import Mount, SetPolicy
from tests.unit.http.views import BareView, GuardedView

pytestmark = pytest.mark.django_db


class Receiver(BareView):
    """A view at which every kind of body arrives."""

    parser_classes = [JSONParser, FormParser, MultiPartParser]


# Forms.

FORM = "application/x-www-form-urlencoded"


@pytest.mark.parametrize(
    ("other", "status"),
    [
        pytest.param("b=3&a=1&a=2", 201, id="order of names"),
        pytest.param("a=1&b=3&a=2", 201, id="names interleaved"),
        pytest.param("a=%31&a=2&b=3", 201, id="escapes"),
        pytest.param("a=2&a=1&b=3", 422, id="order within a name"),
        pytest.param("a=1&a=2", 422, id="a name less"),
        pytest.param("a=1&a=2&b=3&c=", 422, id="an empty name more"),
        pytest.param("a=1&a=2&b=4", 422, id="value"),
    ],
)
def test_R44_form_fields(api: Api, mount: Mount, runs: list[str], other: str, status: int) -> None:
    url = mount(Receiver)

    first = api("a=1&a=2&b=3", path=url, content_type=FORM)
    second = api(other, path=url, content_type=FORM)

    assert first.status_code == 201
    assert second.status_code == status
    assert replayed(second) == (status == 201)
    assert len(runs) == 1


def test_R44_a_form_still_reaches_the_view(api: Api) -> None:
    response = api("name=formed", path="/set/", content_type=FORM)

    assert response.status_code == 201
    assert response.json()["name"] == "formed"


# Header fields, empty bodies.


def test_R45_fingerprint_headers_count(api: Api, policy: SetPolicy, runs: list[str]) -> None:
    policy(HTTP={"FINGERPRINT_HEADERS": ["X-Version", "Accept-Language"]})

    api(headers={"X-Version": "1"})

    assert replayed(api(headers={"x-version": "1", "X-Other": "1"}))
    assert api(headers={"X-Version": "2"}).status_code == 422
    assert api().status_code == 422
    assert len(runs) == 1


def test_R45_other_headers_do_not_count(api: Api) -> None:
    api(headers={"X-Version": "1", "User-Agent": "a"})

    assert replayed(api(headers={"X-Version": "2", "User-Agent": "b"}))


@pytest.mark.parametrize("content_type", ["application/json", "text/plain", FORM])
@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_R46_empty_differs_from_an_empty_object(
    api: Api, mount: Mount, method: str, content_type: str
) -> None:
    # The test client leaves the type of an empty body out.
    url, headers = mount(BareView), {"Content-Type": content_type}

    first = api("", path=url, method=method, headers=headers)
    again = api("", path=url, method=method, headers=headers)
    other = api("{}", path=url, method=method, headers=headers)

    assert first.status_code == 201
    assert replayed(again)
    assert problem(other) == (422, "idempotency_key_reused")


@pytest.mark.django_db(transaction=True)
def test_R46_chunked_equals_sized(api: Api, mount: Mount) -> None:
    body = json.dumps({"name": "chunked"}).encode()
    path = mount(BareView)

    async def send(chunks: list[bytes], *headers: tuple[bytes, bytes]) -> dict[bytes, bytes]:
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": "POST",
            "path": path,
            "query_string": b"",
            "headers": [
                (b"host", b"testserver"),
                (b"content-type", b"application/json"),
                (b"idempotency-key", b"key-1"),
                (b"x-user", b"alice"),
                *headers,
            ],
        }
        server = ApplicationCommunicator(get_asgi_application(), scope)
        for chunk in chunks:
            await server.send_input({"type": "http.request", "body": chunk, "more_body": True})
        await server.send_input({"type": "http.request", "body": b"", "more_body": False})
        start = await server.receive_output(10)
        assert start["status"] == 201
        await server.receive_output(10)
        await server.wait(10)
        return dict(start["headers"])

    async def both() -> tuple[dict[bytes, bytes], dict[bytes, bytes]]:
        sized = await send([body], (b"content-length", str(len(body)).encode()))
        chunked = await send([body[:5], body[5:]], (b"transfer-encoding", b"chunked"))
        return sized, chunked

    sized, chunked = asyncio.run(both())

    assert b"Idempotency-Replayed" not in sized
    assert chunked[b"Idempotency-Replayed"] == b"true"


# What is stored.


def test_R47_only_hashes_are_stored(api: Api, mode: str) -> None:
    api(
        {"name": "first", "card": "4242424242424242", "then": "empty"},
        path="/effects/?hint=confidential",
        headers={"X-Hint": "confidential"},
    )

    record = IdempotencyRecord.objects.values().get()
    text = repr({name: bytes(v) if isinstance(v, memoryview) else v for name, v in record.items()})
    assert record["state"] == "COMPLETED"
    assert len(bytes(record["fingerprint"])) == 32
    assert "4242" not in text
    assert "confidential" not in text


def test_R47_version_of_the_algorithm_is_stored(api: Api) -> None:
    api()

    assert bytes(IdempotencyRecord.objects.get().fingerprint)[0] == VERSION


def test_R47_secrets_make_the_hash_an_hmac(api: Api, policy: SetPolicy) -> None:
    found = set()
    for secrets in ((), ("one",), ("two",)):
        policy(FINGERPRINT_SECRETS=secrets)
        IdempotencyRecord.objects.all().delete()
        api()
        found.add(bytes(IdempotencyRecord.objects.get().fingerprint))

    assert len(found) == 3


def test_R47_rotation_of_secrets_makes_no_mismatch(
    api: Api, policy: SetPolicy, mode: str, runs: list[str]
) -> None:
    policy(FINGERPRINT_SECRETS=["old"])
    api(key="before")
    policy(FINGERPRINT_SECRETS=["new", "old"])
    api(key="between")

    assert replayed(api(key="before"))
    assert api({"name": "other"}, key="before").status_code == 422
    policy(FINGERPRINT_SECRETS=["new"])
    assert replayed(api(key="between"))
    assert replayed(api(key="before"))  # its secret is gone: it cannot be compared
    assert len(runs) == 2


def test_R47_rotation_lets_a_failed_attempt_run_again(
    api: Api, policy: SetPolicy, mode: str, runs: list[str]
) -> None:
    policy(FINGERPRINT_SECRETS=["old"])
    api.then("returned", status=500)
    policy(FINGERPRINT_SECRETS=["new", "old"])

    assert api.then("returned", status=500).status_code == 500
    assert len(runs) == 2


# What the view does to the request.


class Consuming(GuardedView):
    """Changes all that it is given."""

    def post(self, request: Request) -> Response:
        name = request.data.pop("name")
        request.data["added"] = True
        Effect.objects.create(name=name)
        return Response({"name": name}, status=201)


def test_R48_a_view_that_changes_the_data(api: Api, mount: Mount, runs: list[str]) -> None:
    url = mount(Consuming)

    first, again = api({"name": "a"}, path=url), api({"name": "a"}, path=url)
    other = api({"name": "b"}, path=url)

    assert first.json() == {"name": "a"}
    assert replayed(again)
    assert other.status_code == 422
    assert runs == ["a"]


def test_R48_a_parser_that_changes_the_data(api: Api, mount: Mount) -> None:
    class Lossy(JSONParser):
        def parse(self, *args: Any, **kwargs: Any) -> Any:
            super().parse(*args, **kwargs)
            return {"name": "always"}

    class Parsed(Consuming):
        parser_classes = [Lossy]

    url = mount(Parsed)

    api({"name": "a"}, path=url)

    assert api({"name": "b"}, path=url).status_code == 422
