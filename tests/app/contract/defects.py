"""Middleware: who asks; and one that spoils POSTs and answers as ``X-Defect`` says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from tests.unit.views.users import HeaderUsers

Before = Callable[[HttpRequest], None]
After = Callable[[HttpRequest, Any], None]

KEY = "HTTP_IDEMPOTENCY_KEY"


class Programs(HeaderUsers):
    """``X-User: alice`` is alice, and has no need of a CSRF token, which nobody can forge."""

    def __call__(self, request: HttpRequest) -> Any:
        request._dont_enforce_csrf_checks = True  # type: ignore[attr-defined]
        return super().__call__(request)


class Defects:
    """Stands before everything else; a request without ``X-Defect`` passes unchanged."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Any:
        name = request.META.get("HTTP_X_DEFECT", "") if request.method == "POST" else ""
        if name in BEFORE:
            BEFORE[name](request)
        spoil = AFTER.get(name, _nothing)
        if iscoroutinefunction(self):
            return self._acall(request, spoil)
        response = self.get_response(request)
        spoil(request, response)
        return response

    async def _acall(self, request: HttpRequest, spoil: After) -> HttpResponseBase:
        response: HttpResponseBase = await self.get_response(request)
        await sync_to_async(spoil)(request, response)
        return response


def _nothing(request: HttpRequest, response: Any) -> None: ...


def _key(change: Callable[[str], str]) -> Before:
    return lambda request: request.META.update(
        {KEY: change(request.META[KEY])} if KEY in request.META else {}
    )


def _user(request: HttpRequest) -> None:
    if request.META.get("HTTP_X_USER"):
        request.META["HTTP_X_USER"] = "everybody"


def _no_key(request: HttpRequest) -> None:
    request.META.pop(KEY, None)
    request.path_info = request.path = "/optional/"


def _with(name: str, value: str) -> After:
    return lambda request, response: response.headers.__setitem__(name, value)


def _without(name: str) -> After:
    return lambda request, response: response.headers.pop(name, None)


def _replays(spoil: After) -> After:
    return lambda request, response: (
        spoil(request, response) if "Idempotency-Replayed" in response else None
    )


def _status(of: int, to: int) -> After:
    def spoil(request: HttpRequest, response: Any) -> None:
        if response.status_code == of:
            response.status_code = to

    return spoil


def _byte(request: HttpRequest, response: Any) -> None:
    response.content = response.content[:-1] + b" "


def _telling(request: HttpRequest, response: Any) -> None:
    if response.status_code in (400, 409, 422):
        key = request.META.get(KEY, "")
        response.content = response.content.replace(b'"detail": "', f'"detail": "{key} '.encode())
        response["Content-Length"] = str(len(response.content))


#: What is done to a request, by the name of the defect.
BEFORE: Mapping[str, Before] = {
    "keys in lower case": _key(str.lower),
    "keys cut short": _key(lambda field: field[:200] + '"' if len(field) > 200 else field),
    "keys without parameters": _key(lambda field: field.partition(";")[0]),
    "first of two keys": _key(lambda field: field.partition(",")[0]),
    "one scope": _user,
    "anybody": lambda request: request.META.setdefault("HTTP_X_USER", "alice"),
    "no query": lambda request: request.META.update({"QUERY_STRING": ""}),
    "no guard": _no_key,
}
#: What is done to an answer.
AFTER: Mapping[str, After] = {
    "replays not marked": _without("Idempotency-Replayed"),
    "everything marked": _with("Idempotency-Replayed", "true"),
    "replays of another status": _replays(_status(201, 200)),
    "replays of other bytes": _replays(_byte),
    "replays with cookies": _replays(_with("Set-Cookie", "seen=1")),
    "replays without Location": _replays(_without("Location")),
    "replays without Expires": _replays(_without("Idempotency-Expires")),
    "replays that extend": _replays(_with("Idempotency-Expires", "Thu, 01 Jan 2099 00:00:00 GMT")),
    "may be stored in between": _without("Cache-Control"),
    "mismatch is 409": _status(422, 409),
    "no Retry-After": _without("Retry-After"),
    "no Link": _without("Link"),
    "problems tell the key": _telling,
    "missing is 422": _status(400, 422),
}
DEFECTS = [*BEFORE, *AFTER]
REPLAYED = "test_R25_replay_is_byte_equal"
#: The tests of the contract that find a defect.
FOUND_BY: Mapping[str, list[str]] = {
    "keys in lower case": ["test_R11_keys_are_case_sensitive_and_byte_exact"],
    "keys cut short": ["test_R9_256_characters_are_400"],
    "keys without parameters": ["test_R6_malformed_parameters_are_400"],
    "first of two keys": ["test_R7_two_field_lines_are_400"],
    "one scope": ["test_R19_two_users_with_one_key_run_twice"],
    "anybody": ["test_R14_a_stranger_claims_no_key_and_gets_no_stored_body"],
    "no query": ["test_R40_query_counts"],
    "no guard": [REPLAYED, "test_R50_equal_requests_at_once_run_once"],
    "replays not marked": [REPLAYED],
    "everything marked": ["test_R2_without_a_key_it_runs_each_time"],
    "replays of another status": [REPLAYED],
    "replays of other bytes": [REPLAYED, "test_R29_bodies_are_byte_equal"],
    "replays with cookies": ["test_R30_header_fields_of_the_answer_are_replayed"],
    "replays without Location": [REPLAYED, "test_R28_every_success_replays_as_it_is"],
    "replays without Expires": ["test_R77_the_end_of_retention_is_published"],
    "replays that extend": ["test_R73_within_retention_it_replays_which_extends_nothing"],
    "may be stored in between": ["test_R31_replays_and_mismatches_are_never_stored_in_between"],
    "mismatch is 409": [
        "test_R37_other_body_is_a_mismatch",
        "test_R38_mismatch_beats_in_progress",
    ],
    "no Retry-After": ["test_R61_store_down_at_the_claim_is_503"],
    "no Link": ["test_R1_missing_key_is_a_problem_that_says_where_to_read"],
    "problems tell the key": ["test_R79_problems_name_neither_key_nor_payload"],
    "missing is 422": ["test_R8_empty_is_invalid_and_not_missing"],
}
