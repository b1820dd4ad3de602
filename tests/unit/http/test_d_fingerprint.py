"""Section D, R37 to R42: what makes two requests ask for the same thing."""

from __future__ import annotations

from typing import Any

import pytest
from rest_framework.request import Request
from rest_framework.response import Response

from django_idempotency.models import IdempotencyRecord
from tests.app.models import Effect
from tests.unit.http.api import Api, problem, replayed
from tests.unit.http.conftest import InProgress, Mount, SetPolicy
from tests.unit.http.views import BareView, GuardedView

pytestmark = pytest.mark.django_db


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
    policy(HTTP={"FINGERPRINT": "tests.unit.http.test_d_fingerprint.sent_by"})

    api({"name": "a"}, headers={"X-Sent-By": "till 1"})

    assert replayed(api({"name": "b"}, headers={"X-Sent-By": "till 1"}))
    assert api({"name": "a"}, headers={"X-Sent-By": "till 2"}).status_code == 422
