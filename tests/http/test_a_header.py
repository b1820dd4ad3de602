"""Section A: the header field, and which requests the guard is for."""

from __future__ import annotations

import pytest
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.throttling import BaseThrottle
from rest_framework.views import APIView

from django_idempotency.exceptions import InvalidKey
from django_idempotency.models import IdempotencyRecord
from django_idempotency.policy import UNSET
from tests.app.models import Effect
from tests.app.views import EffectView
from tests.http.api import Api, problem, replayed
from tests.http.conftest import Mount, SetPolicy
from tests.http.views import BareView, CreateView, FullViewSet

pytestmark = pytest.mark.django_db

UUID4 = "8e03978e-40d5-43e8-bc93-6894a57f9324"
UUID7 = "01890a5d-ac96-774b-bcce-b302099a8057"


# Presence.


def test_R1_required_and_missing_is_a_problem(api: Api, runs: list[str]) -> None:
    response = api(key=None)

    assert problem(response) == (400, "idempotency_key_missing")
    assert response.json()["title"] == "Idempotency-Key is missing"
    assert runs == []
    assert not IdempotencyRecord.objects.exists()


def test_R1_problem_points_to_the_documentation(api: Api) -> None:
    response = api(key=None)

    page = response.json()["type"]
    assert page.startswith("https://")
    assert response.headers["Link"] == f'<{page}>; rel="describedby"'


def test_R1_documentation_url_is_a_choice(api: Api, policy: SetPolicy) -> None:
    policy(HTTP={"DOCUMENTATION_URL": "https://shop.example/problems#"})

    response = api(key=None)

    page = "https://shop.example/problems#idempotency_key_missing"
    assert response.json()["type"].startswith(page)
    assert response.headers["Link"].startswith(f"<{page}")


def test_R1_required_by_the_setting_unless_the_view_decides(
    api: Api, policy: SetPolicy, mount: Mount
) -> None:
    class Silent(BareView):
        idempotency_required = UNSET

    class Deciding(BareView):
        idempotency_required = False

    policy(HTTP={"REQUIRED": True})

    assert problem(api(key=None, path=mount(Silent))) == (400, "idempotency_key_missing")
    assert api(key=None, path=mount(Deciding)).status_code == 201


def test_R2_optional_and_missing_runs_each_time(api: Api, runs: list[str]) -> None:
    first = api(key=None, path="/optional/")
    again = api(key=None, path="/optional/")

    assert (first.status_code, again.status_code) == (201, 201)
    assert "Idempotency-Replayed" not in again.headers
    assert len(runs) == 2
    assert not IdempotencyRecord.objects.exists()


def test_R2_without_a_key_no_scope_is_needed(api: Api) -> None:
    response = api(key=None, user=None, path="/optional/")

    assert response.status_code == 201


# Spelling.


def test_R3_key_stands_between_the_quotes(api: Api) -> None:
    response = api(key=f'"{UUID4}"')

    assert response.status_code == 201
    assert IdempotencyRecord.objects.get().key == UUID4


def test_R4_bare_characters_are_the_same_key(api: Api, runs: list[str]) -> None:
    first = api(key=f'"{UUID4}"')
    again = api(key=UUID4)

    assert replayed(again)
    assert again.content == first.content
    assert len(runs) == 1


def test_R4_strict_header_refuses_bare(api: Api, policy: SetPolicy, runs: list[str]) -> None:
    policy(HTTP={"STRICT_HEADER": True})

    bare = api(key=UUID4)
    quoted = api(key=f'"{UUID4}"')

    assert problem(bare) == (400, "idempotency_key_invalid")
    assert quoted.status_code == 201
    assert len(runs) == 1


def test_R5_escapes_are_undone(api: Api) -> None:
    response = api(key=r'"a\"b\\c"')

    assert response.status_code == 201
    assert IdempotencyRecord.objects.get().key == r'a"b\c'


