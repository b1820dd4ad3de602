"""R18: one set of rules for every kind of view, under WSGI and under ASGI."""

from __future__ import annotations

import json
from typing import Any

import pytest
from asgiref.sync import iscoroutinefunction
from django.db import transaction
from django.urls import resolve

from django_idempotency.models import IdempotencyRecord
from tests.app.models import Effect
from tests.unit.http.api import Api, bare_body, problem, replayed
from tests.unit.http.conftest import InProgress, SetPolicy
from tests.unit.views.urls import ASYNC, DRF_KINDS, FREE

pytestmark = pytest.mark.django_db(transaction=True)

# A. Header and applicability.


def test_R1_R18_missing_but_required(api: Api, policy: SetPolicy, runs: list[str]) -> None:
    policy(HTTP={"REQUIRED": True})

    response = api(key=None)

    assert problem(response) == (400, "idempotency_key_missing")
    assert response.json()["title"] == "Idempotency-Key is missing"
    assert 'rel="describedby"' in response.headers["Link"]
    assert runs == []
    assert not IdempotencyRecord.objects.exists()


def test_R2_R18_missing_and_optional(api: Api, runs: list[str]) -> None:
    responses = [api(key=None, user=None) for _ in range(2)]

    assert [response.status_code for response in responses] == [201, 201]
    assert not any(replayed(response) for response in responses)
    assert len(runs) == 2
    assert not IdempotencyRecord.objects.exists()


def test_R3_R18_key_stands_between_the_quotes(api: Api) -> None:
    api(key='"8e03978e"')

    assert replayed(api(key="8e03978e"))
    assert IdempotencyRecord.objects.get().key == "8e03978e"


def test_R8_R18_empty_is_invalid(api: Api, runs: list[str]) -> None:
    for key in ("", "   ", '""'):
        assert problem(api(key=key)) == (400, "idempotency_key_invalid")
    assert runs == []


def test_R9_R18_255_characters_at_most(api: Api, runs: list[str]) -> None:
    assert api(key="k" * 255).status_code == 201
    assert problem(api(key="k" * 256)) == (400, "idempotency_key_invalid")
    assert len(runs) == 1


def test_R12_R18_safe_methods_pass(api: Api, policy: SetPolicy) -> None:
    policy(HTTP={"REQUIRED": True})

    responses = [
        api("", method=method, key=key)
        for method in ("GET", "HEAD", "OPTIONS")
        for key in (None, "k", "k", '"malformed')
    ]

    assert [response.status_code for response in responses] == [200] * 12
    assert not any(replayed(response) for response in responses)
    assert not IdempotencyRecord.objects.exists()


def test_R13_R18_unsafe_methods_are_guarded(api: Api, kind: str, runs: list[str]) -> None:
    """The middleware guards POST and PATCH alone, unless ``methods`` says more."""
    methods = ("POST", "PATCH", "PUT", "DELETE")

    guarded = [replayed([api(method=m, key=m) for _ in range(2)][-1]) for m in methods]

    assert guarded == ([True, True, False, False] if kind in FREE else [True] * 4)
    assert len(runs) == (6 if kind in FREE else 4)


def test_R13_R18_methods_are_a_choice(api: Api, policy: SetPolicy) -> None:
    policy(HTTP={"METHODS": {"PUT"}})
    for method in ("POST", "PUT"):
        api(method=method, key=method)

    assert replayed(api(method="PUT", key="PUT"))
    assert not replayed(api(method="POST", key="POST"))


# B. Scope.


def test_R19_R18_two_users_one_key(api: Api, runs: list[str]) -> None:
    first, second = api(user="alice"), api(user="bob")

    assert not replayed(second)
    assert first.content != second.content
    assert len(runs) == IdempotencyRecord.objects.count() == 2
    assert api(user="alice").content == first.content


def test_R21_R18_no_principal_and_no_scope(api: Api, runs: list[str]) -> None:
    assert problem(api(user=None)) == (400, "scope_missing")
    assert runs == []


def test_R21_R18_scope_of_the_projects_choice(api: Api, policy: SetPolicy) -> None:
    policy(HTTP={"SCOPE": "django_idempotency.http.scopes.anyone"})
    first = api(user=None)

    again = api(user="bob")

    assert (first.status_code, replayed(again)) == (201, True)
    assert again.content == first.content


