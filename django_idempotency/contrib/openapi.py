"""What an OpenAPI document says of a guarded operation: its key, its problems and its replays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from django.http import HttpResponse

from django_idempotency.exceptions.refusals import REFUSALS
from django_idempotency.http.problems import PROBLEM_TYPE
from django_idempotency.http.verdicts import verdict_on
from django_idempotency.policy import KEY_FORMATS, HTTPPolicy, Policy

_MEMBERS: dict[str, dict[str, Any]] = {
    "type": {
        "type": "string",
        "format": "uri",
        "description": "The address of a page about this kind of problem.",
    },
    "title": {"type": "string", "description": "The kind of problem, in words for people."},
    "status": {"type": "integer", "description": "The status of the response."},
    "detail": {"type": "string", "description": "What has happened, in words for people."},
    "instance": {
        "type": "string",
        "format": "uri-reference",
        "description": "The path of the request.",
    },
    "code": {
        # In allOf, where drf-spectacular does not find it: it would rename the CodeEnum of a
        # project that has a field `code` of its own.
        "allOf": [{"type": "string", "enum": [row.code for row in REFUSALS]}],
        "description": "The kind of problem, for programs. It is never translated.",
    },
    "retryable": {
        "type": "boolean",
        "description": "Whether the same request may be sent again with the same key.",
    },
    "safe_new_key": {
        "type": "boolean",
        "description": (
            "Whether the request may be sent again with a new key. If not, it may have been "
            "carried out already, and a new key would carry it out a second time."
        ),
    },
}
#: The schema of a problem (R78).
PROBLEM: dict[str, Any] = {
    "type": "object",
    "description": "A problem with the idempotency key of a request (RFC 9457).",
    "properties": _MEMBERS,
    "required": [*_MEMBERS],
}


def describe(
    operation: dict[str, Any],
    policy: Policy,
    http: HTTPPolicy,
    problem: Callable[[], dict[str, Any]],
) -> None:
    """
    Describe an operation's policy for clients; the project's own words take precedence.

    `problem` returns the schema of a problem, or a reference to it.
    """
    parameters = operation.setdefault("parameters", [])
    if not any(
        parameter.get("in") == "header" and parameter.get("name", "").lower() == http.header.lower()
        for parameter in parameters
    ):
        parameters.append(_parameter(http))
    responses: dict[str, Any] = operation.setdefault("responses", {})
    for given, response in responses.items():
        if _is_kept(http, given):
            response["headers"] = {**_headers(http), **response.get("headers", {})}
    for status, description, headers in _problems(http, policy):
        response = responses.setdefault(str(status), {})
        if PROBLEM_TYPE in response.get("content", {}):
            continue  # the project describes it
        response["description"] = f"{response.get('description', '')} {description}".strip()
        if headers:
            response["headers"] = {**headers, **response.get("headers", {})}
        if http.error_renderer is None:
            response.setdefault("content", {})[PROBLEM_TYPE] = {"schema": problem()}


def _parameter(http: HTTPPolicy) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    if http.strict_header:
        schema["pattern"] = '^".*"$'
    elif http.key_validator in KEY_FORMATS:
        schema["format"] = "uuid"
    else:
        schema |= {"minLength": http.key_min_length, "maxLength": http.key_max_length}
    parameter: dict[str, Any] = {
        "in": "header",
        "name": http.header,
        "schema": schema,
        "description": (
            "Your name for this request, such as a new UUID. Send the same request with the same "
            "key again, and you get the first answer again: nothing is done twice."
        ),
    }
    return parameter | {"required": True} if http.required else parameter


def _headers(http: HTTPPolicy) -> dict[str, Any]:
    """Return the header fields of an answer that is kept (R25, R77)."""
    headers: dict[str, Any] = {
        "Idempotency-Expires": {
            "schema": {"type": "string"},
            "description": "Until when the same key gets this answer again, as an HTTP date.",
        }
    }
    if http.replay_header:
        headers[http.replay_header] = {
            "schema": {"type": "string", "enum": ["true"]},
            "description": "Present if this is the answer to an earlier request.",
        }
    if http.echo_key:
        headers[http.header] = {
            "schema": {"type": "string"},
            "description": "The key of the request.",
        }
    return headers


def _is_kept(http: HTTPPolicy, status: str) -> bool:
    """Return whether an answer of this status may be kept, as far as the policy can tell."""
    digits = status.upper().replace("X", "0")
    if not digits.isdigit():
        return False
    response = HttpResponse(status=int(digits))
    return callable(http.keep) or verdict_on(http, response) == "keep"


def _problems(http: HTTPPolicy, policy: Policy) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield status, description and header fields of a guard's own answers."""
    again = {
        "Retry-After": {
            "schema": {"type": "integer"},
            "description": "After so many seconds, send the same request again.",
        }
    }
    missing_key = "The key is missing or invalid, or the caller is not logged in."
    invalid_key = "The key is invalid, or the caller is not logged in."
    yield 400, missing_key if http.required else invalid_key, {}
    if http.replay_check is not None:
        yield 403, "The answer to the first request may no longer be shown.", {}
    if http.in_progress_status == 409:
        yield (
            409,
            ("A request with this key is still running, or its answer was not kept."),
            again,
        )
    else:
        yield http.in_progress_status, "A request with this key is still running.", again
        yield 409, "The answer to the first request with this key was not kept.", {}
    yield http.mismatch_status, "The key was used for another request.", {}
    yield 503, "Keys cannot be kept at the moment: send the same request again later.", again
