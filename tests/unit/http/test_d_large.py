"""Section D, R42, R43: large bodies that are no uploads are compared byte by byte."""

from __future__ import annotations

import json
import tempfile
from typing import Any

import pytest
from rest_framework.decorators import (
    api_view,
    authentication_classes,
    parser_classes,
    permission_classes,
)
from rest_framework.exceptions import ParseError
from rest_framework.parsers import BaseParser, JSONParser
from rest_framework.request import Request
from rest_framework.response import Response

from django_idempotency.http import idempotent
from tests.app.models import Effect
from tests.unit.http.api import Api, problem, replayed
from tests.unit.http.conftest import Mount, SetPolicy
from tests.unit.http.views import BareView, GuardedView

pytestmark = pytest.mark.django_db

LIMIT = 1000


@pytest.fixture(autouse=True)
def limit(settings: Any) -> None:
    """From here on a body is large."""
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = LIMIT


class StreamedJSON(BaseParser):
    """A parser of a project's own, which reads the stream; DRF 3.16's JSONParser does so, too."""

    media_type = "application/json"

    def parse(self, stream: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return json.load(stream)
        except ValueError as error:
            raise ParseError from error


class Large(GuardedView):
    parser_classes = [StreamedJSON]

    def post(self, request: Request) -> Response:
        Effect.objects.create(name="large")
        return Response({"amount": request.data["amount"]}, status=201)


def large(members: str) -> str:
    """Return a JSON object that is too large for memory, with these members."""
    filling = json.dumps("x" * LIMIT)
    return f'{{"filling": {filling}, {members}}}'


def test_R42_large_json_arrives_and_replays(api: Api, mount: Mount, runs: list[str]) -> None:
    url = mount(Large)

    first, again = (api(large('"amount": 5'), path=url) for _ in range(2))

    assert (first.status_code, first.json()) == (201, {"amount": 5})
    assert replayed(again)
    assert len(runs) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param('"amount": 0.1', '"amount": 0.10000000000000000001', id="digits"),
        pytest.param('"amount": 5, "amount": 9', '"amount": 9', id="duplicate member"),
        pytest.param('"amount": 5', '"amount":  5', id="white space"),
    ],
)
@pytest.mark.parametrize("below", [False, True], ids=["mixin", "below api_view"])
def test_R42_large_json_that_only_parses_alike_is_another_request(
    api: Api, mount: Mount, one: str, other: str, below: bool
) -> None:
    url = mount(below_api_view if below else Large)

    assert api(large(one), path=url).status_code == 201
    assert problem(api(large(other), path=url)) == (422, "idempotency_key_reused")


@api_view(["POST"])
@parser_classes([StreamedJSON])
@authentication_classes(GuardedView.authentication_classes)
@permission_classes(GuardedView.permission_classes)
@idempotent
def below_api_view(request: Request) -> Response:
    return Response({"amount": request.data["amount"]}, status=201)


# What DRF refuses.


def test_R15_large_body_that_cannot_be_parsed_leaves_the_key_free(api: Api, mount: Mount) -> None:
    url = mount(Large)

    assert api("x" * (LIMIT + 1), path=url).status_code == 400
    assert api(large('"amount": 5'), path=url).status_code == 201


def test_R15_large_body_of_another_type_leaves_the_key_free(api: Api, mount: Mount) -> None:
    url = mount(Large)

    assert api("x" * (LIMIT + 1), path=url, content_type="text/csv").status_code == 415
    assert api(large('"amount": 5'), path=url).status_code == 201


def test_R15_large_body_that_DRF_itself_refuses_leaves_the_key_free(api: Api, mount: Mount) -> None:
    """JSONParser of DRF 3.16 takes it; later ones ask for all of it, which Django refuses then."""

    class Parsed(Large):
        parser_classes = [JSONParser]

    url = mount(Parsed)

    first = api(large('"amount": 5'), path=url)
    smaller = api('{"amount": 5}', path=url)

    refused = first.status_code in (400, 413)
    assert refused or first.status_code == 201
    assert smaller.status_code == (201 if refused else 422)


def test_R14_large_body_of_who_may_not_come_in_is_not_read(api: Api, mount: Mount) -> None:
    streams: list[Any] = []

    class Refusing(Large):
        def handle_exception(self, exc: Exception) -> Any:
            streams.append(self.request._request._stream)
            return super().handle_exception(exc)

    refused = api(large('"amount": 5'), path=mount(Refusing), user=None)

    assert refused.status_code == 401
    assert not isinstance(streams[0], tempfile.SpooledTemporaryFile)


def test_R43_large_body_that_does_not_count_is_not_read(
    api: Api, mount: Mount, policy: SetPolicy
) -> None:
    policy(HTTP={"FINGERPRINT": None})
    url = mount(BareView)

    api(large('"amount": 5'), path=url)

    assert replayed(api(large('"amount": 6'), path=url))
