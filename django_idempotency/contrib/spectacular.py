"""
Guarded views of Django REST framework in OpenAPI documents that drf-spectacular makes.

Loaded automatically if ``drf_spectacular`` is in INSTALLED_APPS.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from django.http import HttpResponse

from django_idempotency.contrib import missing

try:
    from drf_spectacular.drainage import isolate_view_method
    from drf_spectacular.extensions import OpenApiViewExtension
    from drf_spectacular.openapi import AutoSchema
    from drf_spectacular.plumbing import ComponentRegistry, ResolvedComponent, get_class
except ModuleNotFoundError as error:
    raise missing("drf-spectacular", "openapi") from error

from django_idempotency.contrib.rest_framework.mixin import IdempotencyMixin, guarding_policy
from django_idempotency.http.calls import verdict_for
from django_idempotency.policy import KEY_FORMATS, HTTPPolicy

__all__ = ["GuardedViewExtension"]

if TYPE_CHECKING:
    _Schema = AutoSchema
else:
    _Schema = object

_PROBLEM_TYPE = "application/problem+json"
_PROBLEM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "type": {"type": "string", "format": "uri"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "instance": {"type": "string", "format": "uri-reference"},
        "code": {"type": "string"},
        "retryable": {"type": "boolean"},
        "safe_new_key": {"type": "boolean"},
    },
    "required": [
        "type",
        "title",
        "status",
        "detail",
        "instance",
        "code",
        "retryable",
        "safe_new_key",
    ],
}


class GuardedViewExtension(OpenApiViewExtension):
    """Describes the key, the problems and the replays of each view with the mixin."""

    target_class = IdempotencyMixin
    match_subclasses = True
    priority = -1  # an extension of the project's own for its view comes first

    def view_replacement(self) -> type[Any]:
        """Return a view with schemas that describe the key; the original view does not change."""
        callback: Any = self.target_callback
        members = {"__doc__": callback.cls.__doc__, "__module__": callback.cls.__module__}
        view: Any = type(callback.cls.__name__, (callback.cls,), members)
        for handler in _handlers(callback):
            method: Any = isolate_view_method(view, handler)
            keywords = getattr(method, "kwargs", {})
            schema = get_class(keywords.get("schema") or view.schema)
            method.kwargs = {**keywords, "schema": type("GuardedSchema", (_Guarded, schema), {})}
        replacement: type[Any] = view
        return replacement


def _handlers(callback: Any) -> set[str]:
    actions: dict[str, str] | None = getattr(callback, "actions", None)
    if actions is not None:
        return set(actions.values())
    return {name for name in callback.cls.http_method_names if hasattr(callback.cls, name)}


class _Guarded(_Schema):
    # The schema of an operation whose view has the mixin. Like the mixin, it has no docstring.

    def get_operation(
        self, path: str, path_regex: str, path_prefix: str, method: str, registry: ComponentRegistry
    ) -> dict[str, Any] | None:
        operation: dict[str, Any] | None = super().get_operation(
            path, path_regex, path_prefix, method, registry
        )
        http = guarding_policy(self.view, method.upper())
        if operation is not None and http is not None:
            _describe(operation, http, registry)
        return operation


def _describe(operation: dict[str, Any], http: HTTPPolicy, registry: ComponentRegistry) -> None:
    """Describe an operation's policy for clients; the project's own words take precedence."""
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
    for status, description, headers in _problems(http):
        response = responses.setdefault(str(status), {})
        if _PROBLEM_TYPE in response.get("content", {}):
            continue  # the project describes it
        response["description"] = f"{response.get('description', '')} {description}".strip()
        if headers:
            response["headers"] = {**headers, **response.get("headers", {})}
        if http.error_renderer is None:
            response.setdefault("content", {})[_PROBLEM_TYPE] = {"schema": _problem(registry)}


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
    return callable(http.keep) or verdict_for(http, response, None) == "keep"


def _problems(http: HTTPPolicy) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield status, description and header fields of a guard's own answers."""
    again = {
        "Retry-After": {
            "schema": {"type": "integer"},
            "description": "After so many seconds, send the same request again.",
        }
    }
    missing_key = "The key is missing or invalid, or nobody is logged in whose key it could be."
    invalid_key = "The key is invalid, or nobody is logged in whose key it could be."
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


def _problem(registry: ComponentRegistry) -> dict[str, Any]:
    """Return a reference to the schema of a problem (R78), which the document contains once."""
    component = ResolvedComponent(
        name="IdempotencyProblem",
        type=ResolvedComponent.SCHEMA,
        schema=deepcopy(_PROBLEM),
        object="IdempotencyProblem",
    )
    registry.register_on_missing(component)
    reference: dict[str, Any] = component.ref
    return reference
