"""What a contract declares of an API."""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from django_idempotency.testing.http_contract.wire import Answer, Call, SocketTransport, Transport

Test = TypeVar("Test", bound=Callable[..., None])
Method = TypeVar("Method", bound=Callable[..., Any])
Answering = Mapping[int, Call]


@dataclass(frozen=True)
class Page:
    """A page with a form: where it is, and what a visitor fills in."""

    path: str
    fields: Sequence[tuple[str, str]]


def needs(*names: str) -> Callable[[Test], Test]:
    """Say what an API must have for this rule to be run."""

    def mark(test: Test) -> Test:
        test._needs = names  # type: ignore[attr-defined]
        return test

    return mark


def _undeclared(method: Method) -> Method:
    """Mark an optional declaration; without it the rules that need it do not run."""
    method._undeclared = True  # type: ignore[attr-defined]
    return method


def is_declared(cls: type[Declared], name: str) -> bool:
    """Return whether a subclass declares this name."""
    value = inspect.getattr_static(cls, name)
    return value is not None and value is not False and not getattr(value, "_undeclared", False)


class Declared:
    """
    The declarations of a subclass about its API; rules that need a missing one do not run.

    A `tag` is a short text of hexadecimal digits that belongs to one test. A method that takes a
    tag returns a call whose effects `effects` counts by this tag.
    """

    #: The URL of the API, without a slash at the end.
    base_url: str = ""
    #: How calls get there: over sockets, or in this process (`WSGITransport`, `ASGITransport`).
    transport: Transport = SocketTransport()

    # How callers say who they are: header fields. None is a caller that the API does not have.
    alice: Mapping[str, str] | None = None
    nobody: Mapping[str, str] | None = None
    bob: Mapping[str, str] | None = None
    #: Alice with another token.
    alice_refreshed: Mapping[str, str] | None = None
    #: Alice, once she has lost the permission to do this: 403.
    alice_forbidden: Mapping[str, str] | None = None
    #: Alice, once she has asked too often: 429.
    alice_throttled: Mapping[str, str] | None = None

    # Names and statuses that the API has chosen.
    header: str = "Idempotency-Key"
    replay_header: str = "Idempotency-Replayed"
    in_progress_status: int = 409
    mismatch_status: int = 422

    #: Whether `create` answers 400 without a key.
    required: bool = True
    #: Whether the body of `create` is a JSON object.
    takes_json: bool = True
    #: A member that the body of `create` may have, and whose value can be anything.
    free_member: str | None = None
    #: Whether a body may come in chunks (not under WSGI).
    takes_chunks: bool = False
    #: A media type that `create` has besides its own.
    other_media_type: str | None = None
    #: The header fields of `adorned` that a replay has, those of `REPLAY_HEADERS` included.
    replay_headers: Sequence[str] = ()
    #: Whether work and answer commit together (`joined`, `single`).
    rolls_back: bool = False
    #: Whether each request has a transaction (`ATOMIC_REQUESTS`).
    atomic_requests: bool = False
    #: Seconds of the lease of `held`, if they are few; starting after a crash takes less.
    lease: float | None = None
    #: Seconds of the lease of `renewed`, or more.
    renewed_lease: float = 2
    #: Seconds that an answer may take, and that work which is held keeps others waiting.
    timeout: float = 30
    patience: float = 10

    #: Rules or tests that are not to run, and why.
    leaves_out: ClassVar[Mapping[str, str]] = {}

    def sign(self, user: str, field: str | None, payload: bytes) -> Mapping[str, str]:
        """
        Return the header fields with which a caller says who it is: those that `user` has.

        `field` is the value of the key's header field, None without one.
        """
        fields: Mapping[str, str] | None = getattr(self, user)
        return fields or {}

    # What each API has.

    def create(self, tag: str) -> Call:
        """Return a call that creates something, at an endpoint that is guarded."""
        raise NotImplementedError

    def effects(self, tag: str) -> int:
        """Return how many things there are that a call with this tag has created."""
        raise NotImplementedError

    def create_as_bob(self, tag: str) -> Call:
        """Return a call that creates something for Bob."""
        return self.create(tag)

    # What an API may have.

    @_undeclared
    def optional(self, tag: str) -> Call:
        """Return a call to an endpoint at which a key may be left out."""

    @_undeclared
    def strict(self, tag: str) -> Call:
        """Return a call to an endpoint with `STRICT_HEADER`."""

    @_undeclared
    def only_uuids(self, tag: str) -> Call:
        """Return a call to an endpoint whose `KEY_VALIDATOR` is "uuid"."""

    @_undeclared
    def other_methods(self, tag: str) -> Sequence[Call]:
        """Return calls by other unsafe methods than that of `create`, to the same path."""

    @_undeclared
    def open_methods(self, tag: str) -> Sequence[Call]:
        """Return calls by unsafe methods that are not guarded."""

    @_undeclared
    def unread(self, tag: str) -> Answering:
        """Return calls that are refused before any work, by status: 404, 405, 406, 415, 400."""

    @_undeclared
    def echoing(self, tag: str) -> Call:
        """Return a call to an endpoint with `ECHO_KEY`."""

    @_undeclared
    def doubly_guarded(self, tag: str) -> Mapping[str, Call]:
        """Return calls to views that several guards stand before: decorator, middleware, mixin."""

    @_undeclared
    def kinds(self, tag: str) -> Mapping[str, Call]:
        """Return calls to views of every kind, by name."""

    @_undeclared
    def unscoped(self, tag: str) -> Call:
        """Return a call to an endpoint that serves strangers, and has no scope for them."""

    @_undeclared
    def elsewhere(self, tag: str) -> Call:
        """Return a call to another guarded endpoint."""

    @_undeclared
    def scoped_by_endpoint(self, tag: str) -> tuple[Call, Call]:
        """Return calls to two endpoints with `SCOPE_ENDPOINT`."""

    @_undeclared
    def change(self, first: Answer) -> None:
        """Change the object that `create` has created, so that a new answer would differ."""

    @_undeclared
    def successes(self, tag: str) -> Answering:
        """Return calls that are answered by other successes than 200 and 201: 202, 204, 303."""

    @_undeclared
    def bodies(self, tag: str) -> Mapping[str, Call]:
        """Return calls whose answers are no text: compressed, or not even UTF-8."""

    @_undeclared
    def adorned(self, tag: str) -> Call:
        """Return a call that is answered with Location, ETag, X-Request-Id and a cookie."""

    @_undeclared
    def conditional(self, tag: str) -> Call:
        """Return a call with If-Match that, run again, would be answered 412."""

    @_undeclared
    def checked(self, tag: str) -> tuple[Call, Call]:
        """Return a call twice: `REPLAY_CHECK` lets the first one pass, and not the second."""

    @_undeclared
    def addressed(self, tag: str) -> tuple[Call, Call]:
        """Return the same call to two things of one kind."""

    @_undeclared
    def compared_as_bytes(self, tag: str) -> Call:
        """Return a call with JSON to an endpoint whose `FINGERPRINT` is "raw"."""

    @_undeclared
    def uncompared(self, tag: str) -> Call:
        """Return a call with JSON to an endpoint whose `FINGERPRINT` is None."""

    @_undeclared
    def upload(self, tag: str, content: bytes, boundary: str) -> Call:
        """Return a call that uploads a file in a multipart form with this boundary."""

    @_undeclared
    def raw_upload(self, tag: str, content: bytes) -> Call:
        """Return a call whose body is a file."""

    @_undeclared
    def form(self, tag: str, pairs: Sequence[tuple[str, str]]) -> Call:
        """Return a call whose body is a form with these pairs among others."""

    @_undeclared
    def excluding(self, tag: str, value: str) -> Call:
        """Return a call in whose body `FINGERPRINT_EXCLUDE` leaves out the value."""

    @_undeclared
    def comparing_a_header(self, tag: str, value: str) -> Call:
        """Return a call with a header field that `FINGERPRINT_HEADERS` names."""

    @_undeclared
    def any_body(self, tag: str, body: bytes) -> Call:
        """Return a call to an endpoint that takes any body of the type JSON."""

    @_undeclared
    def mutating(self, tag: str) -> Call:
        """Return a call to a view that changes what it was sent."""

    @_undeclared
    def held(self, tag: str) -> Call:
        """
        Return a call whose work goes on when `let_go` was called, or takes a second or two.

        Other work does not wait for it.
        """

    def let_go(self, tag: str) -> None:
        """Let the work of every call with this tag go on, now and later."""

    @_undeclared
    def waiting(self, tag: str) -> Call:
        """Return a call that is held, at an endpoint with `WAIT` of 5 seconds or more."""

    @_undeclared
    def waiting_for_a_failure(self, tag: str) -> Call:
        """Return a call like `waiting`, whose first run fails."""

    @_undeclared
    def kept_errors(self, tag: str) -> Answering:
        """Return calls that are answered by errors of the domain, by status."""

    @_undeclared
    def released_errors(self, tag: str) -> Answering:
        """Return calls that are answered by errors after which the key is free, by status."""

    @_undeclared
    def failures(self, tag: str) -> Answering:
        """Return calls that are answered by 5xx after their work was done, by status."""

    @_undeclared
    def presets(self, tag: str) -> Mapping[str, Answering]:
        """Return calls to endpoints whose `KEEP` is "success" and "stripe", by preset."""

    @_undeclared
    def raising(self, tag: str) -> Call:
        """Return a call whose work is done, and then raises an error of the domain."""

    @_undeclared
    def refusing(self, tag: str) -> Call:
        """Return a call whose work is done, and whose error leaves the key free."""

    @_undeclared
    def optional_answers(self, tag: str) -> Answering:
        """Return calls whose work is done and that need no key, by the status of their answer."""

    @_undeclared
    def failing_after_commit(self, tag: str) -> Call:
        """Return a call whose `on_commit` hook raises."""

    @_undeclared
    def crash(self) -> None:
        """Kill the API's server by SIGKILL, and return when it serves again."""

    @_undeclared
    def unwritable(self, tag: str) -> Call:
        """Return a call whose completion cannot be written, with `joined` or `single`."""

    @_undeclared
    def unwritable_separate(self, tag: str) -> Call:
        """Return a call whose completion cannot be written, with `separate`."""

    @_undeclared
    def unreachable(self, tag: str) -> Call:
        """Return a call to an endpoint whose store is down."""

    @_undeclared
    def unreachable_open(self, tag: str) -> Call:
        """Return a call to an endpoint whose store is down, with `FAIL_OPEN`."""

    @_undeclared
    def unkept(self, tag: str) -> Mapping[str, Call]:
        """Return calls whose answers are streams, or too large to keep."""

    @_undeclared
    def files(self, tag: str) -> Mapping[str, Call]:
        """Return calls whose answers are files."""

    @_undeclared
    def falsy(self, tag: str) -> Mapping[str, Call]:
        """Return calls whose answers are falsy: 0, "", [], {}, null."""

    @_undeclared
    def lapsing(self, tag: str) -> Call:
        """
        Return a call whose first run is held, under a short lease that is not renewed.

        Later runs are not held.
        """

    @_undeclared
    def lapsing_failure(self, tag: str) -> Call:
        """Return a call like `lapsing`, whose first run fails in the end."""

    @_undeclared
    def renewed(self, tag: str) -> Call:
        """Return a call that is held, under a lease of `renewed_lease` that is renewed."""

    @_undeclared
    def refusing_stale(self, tag: str) -> Call:
        """Return a call like `lapsing` to an endpoint whose `ON_STALE` is "refuse"."""

    @_undeclared
    def short_lived(self, tag: str) -> Call:
        """Return a call to an endpoint whose `RETENTION` is a few seconds."""

    @_undeclared
    def rendered(self, tag: str) -> tuple[Call, str]:
        """Return a call to an endpoint with an `ERROR_RENDERER`, and what that one's type is."""

    @_undeclared
    def log(self) -> str:
        """Return what the server has written so far."""

    @_undeclared
    def long_path(self, tag: str, tail: str) -> Call:
        """Return a call to a path that ends in this tail."""

    @_undeclared
    def hooked(self, tag: str) -> Call:
        """Return a call that has an `on_commit` hook."""

    @_undeclared
    def hooked_failure(self, tag: str) -> Call:
        """Return a call that fails after it has asked for an `on_commit` hook."""

    @_undeclared
    def hooks(self, tag: str) -> int:
        """Return how often the hook of `hooked` has run."""

    @_undeclared
    def page(self, tag: str) -> Page:
        """Return a page for visitors whose form has `{% idempotency_key %}`."""

    @_undeclared
    def held_page(self, tag: str) -> Page:
        """Return a page like `page`; what its form does goes on when `let_go` was called."""