# C. First request and replay.


def test_R24_R25_R31_R18_first_and_again(both_stacks: Api, mode: str, runs: list[str]) -> None:
    first, again = both_stacks(), both_stacks()

    assert first.status_code == again.status_code == 201
    assert first.content == again.content
    assert first.headers["Content-Type"] == again.headers["Content-Type"] == "application/json"
    assert (replayed(first), replayed(again)) == (False, True)
    assert "seen" in first.cookies
    assert "seen" not in again.cookies
    assert "Cache-Control" not in first.headers
    assert again.headers["Cache-Control"] == "no-store"
    assert len(runs) == Effect.objects.count() == 1


def test_R28_R18_status_and_location_replay(api: Api) -> None:
    for then, status in (("created", 201), ("empty", 204), ("redirect", 303)):
        first, again = (api.then(then, key=then) for _ in range(2))

        assert replayed(again)
        assert first.status_code == again.status_code == status
        assert first.content == again.content
        for name in ("Location", "ETag", "Content-Type"):
            assert first.headers.get(name) == again.headers.get(name), name


def test_R29_R18_bytes_are_bytes(api: Api) -> None:
    api.then("binary")
    again = api.then("binary")

    assert (replayed(again), again.content) == (True, bytes(range(256)))
    assert again.headers["Content-Type"] == "application/pdf"


def test_R64_R18_falsy_results_replay(api: Api, runs: list[str]) -> None:
    texts = ("0", '""', "[]", "{}", "null", "false", "")
    for number, text in enumerate(texts):
        body = {"then": "falsy", "text": text}
        first, again = (api(body, key=f"key-{number}") for _ in range(2))

        assert first.content == again.content == text.encode()
        assert replayed(again)
    assert len(runs) == len(texts)


def test_R57_R18_deferred_rendering_is_part_of_the_work(api: Api) -> None:
    """The template of the response writes a row, once."""
    first, again = api.then("template"), api.then("template")

    assert (first.status_code, replayed(again)) == (201, True)
    assert first.content == again.content
    assert Effect.objects.filter(name="rendered").count() == 1


# D. Fingerprint.


def test_R37_R31_R18_other_body(api: Api, runs: list[str]) -> None:
    first = api({"name": "first"})

    refused = api({"name": "other"})

    assert problem(refused) == (422, "idempotency_key_reused")
    assert refused.headers["Cache-Control"] == "no-store"
    assert runs == ["first"]
    assert api({"name": "first"}).content == first.content


def test_R40_R18_all_of_the_address_counts(api: Api, kind: str) -> None:
    api(path=f"/{kind}/7/")

    for method, path in (
        ("PATCH", f"/{kind}/7/"),
        ("POST", f"/{kind}/8/"),
        ("POST", f"/{kind}/other/"),
        ("POST", f"/{kind}/7/?query=1"),
    ):
        assert problem(api(path=path, method=method)) == (422, "idempotency_key_reused"), path
    assert replayed(api(path=f"/{kind}/7/"))


def test_R42_R18_json_exactly(api: Api) -> None:
    api('{"name": "fo", "b": 1.0, "c": [1, 2]}')

    assert replayed(api('{ "c": [1,2], "b": 1.0, "name" : "f\\u006f" }'))
    for other in (
        '{"name": "fo", "b": 1, "c": [1, 2]}',
        '{"name": "fo", "b": 1.00, "c": [1, 2]}',
        '{"name": "fo", "b": 1.0, "c": [2, 1]}',
        '{"name": "fo", "b": 1.0, "c": [1, 2], "d": null}',
    ):
        assert problem(api(other)) == (422, "idempotency_key_reused"), other


# E. Concurrency.


def test_R49_R31_R18_second_while_the_first_runs(
    api: Api, in_progress: InProgress, runs: list[str]
) -> None:
    api()
    in_progress()

    refused = api()

    assert problem(refused) == (409, "in_progress")
    assert refused.headers["Retry-After"] == "1"
    assert refused.headers["Cache-Control"] == "no-store"
    assert "Idempotency-Replayed" not in refused.headers
    assert len(runs) == 1


