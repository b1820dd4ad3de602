"""What a request asks for, as the bytes that its fingerprint is made of (R40 to R48)."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl

from django.conf import settings
from django.core.files.uploadedfile import UploadedFile
from django.core.files.uploadhandler import load_handler
from django.http import HttpRequest
from django.http.multipartparser import MultiPartParser
from django.utils.datastructures import MultiValueDict
from django.utils.module_loading import import_string

from django_idempotency import fingerprint
from django_idempotency.http.spool import is_large, spool
from django_idempotency.policy import HTTPPolicy, Policy, coroutine_problem

__all__ = [
    "MULTIPART",
    "ask",
    "body_of",
    "endpoint_of",
    "fingerprints_of",
    "form_key",
    "operation_of",
    "parsed_body",
    "uploads_of",
]

FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"
#: Changes with every page that a browser shows, and asks for nothing (R89).
_CSRF_FIELD = "csrfmiddlewaretoken"


def ask(name: str, field: Callable[..., Any] | str, *arguments: Any) -> Any:
    """
    Return what the callable of a policy's field says; a dotted path names one.

    Raises TypeError for an answer that would have to be awaited: it is neither a yes nor a no.
    """
    asked = import_string(field) if isinstance(field, str) else field
    if (problem := coroutine_problem(name, asked)) is not None:
        raise TypeError(problem)
    answer = asked(*arguments)
    if inspect.isawaitable(answer):
        if inspect.iscoroutine(answer):
            answer.close()
        raise TypeError(f"{name} must not return an awaitable, for nobody awaits it.")
    return answer


def operation_of(request: HttpRequest) -> str:
    """Return what is being done, for people: ``POST payments:payment-list``."""
    match = request.resolver_match
    name = (match.view_name or match.route) if match else request.path
    return f"{request.method} {name}"


def endpoint_of(request: HttpRequest) -> str:
    """Return which endpoint is asked: its name and its route, for two routes may share a view."""
    match = request.resolver_match
    route = match.route if match else request.path
    return f"{operation_of(request)} {route}"


def fingerprints_of(
    request: HttpRequest,
    subject: Any,
    policy: Policy,
    http: HTTPPolicy,
    body: Callable[[], bytes],
) -> tuple[bytes, ...]:
    """Return the fingerprints of method, route, path arguments, query, fields and `body`."""
    match = request.resolver_match
    arguments = {"args": match.args, "kwargs": match.kwargs} if match else {"path": request.path}
    parts = [
        operation_of(request).encode(),
        ((match.route if match else "") or "").encode(),
        fingerprint.canonical_payload({k: _plain(v) for k, v in arguments.items()}),
        request.META.get("QUERY_STRING", "").encode(errors="surrogateescape"),
        *(
            f"{name.lower()}: {request.headers.get(name, '')}".encode(errors="surrogateescape")
            for name in sorted(http.fingerprint_headers, key=str.lower)
        ),
    ]
    match http.fingerprint:
        case None:
            pass
        case "json" | "raw":
            parts.append(body())
        case make:
            parts.append(ask("fingerprint", make, subject))
    return fingerprint.fingerprints(parts, policy.fingerprint_secrets)


def body_of(request: HttpRequest, http: HTTPPolicy) -> bytes:
    """
    Return what of the body counts, read before any parser of the view has changed it (R48).

    JSON in its canonical form, forms by name, uploads by hash; anything else byte by byte. A body
    that is too large for memory is hashed on its way into a temporary file, from which the view
    then reads it (R43).
    """
    if http.fingerprint not in ("json", "raw"):
        return b""
    kind = (request.content_type or "").lower()
    sized = str(request.META.get("CONTENT_LENGTH") or "").isdigit()
    if kind == MULTIPART and not sized and request.META.get("HTTP_TRANSFER_ENCODING"):
        return b"raw:multipart:" + spool(request)  # Django parses none that comes in chunks
    if kind == MULTIPART:
        if request.method == "POST":
            return parsed_body(request.POST, request.FILES)
        return parsed_body(*_parsed_apart(request))
    if is_large(request):
        return b"raw:" + kind.encode(errors="replace") + b":" + spool(request)
    body = request.body
    if not body:
        return b"empty:"
    if http.fingerprint == "json":
        if kind == "application/json" or kind.endswith("+json"):
            canonical = fingerprint.canonical_json(body, http.fingerprint_exclude)
            if canonical is not None:
                return b"json:" + canonical
        if kind == FORM:
            pairs = parse_qsl(body.decode("latin-1"), keep_blank_values=True, encoding="latin-1")
            return b"form:" + json.dumps(_by_name(pairs)).encode()
    return b"raw:" + kind.encode(errors="replace") + b":" + hashlib.sha256(body).digest()


def form_key(request: HttpRequest, http: HTTPPolicy) -> str | None:
    """Return the key that a form carries in its hidden field, or None (R89)."""
    if request.method != "POST" or (request.content_type or "").lower() not in (FORM, MULTIPART):
        return None
    return request.POST.get(http.form_field)


def _parsed_apart(request: HttpRequest) -> tuple[Any, MultiValueDict[str, Any]]:
    """Parse a form that Django does not parse, and leave it to be parsed again."""
    spool(request)
    stream: Any = request._stream
    handlers = [load_handler(path, request) for path in settings.FILE_UPLOAD_HANDLERS]
    try:
        return MultiPartParser(request.META, stream, handlers, request.encoding).parse()
    finally:
        stream.seek(0)


def parsed_body(data: Any, files: Mapping[str, Any]) -> bytes:
    """
    Return what of a parsed body with uploads counts: a new boundary is the same request (R43).

    Fields by name, and of each upload its name, type and hash, without reading it into memory.
    """
    uploads = [
        [name, upload.name, upload.content_type, _digest(upload)]
        for name, upload in uploads_of(files)
    ]
    if isinstance(data, MultiValueDict):
        fields: Any = _by_name(
            [
                (name, value)
                for name, values in data.lists()
                for value in values
                if not isinstance(value, UploadedFile)
            ]
        )
    else:
        fields = _described(data)
    return b"parsed:" + json.dumps([fields, uploads]).encode()


def uploads_of(files: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the name and the upload of each file that a parser has found, in their order."""
    for name in files:
        uploaded = files.getlist(name) if isinstance(files, MultiValueDict) else [files[name]]
        for upload in uploaded:
            yield name, upload


def _described(value: Any) -> Any:
    """Return what a parser of the view's own has made of a body, for comparison."""
    if isinstance(value, UploadedFile):
        return {"upload": [value.name, value.content_type, _digest(value)]}
    if isinstance(value, Mapping):
        members = [[type(name).__name__, str(name), _described(value[name])] for name in value]
        return {"members": sorted(members, key=lambda member: member[:2])}
    if isinstance(value, (list, tuple)):
        return [_described(item) for item in value]
    try:
        return {"value": fingerprint.canonical_payload(value).decode()}
    except TypeError:
        return {"type": type(value).__name__, "text": str(value)}


def _digest(upload: Any) -> str:
    digest = hashlib.sha256()
    for chunk in upload.chunks():
        digest.update(chunk)
    upload.seek(0)
    return digest.hexdigest()


def _by_name(pairs: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Sort by name alone: the order of names is free, that within a name is not (R44)."""
    counted = [(name, value) for name, value in pairs if name != _CSRF_FIELD]
    return sorted(counted, key=lambda pair: pair[0])


def _plain(value: Any) -> Any:
    """Return path arguments with what a converter made of them as text."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, (str, int)) else str(value)
