"""What there is of the rules on the tests' own views: all that can be seen from outside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from django_idempotency.testing.http_contract import Call, HTTPContract, multipart
from tests.unit.views.urls import FREE, GUARDED

RELEASED = (400, 401, 403, 404, 405, 406, 407, 408, 411, 413, 415, 425, 429)


class OnWork(HTTPContract):
    """Counts and lets go what the views of these tests do."""

    #: Where the views are told to go on, by a file.
    directory: Path
    alice = {"X-User": "alice"}
    bob = {"X-User": "bob"}
    rolls_back = True
    free_member = "value"
    timeout = patience = 60

    def effects(self, tag: str) -> int:
        return int(self.ask(Call(f"/?name={tag}", method="GET"), None).json["count"])

    def let_go(self, tag: str) -> None:
        (self.directory / f"{tag}.go").touch()


def _to(path: str, then: str = "created", **body: Any) -> Any:
    """Return what makes a call to a view that is to do that."""
    return lambda self, tag: self.to(path, tag, then, **body)


class Views(OnWork):
    """Views of Django REST framework, by what their policy is; and all the other kinds."""

    alice_forbidden = {"X-User": "alice", "X-Forbidden": "1"}
    alice_throttled = {"X-User": "alice", "X-Throttled": "1"}
    other_media_type = "text/html"
    replay_headers = ["X-Custom"]
    lease = 8
    renewed_lease = 4

    create = _to("/effects/")
    optional = _to("/optional/")
    strict = _to("/strict/")
    only_uuids = _to("/uuids/")
    echoing = _to("/echo/")
    elsewhere = _to("/elsewhere/")
    adorned = _to("/adorned/")
    compared_as_bytes = _to("/as-bytes/")
    uncompared = _to("/uncompared/")
    mutating = _to("/effects/", "mutated")
    held = _to("/lease/", "held")
    waiting = _to("/waiting/", "held")
    waiting_for_a_failure = _to("/waiting/", "first_failing")
    raising = _to("/effects/", "raised", status=409)
    refusing = _to("/effects/", "returned", status=403)
    failing_after_commit = _to("/effects/", "hook_boom")
    unwritable = _to("/incomplete/")
    unwritable_separate = _to("/incomplete/separate/")
    unreachable = _to("/down/")
    unreachable_open = _to("/down/open/")
    lapsing = _to("/lapsing/", "first_held")
    lapsing_failure = _to("/lapsing/", "first_failing")
    renewed = _to("/renewed/", "held")
    refusing_stale = _to("/stale/", "first_held")
    short_lived = _to("/short/")
    hooked = _to("/effects/", "hook")
    hooked_failure = _to("/effects/", "hook_of_a_failure")
    unscoped = optional

    def to(self, path: str, tag: str, then: str = "created", **body: Any) -> Call:
        return Call(path, {"name": tag, "then": then, **body})

    def other_methods(self, tag: str) -> Sequence[Call]:
        return [self.create(tag).but(method=method) for method in ("PUT", "PATCH", "DELETE")]

    def open_methods(self, tag: str) -> Sequence[Call]:
        others = self.to("/only-post/", tag)
        behind_the_middleware = self.to("/kinds/free-function/", tag)
        return [
            *(others.but(method=method) for method in ("PUT", "PATCH", "DELETE")),
            *(behind_the_middleware.but(method=method) for method in ("PUT", "DELETE")),
        ]

    def unread(self, tag: str) -> Mapping[int, Call]:
        call = self.create(tag)
        return {
            404: call.but(path="/nowhere/"),
            405: call.but(path="/read-only/"),
            406: call.but(headers=[("Accept", "application/x-unknown")]),
            415: call.but(content_type="text/x-unknown"),
        }

    def doubly_guarded(self, tag: str) -> Mapping[str, Call]:
        return {"decorators, middleware": Call(f"/twice/?name={tag}"), "mixin": self.create(tag)}

    def kinds(self, tag: str) -> Mapping[str, Call]:
        return {name: Call(f"/kinds/{name}/", {"name": tag}) for name in (*GUARDED, *FREE)}

    def scoped_by_endpoint(self, tag: str) -> tuple[Call, Call]:
        return self.to("/by-endpoint/one/", tag), self.to("/by-endpoint/other/", tag)

    def successes(self, tag: str) -> Mapping[int, Call]:
        thens = {202: "accepted", 204: "empty", 303: "redirect"}
        return {status: self.to("/effects/", tag, then) for status, then in thens.items()}

    def bodies(self, tag: str) -> Mapping[str, Call]:
        thens = ("binary", "compressed", "invalid_utf8")
        return {then: self.to("/effects/", tag, then) for then in thens}

    def conditional(self, tag: str) -> Call:
        return Call("/versions/", {"name": tag}, "PUT", headers=[("If-Match", '"0"')])

    def checked(self, tag: str) -> tuple[Call, Call]:
        refused = self.to("/checked/", tag)
        return refused.but(headers=[("X-Allowed", "1")]), refused

    def addressed(self, tag: str) -> tuple[Call, Call]:
        return self.to("/effects/1/", tag), self.to("/effects/2/", tag)

    def upload(self, tag: str, content: bytes, boundary: str) -> Call:
        files = [("file", "a.bin", "application/octet-stream", content)]
        body, kind = multipart([("name", tag)], files, boundary)
        return Call("/form/", body, content_type=kind)

    def raw_upload(self, tag: str, content: bytes) -> Call:
        return Call(f"/raw/?name={tag}", content, content_type="application/octet-stream")

    def form(self, tag: str, pairs: Sequence[tuple[str, str]]) -> Call:
        return Call("/form/", [("name", tag), *pairs])

    def excluding(self, tag: str, value: str) -> Call:
        return self.to("/excluding/", tag, value={"noise": value, "kept": 1})

    def comparing_a_header(self, tag: str, value: str) -> Call:
        return self.to("/by-version/", tag).but(headers=[("X-Version", value)])

    def any_body(self, tag: str, body: bytes) -> Call:
        return Call(f"/any/{tag}/", body)

    def kept_errors(self, tag: str) -> Mapping[int, Call]:
        return self.returning("/effects/", tag, 402, 409, 410, 412, 418, 422, 451)

    def released_errors(self, tag: str) -> Mapping[int, Call]:
        return self.returning("/effects/", tag, *RELEASED)

    def failures(self, tag: str) -> Mapping[int, Call]:
        return {**self.returning("/effects/", tag, 503), 500: self.to("/effects/", tag, "boom")}

    def returning(self, path: str, tag: str, *statuses: int) -> Mapping[int, Call]:
        return {status: self.to(path, tag, "returned", status=status) for status in statuses}

    def presets(self, tag: str) -> Mapping[str, Mapping[int, Call]]:
        statuses = (200, 303, 400, 409, 500)
        return {name: self.returning(f"/{name}/", tag, *statuses) for name in ("success", "stripe")}

    def optional_answers(self, tag: str) -> Mapping[int, Call]:
        calls = self.returning("/optional/", tag, 201, 403, 409, 503)
        return {**calls, 422: self.to("/optional/", tag, "raised", status=422)}

    def unkept(self, tag: str) -> Mapping[str, Call]:
        return {then: self.to("/effects/", tag, then) for then in ("stream", "large")}

    def files(self, tag: str) -> Mapping[str, Call]:
        return {then: self.to("/effects/", tag, then) for then in ("file", "file_in_memory")}

    def falsy(self, tag: str) -> Mapping[str, Call]:
        values: tuple[Any, ...] = (0, "", [], {}, None, False)
        return {repr(value): self.to("/effects/", tag, "value", value=value) for value in values}

    def rendered(self, tag: str) -> tuple[Call, str]:
        return self.to("/rendered/", tag), "text/plain"

    def long_path(self, tag: str, tail: str) -> Call:
        return self.to(f"/long/{tail}", tag)

    def hooks(self, tag: str) -> int:
        return self.effects(f"hook%20of%20{tag}")


class Coroutines(OnWork):
    """An asynchronous view of plain Django."""

    takes_chunks = True
    leaves_out = {
        "test_R14_a_stranger_claims_no_key_and_gets_no_stored_body": "the view is open to strangers"
    }

    def create(self, tag: str) -> Call:
        return Call("/coroutine/", {"name": tag})

    def held(self, tag: str) -> Call:
        return Call("/coroutine/", {"name": tag, "then": "held"})