@pytest.mark.parametrize(
    "field",
    [
        pytest.param(r'"a\b"', id="unknown escape"),
        pytest.param('"abc', id="no closing quote"),
        pytest.param('abc"', id="no opening quote"),
        pytest.param('"a"b"', id="quote inside"),
        pytest.param('"a\x1fb"', id="below 0x20"),
        pytest.param('"a\tb"', id="tab"),
        pytest.param('"a\x7fb"', id="0x7F"),
        pytest.param('"a\xe9b"', id="above 0x7F"),
        pytest.param("a\x1fb", id="bare below 0x20"),
        pytest.param("a\x7fb", id="bare 0x7F"),
        pytest.param("a\xe9b", id="bare above 0x7F"),
    ],
)
def test_R5_what_no_string_is_made_of_is_400(api: Api, runs: list[str], field: str) -> None:
    response = api(key=field)

    assert problem(response) == (400, "idempotency_key_invalid")
    assert runs == []
    assert not IdempotencyRecord.objects.exists()


@pytest.mark.parametrize("field", ['"abc";v=1', '"abc";v', '"abc"; v=1;w="x"'])
def test_R6_parameters_are_dropped(api: Api, field: str) -> None:
    api(key='"abc"')

    assert replayed(api(key=field))


@pytest.mark.parametrize("field", ['"abc";', '"abc";V=1', '"abc" ;v=1', '"abc"v'])
def test_R6_malformed_parameters_are_400(api: Api, field: str) -> None:
    response = api(key=field)

    assert problem(response) == (400, "idempotency_key_invalid")


@pytest.mark.parametrize("field", ['"a", "b"', '"a","a"', "a,b", "a, a", ",", 'a, "b"'])
def test_R7_two_field_lines_or_a_comma_are_400(api: Api, runs: list[str], field: str) -> None:
    response = api(key=field)

    assert problem(response) == (400, "idempotency_key_invalid")
    assert runs == []


def test_R7_comma_between_quotes_is_part_of_the_key(api: Api) -> None:
    response = api(key='"a,b"')

    assert response.status_code == 201
    assert IdempotencyRecord.objects.get().key == "a,b"


@pytest.mark.parametrize("path", ["/effects/", "/optional/"], ids=["required", "optional"])
@pytest.mark.parametrize("field", ["", " ", '""', '" "', "\t"])
def test_R8_empty_is_invalid_and_not_missing(
    api: Api, runs: list[str], field: str, path: str
) -> None:
    response = api(key=field, path=path)

    assert problem(response) == (400, "idempotency_key_invalid")
    assert response.json()["title"] == "Idempotency-Key is invalid"
    assert runs == []


@pytest.mark.parametrize(
    "field",
    [
        pytest.param("k", id="1"),
        pytest.param("k" * 255, id="255 bare"),
        pytest.param(f'"{"k" * 255}"', id="255 quoted"),
        pytest.param('"' + r"\"" * 255 + '"', id="255 escaped"),
    ],
)
def test_R9_1_to_255_characters_after_unquoting(api: Api, field: str) -> None:
    first, again = api(key=field), api(key=field)

    assert first.status_code == 201
    assert replayed(again)


@pytest.mark.parametrize("field", ["k" * 256, f'"{"k" * 256}"'], ids=["bare", "quoted"])
def test_R9_256_characters_are_400(api: Api, field: str) -> None:
    response = api(key=field)

    assert problem(response) == (400, "idempotency_key_invalid")
    assert not IdempotencyRecord.objects.exists()


def test_R9_keys_that_differ_in_the_255th_character_differ(api: Api, runs: list[str]) -> None:
    api(key="k" * 254 + "a")
    api(key="k" * 254 + "b")

    assert len(runs) == 2


@pytest.mark.parametrize(
    ("field", "status"),
    [("k" * 9, 400), ("k" * 10, 201), ("k" * 20, 201), ("k" * 21, 400), (f'"{"k" * 20}"', 201)],
)
def test_R9_length_is_a_choice(api: Api, policy: SetPolicy, field: str, status: int) -> None:
    policy(HTTP={"KEY_MIN_LENGTH": 10, "KEY_MAX_LENGTH": 20})

    assert api(key=field).status_code == status


@pytest.mark.parametrize(
    ("validator", "field", "status"),
    [
        ("uuid", UUID4, 201),
        ("uuid", UUID4.upper(), 201),
        ("uuid", UUID7, 201),
        ("uuid", UUID4.replace("-", ""), 400),
        ("uuid", "{" + UUID4 + "}", 400),
        ("uuid", "order-1", 400),
        ("uuid7", UUID7, 201),
        ("uuid7", UUID4, 400),
        ("uuid7", "order-1", 400),
    ],
)
def test_R10_key_validator_by_name(
    api: Api, policy: SetPolicy, runs: list[str], validator: str, field: str, status: int
) -> None:
    policy(HTTP={"KEY_VALIDATOR": validator})

    response = api(key=field)

    assert response.status_code == status
    assert len(runs) == (status == 201)


