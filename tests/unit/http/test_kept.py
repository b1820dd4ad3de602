"""Section F, R55, R56, R62, R64: which answers are kept, and those that cannot be."""

from __future__ import annotations

import io
from typing import Any

import pytest
from django.http import FileResponse, HttpResponse, StreamingHttpResponse

from django_idempotency.exceptions import ResultTooLarge
from django_idempotency.http.calls import verdict_for
from django_idempotency.http.snapshot import SnapshotCodec
from django_idempotency.models import IdempotencyRecord
from django_idempotency.policy import HTTPPolicy
from tests.app.models import Effect
from tests.app.views import EffectView, Refusal
from tests.unit.http.api import bare_body, problem, replayed
from tests.unit.http.views import BESIDE, MISMATCH, WAYS, answering

# The verdicts.

RELEASED = {400, 401, 403, 404, 405, 406, 407, 408, 411, 413, 415, 425, 429}
STATUSES = [*range(200, 209), 226, *range(300, 309), *range(400, 432), 451, *range(500, 512), 599]


def default(status: int) -> str:
    if status >= 500:
        return "fail"
    return "release" if status in RELEASED else "keep"


@pytest.mark.parametrize(
    ("preset", "expected"),
    [
        ("default", default),
        ("success", lambda status: "keep" if status < 400 else "fail"),
        ("stripe", lambda status: "keep"),
    ],
)
def test_R55_R56_verdict_of_a_preset(preset, expected):
    policy = HTTPPolicy(keep=preset)
    for error in (None, Refusal(409)):
        found = {s: verdict_for(policy, HttpResponse(status=s), error) for s in STATUSES}
        assert found == {s: expected(s) for s in STATUSES}


@pytest.mark.parametrize(
    ("location", "login", "verdict"),
    [
        ("/login/?next=/a", "/login/", "release"),
        ("https://shop.example/login/", "/login/", "release"),
        ("/login/", "https://shop.example/login/", "keep"),
        ("/elsewhere/", "/login/", "keep"),
        ("/elsewhere/", "", "keep"),
    ],
)
def test_R34_redirect_to_the_login_page_is_never_kept(settings, location, login, verdict):
    settings.LOGIN_URL = login
    response = HttpResponse(status=302, headers={"Location": location})

    for preset in ("default", "success", "stripe"):
        assert verdict_for(HTTPPolicy(keep=preset), response, None) == verdict


def test_R56_keep_sees_the_response_and_the_exception():
    sent = HttpResponse(), Refusal(403)

    def keep(*given: Any) -> str:
        return "release" if given == sent else "fail"

    assert verdict_for(HTTPPolicy(keep=keep), *sent) == "release"


# What they come to.


@pytest.mark.django_db
@pytest.mark.parametrize(("then", "status"), [("returned", 400), ("raised", 403)])
def test_R55_nothing_was_executed_so_the_key_is_free(api, runs, status, then):
    refused = api.then(then, status=status)
    state = IdempotencyRecord.objects.values("state", "fingerprint").get()
    corrected = api({"name": "corrected"})

    assert refused.status_code == status
    assert "Idempotency-Stored" not in refused.headers
    assert state == {"state": "RELEASED", "fingerprint": None}
    assert (corrected.status_code, replayed(corrected)) == (201, False)
    assert runs == ["first", "corrected"]


class Judged(EffectView):
    """The body names the verdict."""

    def idempotency_keep(self, response: HttpResponse, exception: BaseException | None) -> Any:
        return self.request.data["keep"]


@pytest.mark.django_db(transaction=True)
@BESIDE
@pytest.mark.parametrize(
    ("then", "status", "verdict", "state", "commits"),
    [
        ("created", 201, "keep", "COMPLETED", True),
        ("created", 201, "release", "RELEASED", True),
        ("created", 201, "fail", "FAILED", False),
        ("raised", 500, "keep", "COMPLETED", False),
    ],
)
def test_R56_R57_keep_as_a_method(api, mount, mode, then, status, verdict, state, commits):
    url = mount(Judged)
    body = {"name": "a", "then": then, "status": status, "keep": verdict}

    first = api(body, path=url)
    record, effects = IdempotencyRecord.objects.get(), Effect.objects.count()
    again = api(body, path=url)

    assert first.status_code == again.status_code == status
    assert record.state == state
    assert effects == (mode == "separate" or commits)
    assert replayed(again) == (verdict == "keep")


