"""Section D, R43 to R48: forms, uploads, header fields, and what is stored."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
from typing import Any

import pytest
from asgiref.testing import ApplicationCommunicator
from django.core.asgi import get_asgi_application
from django.core.files.uploadedfile import TemporaryUploadedFile
from rest_framework.parsers import FileUploadParser, FormParser, JSONParser, MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from django_idempotency.fingerprint import VERSION
from django_idempotency.models import IdempotencyRecord
from tests.app.models import Effect
from tests.http.api import Api, problem, replayed
from tests.http.conftest import Mount, SetPolicy
from tests.http.views import BareView, GuardedView

pytestmark = pytest.mark.django_db


class Receiver(BareView):
    """A view at which every kind of body arrives."""

    parser_classes = [JSONParser, FormParser, MultiPartParser]


# Forms.

Part = tuple[str, str | None, str | None, bytes]


def multipart(*parts: Part, boundary: str = "boundary") -> dict[str, Any]:
    body = io.BytesIO()
    for name, filename, kind, content in parts:
        body.write(f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"'.encode())
        if filename is not None:
            body.write(f'; filename="{filename}"'.encode())
        if kind is not None:
            body.write(f"\r\nContent-Type: {kind}".encode())
        body.write(b"\r\n\r\n" + content + b"\r\n")
    body.write(f"--{boundary}--\r\n".encode())
    return {
        "body": body.getvalue(),
        "content_type": f"multipart/form-data; boundary={boundary}",
    }


UPLOAD: tuple[Part, ...] = (
    ("title", None, None, b"Report"),
    ("file", "a.pdf", "application/pdf", b"%PDF one"),
    ("more", "b.txt", "text/plain", b"two"),
)


def test_R43_a_new_boundary_is_the_same_request(api: Api, mount: Mount, runs: list[str]) -> None:
    url = mount(Receiver)

    first = api(**multipart(*UPLOAD, boundary="one"), path=url)
    again = api(**multipart(*UPLOAD, boundary="another"), path=url)

    assert first.status_code == 201
    assert replayed(again)
    assert len(runs) == 1


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(("file", "a.pdf", "application/pdf", b"%PDF onE"), id="byte"),
        pytest.param(("file", "A.pdf", "application/pdf", b"%PDF one"), id="file name"),
        pytest.param(("file", "a.pdf", "application/x-pdf", b"%PDF one"), id="type"),
        pytest.param(("other", "a.pdf", "application/pdf", b"%PDF one"), id="name"),
        pytest.param(("file", None, None, b"%PDF one"), id="no file"),
    ],
)
def test_R43_a_changed_upload_is_another_request(api: Api, mount: Mount, changed: Part) -> None:
    url = mount(Receiver)
    title, _, more = UPLOAD

    api(**multipart(*UPLOAD), path=url)
    other = api(**multipart(title, changed, more), path=url)

    assert problem(other) == (422, "idempotency_key_reused")


def test_R43_order_of_uploads_counts(api: Api, mount: Mount) -> None:
    url = mount(Receiver)
    title, file, more = UPLOAD

    api(**multipart(title, file, more), path=url)

    assert api(**multipart(title, more, file), path=url).status_code == 422


@pytest.mark.parametrize("size", [100, 5_000_000], ids=["small", "large"])
def test_R43_uploads_arrive_whole_and_are_never_held_in_memory(
    api: Api, mount: Mount, size: int
) -> None:
    content = b"0123456789" * (size // 10)

    class Receiving(Receiver):
        def post(self, request: Request) -> Response:
            upload = request.FILES["file"]
            return Response(
                {
                    "sha256": hashlib.sha256(upload.read()).hexdigest(),
                    "on disk": isinstance(upload, TemporaryUploadedFile),
                    "body was read": hasattr(request._request, "_body"),
                    "title": request.data["title"],
                },
                status=201,
            )

    response = api(
        **multipart(UPLOAD[0], ("file", "a", "text/plain", content)), path=mount(Receiving)
    )

    assert response.json() == {
        "sha256": hashlib.sha256(content).hexdigest(),
        "on disk": size > 2_621_440,
        "body was read": False,
        "title": "Report",
    }


def test_R43_parser_of_the_view_is_used(api: Api, mount: Mount) -> None:
    class Own(MultiPartParser):
        def parse(self, *args: Any, **kwargs: Any) -> Any:
            parsed = super().parse(*args, **kwargs)
            parsed.data = {"own": parsed.data["title"]}
            return parsed

    class Parsed(Receiver):
        parser_classes = [Own]

        def post(self, request: Request) -> Response:
            return Response({"own": request.data["own"], "files": len(request.FILES)})

    url = mount(Parsed)

    first, again = (api(**multipart(*UPLOAD), path=url) for _ in range(2))

    assert first.json() == {"own": "Report", "files": 2}
    assert replayed(again)


def test_R43_without_a_fingerprint_an_upload_is_left_to_its_parser(api: Api, mount: Mount) -> None:
    class Raw(GuardedView):
        parser_classes = [FileUploadParser]
        idempotency_fingerprint = None

        def put(self, request: Request) -> Response:
            with request.data["file"] as upload:
                return Response({"size": upload.size})

    arguments: dict[str, Any] = {
        "path": mount(Raw),
        "method": "PUT",
        "content_type": "application/pdf",
        "headers": {"Content-Disposition": 'attachment; filename="a.pdf"'},
    }

    first, again = (api(b"x" * 3_000_000, **arguments) for _ in range(2))

    assert first.json() == {"size": 3_000_000}
    assert replayed(again)


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
    policy(FINGERPRINT_SECRETS=["new"])
    assert replayed(api(key="between"))
    assert api(key="before").status_code == 422
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
