"""Section D: what makes two requests ask for the same thing."""

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
from rest_framework.parsers import FormParser, JSONParser, MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from django_idempotency.fingerprint import VERSION
from django_idempotency.models import IdempotencyRecord
from tests.app.models import Effect
from tests.http.api import Api, problem, replayed
from tests.http.conftest import InProgress, Mount, SetPolicy
from tests.http.views import BareView, GuardedView

pytestmark = pytest.mark.django_db


class Told(BareView):
    """A view at which every kind of body arrives."""

    parser_classes = [JSONParser, FormParser, MultiPartParser]


# The mismatch.


def test_R37_other_body_is_422(api: Api, mode: str, atomic_requests: bool, runs: list[str]) -> None:
    first = api({"name": "a"})
    before = IdempotencyRecord.objects.values().get()

    other = api({"name": "b"})

    assert problem(other) == (422, "idempotency_key_reused")
    assert "Idempotency-Replayed" not in other.headers
    assert runs == ["a"]
    assert IdempotencyRecord.objects.values().get() == before
    assert api({"name": "a"}).content == first.content


def test_R37_mismatch_status_is_a_choice(api: Api, policy: SetPolicy) -> None:
    policy(HTTP={"MISMATCH_STATUS": 409})

    api({"name": "a"})

    assert problem(api({"name": "b"})) == (409, "idempotency_key_reused")


def test_R37_a_failed_attempt_keeps_its_fingerprint(api: Api, mode: str, runs: list[str]) -> None:
    api.then("returned", status=500)

    assert problem(api({"name": "b"})) == (422, "idempotency_key_reused")
    assert runs == ["first"]


def test_R38_mismatch_beats_in_progress(api: Api, in_progress: InProgress, mode: str) -> None:
    api({"name": "a"})
    in_progress()

    assert problem(api({"name": "b"})) == (422, "idempotency_key_reused")
    assert problem(api({"name": "a"})) == (409, "in_progress")


@pytest.mark.parametrize("state", ["completed", "in progress"])
def test_R39_422_and_409_tell_nothing_of_the_first(
    api: Api, in_progress: InProgress, state: str
) -> None:
    told = []
    for secret in ("confidential-1", "confidential-2"):
        IdempotencyRecord.objects.all().delete()
        api({"name": secret})
        if state == "in progress":
            in_progress()
            told.append(api({"name": secret}).content)
        told.append(api({"name": "other"}).content)
        assert not [body for body in told if secret.encode() in body]

    half = len(told) // 2
    assert told[:half] == told[half:]


# Method, route, path, query.

UUID = "8e03978e-40d5-43e8-bc93-6894a57f932"


def test_R40_method_counts(api: Api, mount: Mount, runs: list[str]) -> None:
    url = mount(BareView)

    api(path=url, method="POST")

    assert problem(api(path=url, method="PUT")) == (422, "idempotency_key_reused")
    assert len(runs) == 1


def test_R40_route_counts(api: Api, mount: Mount, runs: list[str]) -> None:
    one, other = mount(BareView, name="same"), mount(BareView, name="same")

    api(path=one)

    assert problem(api(path=other)) == (422, "idempotency_key_reused")
    assert len(runs) == 1


@pytest.mark.parametrize(
    ("pattern", "one", "other"),
    [
        ("<int:pk>/", "1/", "2/"),
        ("<slug:name>/", "a/", "b/"),
        ("<uuid:pk>/", f"{UUID}1/", f"{UUID}2/"),
        ("<int:a>/<int:b>/", "1/23/", "12/3/"),
        ("<path:rest>", "a/b", "a%2Fb/"),
    ],
)
def test_R40_path_arguments_count(
    api: Api, mount: Mount, runs: list[str], pattern: str, one: str, other: str
) -> None:
    url = mount(BareView, pattern)

    first = api(path=url + one)

    assert first.status_code == 201
    assert replayed(api(path=url + one))
    assert problem(api(path=url + other)) == (422, "idempotency_key_reused")
    assert len(runs) == 1


