"""Section C, R30 and R31: the header fields of a replay."""

from __future__ import annotations

from typing import Any

import pytest
from django.http import HttpResponse

from tests.http.api import Api, replayed
from tests.http.conftest import InProgress, Mount, SetPolicy
from tests.http.views import GuardedView, answering

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
NOT_KEPT = {
    "Date": "Wed, 21 Oct 2015 07:28:00 GMT",
    "Server": "test",
    "WWW-Authenticate": "Basic",
    "Access-Control-Allow-Origin": "https://shop.example",
    "Access-Control-Expose-Headers": "ETag",
    "X-RateLimit-Remaining": "9",
    "RateLimit": '"default";r=9',
    "X-Request-Id": "request-1",
    "X-Anything": "else",
    "Retry-After": "9",
    "Cache-Control": "max-age=9",
}
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


@pytest.mark.parametrize("name", KEPT)
def test_R30_kept_header(api: Api, mount: Mount, name: str) -> None:
    url = mount(with_headers({name: KEPT[name]}))

    first, again = api(path=url), api(path=url)

    assert first.headers[name] == KEPT[name]
    assert replayed(again)
    assert again.headers[name] == KEPT[name]


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


@pytest.mark.parametrize(("status", "kept"), [(200, None), (201, None), (202, "7")])
def test_R30_retry_after_is_kept_with_202(
    api: Api, mount: Mount, status: int, kept: str | None
) -> None:
    url = mount(
        answering(lambda request: HttpResponse(status=status, headers={"Retry-After": "7"}))
    )

    first, again = api(path=url), api(path=url)

    assert first.headers["Retry-After"] == "7"
    assert again.headers.get("Retry-After") == kept


def test_R30_replay_headers_keeps_more(api: Api, policy: SetPolicy) -> None:
    policy(HTTP={"REPLAY_HEADERS": ["x-custom"]})

    first, again = api(), api()

    assert again.headers["X-Custom"] == first.headers["X-Custom"]
    assert "X-Request-Id" not in again.headers


@pytest.mark.parametrize(
    "name", ["Date", "Server", "WWW-Authenticate", "Access-Control-Allow-Origin", *HOP_BY_HOP]
)
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