@pytest.mark.django_db(transaction=True)
@BESIDE
def test_R56_another_verdict_keeps_nothing(api, mount, mode):
    with pytest.raises(ValueError, match="'maybe'"):
        api({"name": "a", "keep": "maybe"}, path=mount(Judged))

    assert IdempotencyRecord.objects.get().state == "FAILED"
    assert Effect.objects.count() == (mode == "separate")


# R62: streams, files, and responses that are too large: the codec alone.


class Counted(io.BytesIO):
    """A file that knows how much of it was asked for."""

    asked: Any = None

    def read(self, size: Any = -1) -> bytes:
        self.asked = size
        return super().read(size)


def encoded(response: Any, limit: int) -> int:
    return len(SnapshotCodec(max_bytes=limit).encode(response))


@pytest.mark.parametrize("kind", [HttpResponse, lambda body: FileResponse(io.BytesIO(body))])
def test_R62_limit_counts_all_that_is_stored(kind):
    """Status and header fields included, to the byte; a limit of 0 keeps nothing."""
    size = encoded(kind(b"x" * 100), 10_000)

    assert encoded(kind(b"x" * 100), size) == size > 100
    for limit in (size - 1, 100, 0):
        with pytest.raises(ResultTooLarge):
            encoded(kind(b"x" * 100), limit)


def test_R62_of_a_large_file_no_more_is_read_than_is_allowed():
    file = Counted(b"x" * 1000)
    file.seek(10)

    with pytest.raises(ResultTooLarge):
        encoded(FileResponse(file), 100)
    assert (file.asked, file.tell()) == (100, 10)


def test_R62_stream_is_not_consumed():
    drawn: list[bytes] = []
    response = StreamingHttpResponse(drawn.append(chunk) or chunk for chunk in (b"a", b"b"))

    with pytest.raises(TypeError):
        encoded(response, 100)
    assert drawn == []


# And in the guard.


@WAYS
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("then", "status", "limit"), [("stream", 200, None), ("created", 201, 1), ("raised", 409, 1)]
)
def test_R62_what_cannot_be_kept_is_delivered_and_protected(
    api, policy, mode, atomic_requests, runs, then, status, limit
):
    policy(**({"MAX_RESULT_BYTES": limit} if limit else {}))

    first = api.then(then, status=status)
    delivered = bare_body(first)
    retry, other = api.then(then, status=status), api({"name": "other"})

    assert first.status_code == status
    assert delivered == b"ab" if then == "stream" else delivered
    assert first.headers["Idempotency-Stored"] == "false"
    assert problem(retry) == (409, "result_unavailable")
    assert not replayed(retry)
    assert problem(other) == MISMATCH
    autocommit = mode == "separate" and not atomic_requests
    assert Effect.objects.count() == (then != "raised" or autocommit)
    assert len(runs) == 1
    assert IdempotencyRecord.objects.get().state == "COMPLETED"


@pytest.mark.django_db
def test_R55_R62_large_answer_that_is_not_kept_anyway(api, policy, runs):
    policy(MAX_RESULT_BYTES=1)

    first, again = api.then("invalid"), api.then("invalid")

    assert first.status_code == again.status_code == 400
    assert "Idempotency-Stored" not in first.headers
    assert len(runs) == 2


@pytest.mark.django_db
@pytest.mark.parametrize("source", ["file", "memory"])
def test_R62_file_is_kept_and_closed(api, mount, runs, tmp_path, source):
    path = tmp_path / "report.pdf"
    path.write_bytes(b"%PDF" + bytes(range(256)) * 40)
    expected = path.read_bytes()
    opened: Any = path.open("rb") if source == "file" else io.BytesIO(expected)
    answer = FileResponse(opened, as_attachment=True, filename="report.pdf")

    url = mount(answering(lambda request: answer))
    first = api(path=url)
    delivered = bare_body(first)
    path.unlink()
    again = api(path=url)

    assert delivered == bare_body(again) == expected
    assert opened.closed
    assert "Idempotency-Stored" not in first.headers
    assert replayed(again)
    for name in ("Content-Type", "Content-Disposition", "Content-Length"):
        assert again.headers[name] == first.headers[name]
    assert len(runs) == 1