def test_R10_key_validator_as_a_method(api: Api, mount: Mount) -> None:
    class Orders(BareView):
        def idempotency_key_validator(self, key: str) -> None:
            if not key.startswith("order-"):
                raise InvalidKey("A key starts with order-.")

    url = mount(Orders)
    refused = api(key="payment-1", path=url)

    assert problem(refused) == (400, "idempotency_key_invalid")
    assert refused.json()["detail"] == "A key starts with order-."
    assert api(key="order-1", path=url).status_code == 201


def test_R11_case_counts(api: Api, runs: list[str]) -> None:
    assert not replayed(api(key="Key"))
    assert not replayed(api(key="key"))
    assert len(runs) == 2


def test_R11_spaces_between_the_quotes_count(api: Api, runs: list[str]) -> None:
    for field in ('"key"', '"key "', '" key"'):
        assert not replayed(api(key=field))
    assert len(runs) == 3


# Methods.


@pytest.mark.parametrize("field", ["key-1", '"malformed'], ids=["a key", "malformed"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "TRACE"])
def test_R12_safe_methods_pass(api: Api, mount: Mount, method: str, field: str) -> None:
    class Readable(BareView):
        def get(self, request: Request) -> Response:
            return Response({"read": True})

        head = trace = get

    response = api(key=field, path=mount(Readable), method=method, body="")

    assert response.status_code == 200
    assert "Idempotency-Replayed" not in response.headers
    assert not IdempotencyRecord.objects.exists()


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_R13_unsafe_methods_are_guarded(
    api: Api, mount: Mount, runs: list[str], method: str
) -> None:
    url = mount(BareView)

    missing = api(key=None, path=url, method=method)
    first = api(path=url, method=method)
    again = api(path=url, method=method)

    assert problem(missing) == (400, "idempotency_key_missing")
    assert (first.status_code, replayed(first)) == (201, False)
    assert (again.status_code, replayed(again)) == (201, True)
    assert len(runs) == 1


def test_R13_methods_are_a_choice(api: Api, mount: Mount, runs: list[str]) -> None:
    class OnlyPost(BareView):
        idempotency_methods = {"post"}

    url = mount(OnlyPost)
    for method in ("POST", "PUT"):
        api(path=url, method=method)

    assert replayed(api(path=url))
    assert not replayed(api(path=url, method="PUT"))
    assert api(key=None, path=url, method="PUT").status_code == 201
    assert len(runs) == 4


# What comes before the claim.


class NotMallory(BasePermission):
    def has_permission(self, request: Request, view: APIView) -> bool:
        return "X-Forbidden" not in request.headers


class OnDemand(BaseThrottle):
    def allow_request(self, request: Request, view: APIView) -> bool:
        return "X-Throttled" not in request.headers

    def wait(self) -> float:
        return 17


class Gated(EffectView):
    """One scope for all, so that nothing but the gate keeps a stored body from a caller."""

    permission_classes = [*EffectView.permission_classes, NotMallory]
    throttle_classes = [OnDemand]
    idempotency_scope = "django_idempotency.http.scopes.anyone"


@pytest.mark.parametrize(
    ("status", "user", "headers"),
    [
        (401, None, {}),
        (403, "mallory", {"X-Forbidden": "1"}),
        (429, "alice", {"X-Throttled": "1"}),
    ],
)
def test_R14_refused_callers_get_no_stored_body(
    api: Api,
    mount: Mount,
    runs: list[str],
    mode: str,
    status: int,
    user: str | None,
    headers: dict[str, str],
) -> None:
    url = mount(Gated)
    stored = api(path=url)
    before = IdempotencyRecord.objects.values().get()

    refused = api(path=url, user=user, headers=headers)

    assert stored.status_code == 201
    assert refused.status_code == status
    assert "Idempotency-Replayed" not in refused.headers
    assert refused.content != stored.content
    assert IdempotencyRecord.objects.values().get() == before
    assert len(runs) == 1


