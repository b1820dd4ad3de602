"""What a request asks for, as the bytes that its fingerprint is made of (R40 to R48)."""

from __future__ import annotations

import codecs
import hashlib
import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qsl

from django.conf import settings
from django.core.exceptions import BadRequest, SuspiciousOperation
from django.core.files.uploadedfile import UploadedFile
from django.core.files.uploadhandler import FileUploadHandler
from django.http import HttpRequest
from django.http.multipartparser import MultiPartParser, MultiPartParserError
from django.utils.datastructures import MultiValueDict
from django.utils.encoding import escape_uri_path
from django.utils.module_loading import import_string

from django_idempotency import fingerprint
from django_idempotency.callables import coroutine_problem
from django_idempotency.conf import fingerprint_secrets
from django_idempotency.fingerprint import Fingerprint
from django_idempotency.http.scopes import has_owner
from django_idempotency.http.spool import (
    PartialBody,
    declared_length,
    hand_on,
    is_large,
    refuse_part,
    spool,
)
from django_idempotency.policy import HTTPPolicy, Policy

FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"
#: What most callables of a policy answer with: none of it can be awaited.
_PLAIN = (str, bool, bytes, type(None))
#: Changes with every page that a browser shows, and asks for nothing (R89).
_CSRF_FIELD = "csrfmiddlewaretoken"
#: A path that `escape_uri_path` would give back as it is: most are.
_NEEDS_NO_ESCAPE = re.compile(r"[A-Za-z0-9/_.~-]*")
#: What a form's request keeps of being parsed apart.
_PARSED = "_idempotency_form"
#: Forms that Django refuses to parse. A view that asks for its fields tells the client.
_REFUSED = (BadRequest, LookupError, MultiPartParserError, SuspiciousOperation, UnicodeError)


def ask(name: str, field: Callable[..., Any] | str, *arguments: Any) -> Any:
    """
    Return what the callable of a policy's field says; a dotted path names one.

    Raises TypeError for an answer that would have to be awaited: it is neither a yes nor a no.
    """
    asked = import_string(field) if isinstance(field, str) else field
    answer = asked(*arguments)
    if type(answer) in _PLAIN:
        return answer
    if inspect.isawaitable(answer):
        if inspect.iscoroutine(answer):
            answer.close()
        problem = coroutine_problem(name, asked)
        raise TypeError(problem or f"{name} must not return an awaitable: it is not awaited.")
    return answer


def operation_of(request: HttpRequest, given: str) -> str:
    """
    Return what is being done, ``POST payments:payment-list`` (R40).

    That is the method and the name that the view gives, else the URL's name, else its route. For a
    URL without a name, Django's ``view_name`` is the view's place in the code.
    """
    match = request.resolver_match
    if given or match is None or not match.url_name:
        return endpoint_of(request, given)
    return f"{request.method} {match.view_name}"


def endpoint_of(request: HttpRequest, given: str) -> str:
    """Return which endpoint is asked: the method, and the name `given` or the route (R23)."""
    match = request.resolver_match
    route = (match.route or "/") if match else request.path
    return f"{request.method} {given or route}"


def path_of(request: HttpRequest) -> bytes:
    """
    Return the path as the client sent it, percent-encoded, where the server says so (R40).

    Elsewhere it is Django's path, encoded as clients do: the same for what needs no escape.
    """
    scope = getattr(request, "scope", None)
    raw = scope.get("raw_path") if isinstance(scope, dict) else None
    if raw is None:  # of gunicorn; of uWSGI, mod_wsgi and others
        raw = request.META.get("RAW_URI") or request.META.get("REQUEST_URI")
    if raw is None:
        path = request.path
        escaped = path if _NEEDS_NO_ESCAPE.fullmatch(path) else escape_uri_path(path)
        return escaped.encode(errors="surrogatepass")
    sent: bytes = raw if isinstance(raw, bytes) else raw.encode(errors="surrogateescape")
    if not sent.startswith(b"/"):  # a proxy's request line names the host, too, which is no part
        sent = b"/" + sent.partition(b"://")[2].partition(b"/")[2]
    return sent.partition(b"?")[0]


