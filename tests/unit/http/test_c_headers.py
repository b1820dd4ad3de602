"""Section C, R30 and R31: the header fields of a replay."""

from __future__ import annotations

import gzip
from typing import Any

import pytest
from django.http import HttpResponse
from django.utils import translation

from django_idempotency.policy import HTTPPolicy, merge
from tests.unit.http.api import Api, problem, replayed
from tests.unit.http.conftest import InProgress, Mount, SetPolicy
from tests.unit.http.views import GuardedView, answering

pytestmark = pytest.mark.django_db

KEPT = {
    "Content-Type": "text/x-test",
    "Content-Language": "de",
    "Content-Disposition": "attachment",
    "Content-Encoding": "identity",
    "Location": "/there/",
    "Content-Location": "/here/",
    "ETag": '"1"',
    "Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT",
    "Link": '</next/>; rel="next"',
}
ALSO_KEPT = {
    "Content-Security-Policy": "frame-ancestors 'self'",
    "HX-Redirect": "/done/",
    "Refresh": "5; url=/done/",
    "Retry-After": "9",
    "X-Anything": "else",
    "Clear-Site-Data": '"cookies"',
}
NOT_KEPT = {
    "Date": "Wed, 21 Oct 2015 07:28:00 GMT",
    "Server": "test",
    "WWW-Authenticate": "Basic",
    "Access-Control-Allow-Origin": "https://shop.example",
    "Access-Control-Expose-Headers": "ETag",
    "Idempotency-Stored": "false",
    "X-RateLimit-Remaining": "9",
    "X-Rate-Limit-Reset": "9",
    "RateLimit": '"default";r=9',
    "RateLimit-Policy": '"default";q=9',
    "X-Request-Id": "request-1",
    "X-Correlation-ID": "request-1",
    "traceparent": "00-1-2-00",
    "Cache-Control": "max-age=9",
}
#: Not even if `replay_headers` names them.
NEVER_KEPT = [
    "Date",
    "Server",
    "WWW-Authenticate",
    "Access-Control-Allow-Origin",
    "Idempotency-Stored",
]
HOP_BY_HOP = {
    "Connection": "keep-alive",
    "Keep-Alive": "timeout=9",
    "Transfer-Encoding": "identity",
    "Upgrade": "h2c",
    "Trailer": "ETag",
    "TE": "trailers",
    "Proxy-Authenticate": "Basic",
}


def with_headers(headers: dict[str, str], **attributes: Any) -> type[GuardedView]:
    return answering(lambda request: HttpResponse(b"body", headers=headers), **attributes)


def test_R30_header_fields_of_the_view_are_kept(api: Api, mount: Mount) -> None:
    fields = {**KEPT, **ALSO_KEPT}
    url = mount(with_headers(fields))

    first, again = api(path=url), api(path=url)

    assert replayed(again)
    assert {name: first.headers[name] for name in fields} == fields
    assert {name: again.headers[name] for name in fields} == fields


def test_R30_vary_is_kept(api: Api) -> None:
    first, again = api(), api()

    assert "Accept" in first.headers["Vary"]
    assert again.headers["Vary"] == first.headers["Vary"]


@pytest.mark.parametrize("name", NOT_KEPT | HOP_BY_HOP)
def test_R30_header_that_is_never_kept(api: Api, mount: Mount, name: str) -> None:
    value = {**NOT_KEPT, **HOP_BY_HOP}[name]
    url = mount(with_headers({name: value}))

    first, again = api(path=url), api(path=url)

    assert first.headers[name] == value
    assert replayed(again)
    assert again.headers.get(name) != value


def test_R30_replay_headers_keep_more_and_drop(api: Api, policy: SetPolicy) -> None:
    policy(HTTP={"REPLAY_HEADERS": ["x-request-id", "-x-custom"]})

    first, again = api(), api()

    assert again.headers["X-Request-Id"] == first.headers["X-Request-Id"]
    assert "X-Custom" in first.headers
    assert "X-Custom" not in again.headers


def test_R30_header_that_is_dropped_today_is_dropped_from_older_records(
    api: Api, policy: SetPolicy
) -> None:
    api()
    policy(HTTP={"REPLAY_HEADERS": ["-X-Custom"]})

    assert "X-Custom" not in api().headers