@pytest.mark.parametrize(
    ("status", "user", "headers"),
    [
        (401, None, {}),
        (403, "mallory", {"X-Forbidden": "1"}),
        (429, "alice", {"X-Throttled": "1"}),
    ],
)
def test_R14_refused_callers_claim_nothing(
    api: Api,
    mount: Mount,
    mode: str,
    atomic_requests: bool,
    status: int,
    user: str | None,
    headers: dict[str, str],
) -> None:
    url = mount(Gated)

    refused = api(path=url, user=user, headers=headers)

    assert refused.status_code == status
    assert not IdempotencyRecord.objects.exists()
    assert not replayed(api(path=url))


def test_R14_refusal_comes_before_the_key_is_looked_at(api: Api) -> None:
    assert api(user=None, key='"malformed').status_code == 401
    assert api(user=None, key=None).status_code == 401


@pytest.mark.parametrize(
    ("status", "arguments"),
    [
        (404, {"path": "/nowhere/"}),
        (405, {"method": "PATCH"}),
        (406, {"headers": {"Accept": "application/xml"}}),
    ],
)
def test_R15_what_reaches_no_code_of_the_view_claims_nothing(
    api: Api, status: int, arguments: dict[str, object]
) -> None:
    response = api(**arguments)  # type: ignore[arg-type]

    assert response.status_code == status
    assert not IdempotencyRecord.objects.exists()


@pytest.mark.parametrize(
    ("status", "arguments"),
    [
        pytest.param(415, {"content_type": "text/plain"}, id="415"),
        pytest.param(400, {"body": '{"name": '}, id="parse error"),
    ],
)
def test_R15_what_cannot_be_read_leaves_the_key_free(
    api: Api, mode: str, runs: list[str], status: int, arguments: dict[str, object]
) -> None:
    refused = api(**arguments)  # type: ignore[arg-type]
    corrected = api({"name": "corrected"})

    assert refused.status_code == status
    assert corrected.status_code == 201
    assert not replayed(corrected)
    assert runs == ["corrected"]


def test_R15_404_of_the_view_itself_leaves_the_key_free(api: Api, mode: str) -> None:
    refused = api(path="/set/999999/rename/")
    api({"name": "there"}, key="key-2", path="/set/")
    there = api(path=f"/set/{Effect.objects.get().pk}/rename/")

    assert refused.status_code == 404
    assert there.status_code == 200


# Answers.


@pytest.mark.parametrize(
    ("field", "echo"),
    [("abc", '"abc"'), ('"abc"', '"abc"'), (r'"a\"b\\c"', r'"a\"b\\c"')],
)
def test_R16_echo_key_returns_the_key(api: Api, policy: SetPolicy, field: str, echo: str) -> None:
    policy(HTTP={"ECHO_KEY": True})

    first, again = api(key=field), api(key=field)

    assert first.headers["Idempotency-Key"] == echo
    assert replayed(again)
    assert again.headers["Idempotency-Key"] == echo


def test_R16_without_it_the_key_is_not_returned(api: Api) -> None:
    first, again = api(), api()

    assert "Idempotency-Key" not in first.headers
    assert "Idempotency-Key" not in again.headers


@pytest.mark.parametrize("kind", ["APIView", "generic", "ViewSet", "@action"])
def test_R18_every_kind_of_view_behaves_alike(
    api: Api, mount: Mount, mode: str, atomic_requests: bool, runs: list[str], kind: str
) -> None:
    views = {
        "APIView": BareView.as_view(),
        "generic": CreateView.as_view(),
        "ViewSet": FullViewSet.as_view({"post": "create"}),
        "@action": FullViewSet.as_view({"post": "copy"}),
    }
    url = mount(views[kind])

    missing, first, again = api(key=None, path=url), api(path=url), api(path=url)
    other = api({"name": "other"}, path=url)

    assert problem(missing) == (400, "idempotency_key_missing")
    assert (first.status_code, replayed(first)) == (201, False)
    assert (again.status_code, replayed(again)) == (201, True)
    assert again.content == first.content
    assert problem(other) == (422, "idempotency_key_reused")
    assert len(runs) == 1


def test_R18_router_and_action_url(api: Api, runs: list[str]) -> None:
    first = api({"name": "a"}, path="/set/")
    url = f"/set/{first.json()['id']}/rename/"

    renamed, again = api(key="key-2", path=url), api(key="key-2", path=url)

    assert renamed.status_code == 200
    assert replayed(again)
    assert runs == ["a", "rename of a"]
