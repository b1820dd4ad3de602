"""Section A, R1 to R11: the header field."""

from __future__ import annotations

import pytest

from django_idempotency.exceptions import InvalidKey
from django_idempotency.models import IdempotencyRecord
from django_idempotency.policy import UNSET
from tests.unit.http.api import Api, problem, replayed
from tests.unit.http.conftest import Mount, SetPolicy
from tests.unit.http.views import BareView

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


@pytest.mark.parametrize(
    ("given", "pages"),
    [("problems#", "problems#"), ("problems/", "problems/"), ("problems", "problems/")],
)
def test_R1_documentation_url_is_a_choice(
    api: Api, policy: SetPolicy, given: str, pages: str
) -> None:
    policy(HTTP={"DOCUMENTATION_URL": f"https://shop.example/{given}"})

    response = api(key=None)

    page = f"https://shop.example/{pages}idempotency_key_missing"
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
