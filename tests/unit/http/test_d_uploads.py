"""Section D, R43: multipart bodies and raw uploads."""

from __future__ import annotations

import hashlib
import io
from typing import Any

import pytest
from django.core.files.uploadedfile import TemporaryUploadedFile
from rest_framework.parsers import FileUploadParser, FormParser, JSONParser, MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from tests.unit.http.api import Api, problem, replayed
from tests.unit.http.conftest import Mount, SetPolicy
from tests.unit.http.views import BareView, GuardedView

pytestmark = pytest.mark.django_db


class Receiver(BareView):
    """A view at which every kind of body arrives."""

    parser_classes = [JSONParser, FormParser, MultiPartParser]


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


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
def test_R43_multipart_by_other_methods(api: Api, mount: Mount, method: str) -> None:
    url, (title, file, _) = mount(Receiver), UPLOAD

    first = api(**multipart(title, file), path=url, method=method)
    again = api(**multipart(title, file, boundary="another"), path=url, method=method)
    other = api(**multipart(title), path=url, method=method)

    assert first.status_code == 201
    assert replayed(again)
    assert problem(other) == (422, "idempotency_key_reused")


class RawView(GuardedView):
    """Takes the body for a file."""

    parser_classes = [FileUploadParser]

    def put(self, request: Request) -> Response:
        with request.data["file"] as upload:
            digest = hashlib.sha256(upload.read()).hexdigest()
        return Response({"sha256": digest, "body was read": hasattr(request._request, "_body")})


def raw(content: bytes, filename: str = "a.pdf") -> dict[str, Any]:
    return {
        "body": content,
        "method": "PUT",
        "content_type": "application/pdf",
        "headers": {"Content-Disposition": f'attachment; filename="{filename}"'},
    }


@pytest.mark.parametrize("fingerprint", ["json", "raw", None])
@pytest.mark.parametrize("size", [100, 3_000_000], ids=["small", "large"])
def test_R43_raw_uploads_arrive_whole_and_are_never_held_in_memory(
    api: Api, policy: SetPolicy, mount: Mount, fingerprint: str | None, size: int
) -> None:
    policy(HTTP={"FINGERPRINT": fingerprint})
    url, content = mount(RawView), b"0123456789" * (size // 10)

    first, again = api(**raw(content), path=url), api(**raw(content), path=url)

    assert first.json() == {"sha256": hashlib.sha256(content).hexdigest(), "body was read": False}
    assert replayed(again)


@pytest.mark.parametrize(
    "other", [raw(b"%PDF onE"), raw(b"%PDF one", "b.pdf")], ids=["byte", "file name"]
)
def test_R43_a_changed_raw_upload_is_another_request(
    api: Api, mount: Mount, other: dict[str, Any]
) -> None:
    url = mount(RawView)

    api(**raw(b"%PDF one"), path=url)

    assert problem(api(**other, path=url)) == (422, "idempotency_key_reused")