@pytest.mark.parametrize("other", ["", "?a=2", "?a=1&b=1", "?b=1"])
def test_R40_query_counts(api: Api, runs: list[str], other: str) -> None:
    api(path="/effects/?a=1")

    assert replayed(api(path="/effects/?a=1"))
    assert problem(api(path=f"/effects/{other}")) == (422, "idempotency_key_reused")
    assert len(runs) == 1


def test_R41_another_key_is_another_operation(api: Api, runs: list[str]) -> None:
    first, second = api(key="key-1"), api(key="key-2")

    assert first.content != second.content
    assert not replayed(second)
    assert len(runs) == 2


# JSON.

EQUAL_JSON = {
    "member order": ('{"a": 1, "b": {"c": 2, "d": 3}}', '{"b": {"d": 3, "c": 2}, "a": 1}'),
    "white space": ('{"a":[1,2]}', '\r\n{ "a" :\t[ 1 , 2 ] }\n'),
    "escapes": ('{"\\u0061": "\\u00e9\\/"}', '{"a": "é/"}'),
    "surrogate pair": ('"\\ud83d\\ude00"', '"😀"'),
}
DIFFERENT_JSON = {
    "beyond 2^53": ('{"a": 9007199254740993}', '{"a": 9007199254740992}'),
    "1 and 1.0": ("[1]", "[1.0]"),
    "1.0 and 1.00": ("[1.0]", "[1.00]"),
    "1e2 and 100": ("[1e2]", "[100]"),
    "0 and -0": ("[0]", "[-0]"),
    "number and string": ('{"a": 1}', '{"a": "1"}'),
    "number and what stands for it": ('{"a": 1}', '{"a": {"#": "1"}}'),
    "true and 1": ("[true]", "[1]"),
    "true and a string": ("[true]", '["true"]'),
    "array order": ("[1, 2]", "[2, 1]"),
    "null and absent": ('{"a": null}', "{}"),
    "null and a string": ("[null]", '["null"]'),
    "null and empty": ('{"a": null}', '{"a": ""}'),
    "nesting": ("[[1], 2]", "[[1, 2]]"),
    "case": ('{"A": 1}', '{"a": 1}'),
    "spaces in strings": ('"a b"', '"a  b"'),
    "composed and decomposed": ('"\\u00e9"', '"e\\u0301"'),
    "duplicate names: the first value": ('{"a": 1, "a": 2}', '{"a": 3, "a": 2}'),
    "duplicate names: order": ('{"a": 1, "a": 2}', '{"a": 2, "a": 1}'),
    "duplicate names and one": ('{"a": 1, "a": 2}', '{"a": 2}'),
    "duplicate names fall back to raw": ('{"a": 1, "a": 2}', '{"a": 1,  "a": 2}'),
}


@pytest.mark.parametrize("case", EQUAL_JSON)
def test_R42_equal_json(api: Api, mount: Mount, runs: list[str], case: str) -> None:
    url, (one, other) = mount(BareView), EQUAL_JSON[case]

    api(one, path=url)

    assert replayed(api(other, path=url))
    assert len(runs) == 1


@pytest.mark.parametrize("case", DIFFERENT_JSON)
def test_R42_different_json(api: Api, mount: Mount, runs: list[str], case: str) -> None:
    url, (one, other) = mount(BareView), DIFFERENT_JSON[case]

    api(one, path=url)

    assert replayed(api(one, path=url))
    assert problem(api(other, path=url)) == (422, "idempotency_key_reused")
    assert len(runs) == 1


@pytest.mark.parametrize(
    "body",
    [b"[" * 100_000, b'{"a": ', b"\xff\xfe", b"NaN"],
    ids=["too deep", "cut short", "no UTF-8", "NaN"],
)
def test_R42_what_is_no_json_is_compared_byte_by_byte(api: Api, mount: Mount, body: bytes) -> None:
    url = mount(BareView)

    api(body, path=url)

    assert replayed(api(body, path=url))
    assert api(body + b" ", path=url).status_code == 422