@pytest.mark.parametrize("names", [["-"], ["a b"], ["X-A\r\nX-B"], [""], [5]])
def test_R30_replay_headers_are_names(api: Api, policy: SetPolicy, names: Any) -> None:
    with pytest.raises(ValueError, match="replay_headers must be names of header fields"):
        merge(HTTPPolicy(), {"replay_headers": names})


def test_R30_what_middleware_adds_is_on_the_replay_once(
    api: Api, mount: Mount, settings: Any
) -> None:
    """Outside of the guard: in the first answer and in the replay alike."""
    settings.MIDDLEWARE = [
        "django.middleware.security.SecurityMiddleware",
        "django.middleware.gzip.GZipMiddleware",
        "django.middleware.http.ConditionalGetMiddleware",
        "django.middleware.locale.LocaleMiddleware",
        "django.middleware.clickjacking.XFrameOptionsMiddleware",
    ]
    headers = {"Vary": "Cookie", "X-Frame-Options": "SAMEORIGIN"}
    url = mount(answering(lambda request: HttpResponse(b"a" * 500, headers=headers)))

    with translation.override(settings.LANGUAGE_CODE):  # LocaleMiddleware leaves its choice behind
        first, again = (api(path=url, headers={"Accept-Encoding": "gzip"}) for _ in range(2))

    assert replayed(again)
    assert first.headers["Vary"] == "Cookie, Accept, Accept-Language, Accept-Encoding"
    for name in ("Vary", "X-Frame-Options", "Content-Encoding", "Content-Language"):
        assert again.headers[name] == first.headers[name]
    assert gzip.decompress(again.content) == b"a" * 500


ELSEWHERE = ["X-Accel-Redirect", "x-sendfile", "X-LIGHTTPD-send-file", "X-LiteSpeed-Location"]


@pytest.mark.parametrize("name", ELSEWHERE)
@pytest.mark.parametrize("named", [(), ["-X-Accel-Redirect", "-X-Sendfile"]])
def test_R30_R62_body_that_is_elsewhere_counts_as_a_stream(
    api: Api, mount: Mount, runs: list[str], name: str, named: Any
) -> None:
    url = mount(with_headers({name: "/files/1"}, idempotency_replay_headers=named))

    first, again = api(path=url), api(path=url)

    assert first.headers[name] == "/files/1"
    assert first.headers["Idempotency-Stored"] == "false"
    assert problem(again) == (409, "result_unavailable")
    assert len(runs) == 1


@pytest.mark.parametrize("name", ELSEWHERE)
def test_R30_body_that_is_elsewhere_is_kept_where_the_field_is_named(
    api: Api, mount: Mount, name: str
) -> None:
    url = mount(with_headers({name: "/files/1"}, idempotency_replay_headers=[name.title()]))

    first, again = api(path=url), api(path=url)

    assert "Idempotency-Stored" not in first.headers
    assert replayed(again)
    assert again.headers[name] == "/files/1"


@pytest.mark.parametrize("name", [*NEVER_KEPT, *HOP_BY_HOP])
def test_R30_replay_headers_cannot_keep_what_is_not_the_answers(
    api: Api, mount: Mount, name: str
) -> None:
    value = {**NOT_KEPT, **HOP_BY_HOP}[name]
    url = mount(with_headers({name: value}, idempotency_replay_headers=[name]))

    api(path=url)

    assert api(path=url).headers.get(name) != value


def test_R30_cookies_are_the_first_callers(api: Api, policy: SetPolicy) -> None:
    policy(HTTP={"REPLAY_HEADERS": ["Set-Cookie"]})

    first, again = api(), api()

    assert "seen" in first.cookies
    assert not again.cookies
    assert "Set-Cookie" not in again.headers


def test_R31_replays_and_conflicts_are_not_stored(api: Api, in_progress: InProgress) -> None:
    api()
    replay, reused = api(), api({"name": "other"})
    in_progress()
    outstanding = api()

    assert replayed(replay)
    assert reused.status_code == 422
    assert outstanding.status_code == 409
    for response in (replay, reused, outstanding):
        assert response.headers["Cache-Control"] == "no-store"


def test_R31_no_store_replaces_what_the_view_said(api: Api, mount: Mount) -> None:
    url = mount(with_headers({"Cache-Control": "public, max-age=60"}))

    first, again = api(path=url), api(path=url)

    assert first.headers["Cache-Control"] == "public, max-age=60"
    assert again.headers["Cache-Control"] == "no-store"