def fingerprint_of(
    request: HttpRequest,
    subject: Any,
    policy: Policy,
    http: HTTPPolicy,
    body: Callable[[], bytes],
    operation: str,
) -> Fingerprint:
    """Return the fingerprint of method, operation, path, query, header fields and `body` (R40)."""
    parts = [request.META.get("QUERY_STRING", "").encode(errors="surrogateescape")]
    if http.fingerprint_headers:
        for name in sorted(http.fingerprint_headers, key=str.lower):
            field = f"{name.lower()}: {request.headers.get(name, '')}"
            parts.append(field.encode(errors="surrogateescape"))
    match http.fingerprint:
        case None:
            pass
        case "json" | "raw":
            parts.append(body())
        case make:
            parts.append(ask("fingerprint", make, subject))
    done = operation.encode(errors="surrogatepass")
    line = [(request.method or "").encode(), done, path_of(request)]
    return Fingerprint.of([*line, *parts], fingerprint_secrets(policy))


def body_of(request: HttpRequest, http: HTTPPolicy) -> bytes:
    """
    Return what of the body counts, read before any parser of the view has changed it (R48).

    JSON in its canonical form, forms by name, uploads by hash; anything else byte by byte, and so
    what exceeds Django's own limits for forms. A body that is too large for memory is hashed on
    its way into a temporary file, from which the view then reads it (R43); so is a multipart form,
    unless somebody has had Django parse it before.
    """
    if http.fingerprint not in ("json", "raw"):
        return b""
    kind, length = (request.content_type or "").lower(), declared_length(request)
    if kind == MULTIPART and length is None:
        # Django parses none of a length that is not told.
        return b"raw:multipart" + _charset(request) + b":" + spool(request)
    if kind == MULTIPART:
        try:
            return parsed_body(*_form(request))
        except PartialBody:
            raise
        except _REFUSED:
            pass
    if is_large(request, length):
        media_type = kind.encode(errors="replace") + _charset(request)
        return b"raw:" + media_type + b":" + spool(request)
    is_read_here = not hasattr(request, "_body")  # others may have put in what is inside a gzip
    body = request.body
    if is_read_here:
        refuse_part(len(body), length)
        hand_on(request)
    if not body:
        return b"empty:"
    if http.fingerprint == "json":
        if kind == "application/json" or kind.endswith("+json"):
            canonical = fingerprint.canonical_json(body, http.fingerprint_exclude)
            if canonical is not None:
                return b"json" + _charset(request, body) + b":" + canonical
        if kind == FORM and (pairs := _pairs(body)) is not None:
            values = "&".join([part for pair in pairs for part in pair]).encode("latin-1")
            fields = json.dumps(_by_name(pairs)).encode()
            return b"form" + _charset(request, body, values) + b":" + fields
    media_type = kind.encode(errors="replace") + _charset(request, body)
    return b"raw:" + media_type + b":" + hashlib.sha256(body).digest()


def _charset(request: HttpRequest, *texts: bytes) -> bytes:
    """
    Return the charset of a body as a part to compare; nothing if UTF-8 reads the same in `texts`.

    Without texts, those of a body that is not held in memory, every charset but UTF-8 counts.
    """
    charset = request.encoding or settings.DEFAULT_CHARSET
    with suppress(LookupError):  # Django ignores an unknown one of the client, a middleware may not
        charset = codecs.lookup(charset).name
    if charset == "utf-8" or (texts and all(_reads_as_utf_8(text, charset) for text in texts)):
        return b""
    return b";" + charset.encode(errors="replace")


def _reads_as_utf_8(text: bytes, charset: str) -> bool:
    """Whether bytes are the same text in a charset as in UTF-8."""
    try:
        return text.decode(charset) == text.decode()
    except (LookupError, UnicodeError):
        return False