@pytest.mark.parametrize("content_type", ["application/merge-patch+json", "application/json; v=1"])
def test_R42_other_names_of_json(api: Api, mount: Mount, content_type: str) -> None:
    url = mount(BareView)

    api('{"a": 1, "b": 2}', path=url, content_type=content_type)

    assert replayed(api('{"b":2,"a":1}', path=url, content_type=content_type))


def test_R42_content_type_of_other_bodies_counts(api: Api, mount: Mount) -> None:
    url = mount(BareView)

    api(b"a", path=url, content_type="text/plain")

    assert replayed(api(b"a", path=url, content_type="text/plain"))
    assert api(b"a", path=url, content_type="text/x-other").status_code == 422


def test_R42_raw_compares_bytes(api: Api, mount: Mount) -> None:
    class Raw(BareView):
        idempotency_fingerprint = "raw"

    url = mount(Raw)
    api('{"a": 1}', path=url)

    assert replayed(api('{"a": 1}', path=url))
    assert problem(api('{"a":1}', path=url)) == (422, "idempotency_key_reused")


def test_R42_None_compares_no_bodies(api: Api, mount: Mount, runs: list[str]) -> None:
    class Uncompared(BareView):
        idempotency_fingerprint = None

    url = mount(Uncompared)
    api('{"a": 1}', path=url)

    assert replayed(api('{"a": 2}', path=url))
    assert api('{"a": 1}', path=f"{url}?a=1").status_code == 422
    assert len(runs) == 1


class ByName(GuardedView):
    """Only the name counts."""

    def idempotency_fingerprint(self, request: Request) -> bytes:
        return str(request.data["name"]).encode()

    def post(self, request: Request) -> Response:
        Effect.objects.create(name=request.data["name"])
        return Response(request.data, status=201)


def test_R42_fingerprint_as_a_method(api: Api, mount: Mount, runs: list[str]) -> None:
    url = mount(ByName)
    first = api({"name": "a", "sent": 1}, path=url)

    assert first.json() == {"name": "a", "sent": 1}
    assert replayed(api({"name": "a", "sent": 2}, path=url))
    assert api({"name": "b", "sent": 1}, path=url).status_code == 422
    assert runs == ["a"]


def sent_by(request: Any) -> bytes:
    """A fingerprint for the dotted path below."""
    return request.headers["X-Sent-By"].encode()


def test_R42_fingerprint_as_a_dotted_path(api: Api, policy: SetPolicy) -> None:
    policy(HTTP={"FINGERPRINT": "tests.http.test_d_fingerprint.sent_by"})

    api({"name": "a"}, headers={"X-Sent-By": "till 1"})

    assert replayed(api({"name": "b"}, headers={"X-Sent-By": "till 1"}))
    assert api({"name": "a"}, headers={"X-Sent-By": "till 2"}).status_code == 422


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
    url = mount(Told)

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
    url = mount(Told)
    title, _, more = UPLOAD

    api(**multipart(*UPLOAD), path=url)
    other = api(**multipart(title, changed, more), path=url)

    assert problem(other) == (422, "idempotency_key_reused")


def test_R43_order_of_uploads_counts(api: Api, mount: Mount) -> None:
    url = mount(Told)
    title, file, more = UPLOAD

    api(**multipart(title, file, more), path=url)

    assert api(**multipart(title, more, file), path=url).status_code == 422


@pytest.mark.parametrize("size", [100, 5_000_000], ids=["small", "large"])
def test_R43_uploads_arrive_whole_and_are_never_held_in_memory(
    api: Api, mount: Mount, size: int
) -> None:
    content = b"0123456789" * (size // 10)

    class Receiving(Told):
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
    url = mount(Told)

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


@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_R46_empty_differs_from_an_empty_object(api: Api, mount: Mount, method: str) -> None:
    url = mount(BareView)

    first = api("", path=url, method=method)

    assert first.status_code == 201
    assert replayed(api("", path=url, method=method))
    assert api("{}", path=url, method=method).status_code == 422


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