# F. What is kept.

KEPT = [200, 201, 204, 302, 402, 409, 410, 412, 418, 422]
RELEASED = [400, 401, 403, 404, 405, 406, 407, 408, 411, 413, 415, 425, 429]
FAILED = [500, 502, 503]


STATES = {
    **dict.fromkeys(KEPT, "COMPLETED"),
    **dict.fromkeys(RELEASED, "RELEASED"),
    **dict.fromkeys(FAILED, "FAILED"),
}


def test_R55_R18_what_is_kept(api: Api) -> None:
    first = {status: api.then("status", status=status, key=str(status)) for status in STATES}
    again = {status: api.then("status", status=status, key=str(status)) for status in STATES}
    states = IdempotencyRecord.objects.values_list("key", "state")

    assert {status: response.status_code for status, response in first.items()} == {
        status: status for status in STATES
    }
    assert {int(key): state for key, state in states} == STATES
    assert {status for status, response in again.items() if replayed(response)} == set(KEPT)


def test_R55_R18_released_key_is_free_for_another_body(api: Api) -> None:
    api.then("status", status=400)

    assert api().status_code == 201


def test_R55_R18_failed_key_is_bound_to_its_body(api: Api) -> None:
    api.then("status", status=500)

    assert problem(api()) == (422, "idempotency_key_reused")


@pytest.mark.parametrize("mode", ["single", "joined"], indirect=True)
def test_R57_R18_what_is_returned_below_500_commits(api: Api, mode: str) -> None:
    for status in (400, 500, 409):
        assert (
            api(
                {"then": "status", "status": status, "name": str(status)}, key=str(status)
            ).status_code
            == status
        )

    assert sorted(Effect.objects.values_list("name", flat=True)) == ["400", "409"]


def test_R58_R18_exception_passes_on_and_the_next_try_runs(
    both_stacks: Api, mode: str, runs: list[str]
) -> None:
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"^boom$"):
            both_stacks.then("boom")

    assert IdempotencyRecord.objects.get().state == "FAILED"
    assert len(runs) == 2
    assert Effect.objects.count() == (2 if mode == "separate" else 0)
    assert not transaction.get_connection().in_atomic_block


def test_R58_R18_exception_becomes_a_500(api: Api, runs: list[str]) -> None:
    api.client.raise_request_exception = False

    assert [api.then("boom").status_code for _ in range(2)] == [500, 500]
    assert len(runs) == 2


def test_R62_R18_what_cannot_be_kept_is_delivered_and_said(
    api: Api, mode: str, runs: list[str]
) -> None:
    for then, size in (("stream", 2), ("large", 2 * 1024 * 1024)):
        first = api.then(then, key=then)

        assert (first.status_code, len(bare_body(first))) == (200, size)
        assert first.headers["Idempotency-Stored"] == "false"
        assert "Idempotency-Expires" not in first.headers
        assert problem(api.then(then, key=then)) == (409, "result_unavailable")
    assert len(runs) == 2


def test_R62_R18_file_is_kept(api: Api, runs: list[str]) -> None:
    first = api.then("file")
    delivered = bare_body(first)
    first.close()
    again = api.then("file")

    assert delivered == b"file"
    assert (replayed(again), again.content) == (True, b"file")
    assert len(runs) == 1


# The lease, as the view sees it, and the kinds themselves.


def test_R18_kinds_are_what_they_say(kind: str) -> None:
    """So that no rule is shown twelve times for one and the same kind."""
    view: Any = resolve(f"/{kind}/").func

    assert iscoroutinefunction(view) == (kind in ASYNC)
    assert hasattr(view, "cls") == (kind in DRF_KINDS)
    if kind not in DRF_KINDS:
        assert hasattr(view, "view_class") == kind.endswith("class")


def test_R22_R18_anothers_key_looks_like_a_new_one(api: Api) -> None:
    api(user="alice")
    used, new = api(user="bob"), api(user="bob", key="never used")

    assert used.status_code == new.status_code
    assert set(used.headers) == set(new.headers)
    assert set(json.loads(used.content)) == set(json.loads(new.content))