def form_key(request: HttpRequest, http: HTTPPolicy) -> str | None:
    """
    Return the key that a form carries in its hidden field, or None (R89).

    The field counts where somebody owns its key: a user, a live session, or whom the policy's
    scope names (R97). A form that Django has not parsed yet is parsed for its owner only, and one
    that Django would refuse as too large is left to the view.
    """
    kind = (request.content_type or "").lower()
    if request.method != "POST" or kind not in (FORM, MULTIPART):
        return None
    if not (http.scope or hasattr(request, "_post") or has_owner(request)):
        return None
    is_unparsed = kind == FORM and not hasattr(request, "_post")
    if is_unparsed and is_large(request, declared_length(request)):
        return None
    try:
        fields, _ = _form(request)
    except PartialBody:
        raise
    except _REFUSED:
        return None
    key: str | None = fields.get(http.form_field)
    return key if key is None or http.scope or has_owner(request) else None


def _form(request: HttpRequest) -> tuple[Any, MultiValueDict[str, Any]]:
    """
    Return the fields of a form and its uploads, or their hashes.

    A multipart form that nobody has read yet is parsed apart, once, and left as it came: the view
    may read its bytes, or choose other upload handlers.
    """
    read = getattr(request, "_read_started", False) and not hasattr(request, "_body")
    is_multipart = (request.content_type or "").lower() == MULTIPART
    if request.method == "POST" and (read or not is_multipart or hasattr(request, "_post")):
        is_read_here = not (read or hasattr(request, "_body") or hasattr(request, "_post"))
        try:
            return request.POST, request.FILES
        finally:
            if is_read_here:
                hand_on(request)
    if not hasattr(request, _PARSED):
        setattr(request, _PARSED, _parsed_apart(request))
    fields: tuple[Any, MultiValueDict[str, Any]] = getattr(request, _PARSED)
    return fields


def _parsed_apart(request: HttpRequest) -> tuple[Any, MultiValueDict[str, Any]]:
    """Parse a form whose uploads are only hashed, and leave it to be parsed again."""
    spool(request)
    stream: Any = request._stream
    try:
        return MultiPartParser(request.META, stream, [_Hashing(request)], request.encoding).parse()
    finally:
        stream.seek(0)


def _pairs(body: bytes) -> list[tuple[str, str]] | None:
    """Return names and values of a URL-encoded form, None for more fields than Django takes."""
    try:
        return parse_qsl(
            body.decode("latin-1"),
            keep_blank_values=True,
            encoding="latin-1",
            max_num_fields=settings.DATA_UPLOAD_MAX_NUMBER_FIELDS,
        )
    except ValueError:
        return None


class _Hashed(UploadedFile):  # type: ignore[type-arg]
    """What is left of an upload that was hashed on its way."""

    def __init__(self, digest: str, name: str, content_type: str | None) -> None:
        super().__init__(None, name, content_type)
        self.digest = digest

    def close(self) -> None:
        """Do nothing: a parser that refuses the rest of a form closes what it has."""


class _Hashing(FileUploadHandler):
    """Hashes uploads, and keeps nothing of them."""

    def new_file(self, *args: Any, **kwargs: Any) -> None:
        """Begin the next upload."""
        super().new_file(*args, **kwargs)
        self._digest = hashlib.sha256()

    def receive_data_chunk(self, raw_data: bytes, start: int) -> None:
        """Take a piece of the upload."""
        self._digest.update(raw_data)

    def file_complete(self, file_size: int) -> Any:
        """Return the upload."""
        return _Hashed(self._digest.hexdigest(), str(self.file_name), self.content_type)


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
    if isinstance(upload, _Hashed):
        return upload.digest
    digest = hashlib.sha256()
    for chunk in upload.chunks():
        digest.update(chunk)
    upload.seek(0)
    return digest.hexdigest()


def _by_name(pairs: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Sort by name alone: the order of names is free, that within a name is not (R44)."""
    counted = [(name, value) for name, value in pairs if name != _CSRF_FIELD]
    return sorted(counted, key=lambda pair: pair[0])
