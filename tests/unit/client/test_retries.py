"""What each client sends again, with which key, and what it takes for the result."""

from __future__ import annotations

import asyncio
import email.utils
import gzip
import io
import json
import pickle
import subprocess
import sys
import time
import uuid

import httpx
import pytest
import requests

from django_idempotency.client import Problem, RetryPolicy, policy, problem_of
from django_idempotency.client.httpx import AsyncIdempotencyTransport, IdempotencyTransport
from django_idempotency.client.requests import IdempotencyAdapter
from tests.services.scripted import BROKEN, SILENT, scripted

JSON, PROBLEM = ({"Content-Type": f"application/{name}"} for name in ("json", "problem+json"))
#: A body that breaks off.
CUT = {"Content-Length": "100"}
IN_PROGRESS = {"code": "in_progress", "retryable": True, "safe_new_key": False}
REUSED = {"code": "idempotency_key_reused", "retryable": False, "safe_new_key": False}
GZIP = {**PROBLEM, "Content-Encoding": "gzip"}
LATER = {"Retry-After": "999"}
DONE = (201, {}, b"done")

RETRIED = {
    "no answer": (BROKEN,),
    "half an answer": (201, CUT, b"do"),
    "a gateway": (502,),
    "too many requests": (429, {"Retry-After": "0"}),
    "in progress": (409, {**PROBLEM, "Retry-After": "0"}, IN_PROGRESS),
    "in progress, by an error_renderer": (409, JSON, IN_PROGRESS),
    "in progress, by GZipMiddleware": (409, GZIP, gzip.compress(json.dumps(IN_PROGRESS).encode())),
}
RESULTS = {
    "refused by the API": (409, JSON, b'{"detail": "sold out"}'),
    "refused by the API, which has such a member": (409, JSON, b'{"retryable": true}'),
    "a mismatch": (422, PROBLEM, json.dumps(REUSED).encode()),
    "a problem that no retry mends": (503, PROBLEM, json.dumps(REUSED).encode()),
    "an error that is kept": (503, {"Idempotency-Replayed": "true"}, b"kept"),
    "an error of a view that ran unguarded": (503, {"Idempotency-Stored": "false"}, b"twice"),
    "a bug": (500, {}, b"oops"),
    "not JSON": (409, PROBLEM, b"["),
    "after the time is up": (503, LATER, b"later"),
    "after that date": (503, {"Retry-After": "Fri, 31 Dec 2100 23:59:59 GMT"}, b"later"),
}


def test_an_unsafe_request_is_sent_with_one_key_until_there_is_an_answer(send):
    with scripted([*RETRIED.values(), DONE]) as server:
        assert send(server.url, body='{"amount": 5}', policy={"backoff": 0}) == (201, "done")

    assert (len(server.seen), len(set(server.seen))) == (len(RETRIED) + 1, 1)
    assert server.seen[0].body == b'{"amount": 5}'
    assert uuid.UUID(server.seen[0].key.strip('"'))


def test_an_unsafe_request_that_gets_no_answer_in_time_is_sent_again_with_its_key(send):
    with scripted([(SILENT,), *[DONE] * 50]) as server:  # any of them may come too late
        assert send(server.url, seconds=0.5, policy={"backoff": 0}) == (201, "done")

    assert (len(server.seen) > 1, len(set(server.seen))) == (True, 1)


@pytest.mark.parametrize("answer", RESULTS.values(), ids=RESULTS)
def test_an_answer_that_asks_for_no_retry_is_the_result(send, answer):
    with scripted([answer]) as server:
        assert send(server.url) == (answer[0], answer[2].decode())


def test_the_callers_own_key_is_kept_and_calls_without_one_get_different_keys(send):
    with scripted([(BROKEN,), DONE, DONE, DONE]) as server:
        send(server.url, headers={"Idempotency-Key": "order-1"})
        send(server.url)
        send(server.url, method="POST")

    keys = [request.key for request in server.seen]
    assert (keys[:2], len(set(keys))) == (["order-1", "order-1"], 3)


def test_a_safe_request_is_sent_again_without_a_key(send):
    with scripted([(BROKEN,), (503,), DONE]) as server:
        assert send(server.url, method="GET") == (201, "done")

    assert [request.key for request in server.seen] == [None] * 3


@pytest.mark.parametrize("answers", [[(BROKEN,)], [(503, {}, b"")]], ids=["broken", "503"])
def test_a_body_that_cannot_be_sent_again_is_sent_once_with_a_key(send, answers):
    with scripted(answers) as server:
        result = send(server.url, body="streamed", streamed=True)

    assert result in (None, (503, ""))
    assert (len(server.seen), server.seen[0].key is None) == (1, False)


def test_a_body_that_the_server_does_not_keep_is_left_to_the_caller(send):
    """R62: a retry would be told `result_unavailable`."""
    with scripted([(200, {**CUT, "Idempotency-Stored": "false"}, b"strea")]) as server:
        assert send(server.url) is None

    assert len(server.seen) == 1


@pytest.mark.parametrize(("answer", "result"), [((BROKEN,), None), ((503, {}, b"x"), (503, "x"))])
def test_the_last_of_all_attempts_is_the_result(send, answer, result):
    with scripted([answer] * 3) as server:
        assert send(server.url, policy={"attempts": 3}) == result

    with scripted([answer]) as server:
        assert send(server.url, policy={"seconds": 0, "backoff": 1}) == result


def test_fetch_sends_a_generator_once(by_fetch):
    """Its second reading is empty: another request, under the same key."""
    with scripted([(503, {}, b"later")]) as server:
        result = by_fetch(server.url, {}, method="POST", headers={}, body="5", generated=True)

    assert (result, len(server.seen)) == ((503, "later"), 1)


def test_fetch_ends_a_pause_when_it_is_aborted_and_tries_no_wrong_call_again(by_fetch):
    pay, began = {"method": "POST", "headers": {}, "body": "5"}, time.monotonic()
    with scripted([(503, {"Retry-After": "100"})]) as server:
        assert by_fetch(server.url, {}, **pay, abortAfter=200) == (0, "aborted")

    patient = {"backoff": 100, "maxBackoff": 100, "seconds": 110}
    assert by_fetch(server.url, patient, **pay | {"method": "GET"}, abortAfter=100_000) is None
    assert time.monotonic() - began < 60


def test_requests_sends_a_file_again_from_where_it_stood():
    file = io.BytesIO(b"0123456789")
    file.seek(4)
    with scripted([(BROKEN,), DONE]) as server, requests.Session() as session:
        session.mount("http://", IdempotencyAdapter(policy=RetryPolicy(backoff=0)))
        session = pickle.loads(pickle.dumps(session))
        assert session.post(server.url, data=file).status_code == 201

    assert [request.body for request in server.seen] == [b"456789"] * 2


def test_requests_leaves_a_streamed_body_to_read_and_tells_the_key_of_half_an_answer():
    report = {"Content-Encoding": "gzip", "Set-Cookie": "seen=yes"}
    answers = [
        (503, GZIP, b"no gzip"),
        (201, report, gzip.compress(b"report")),
        *[(201, CUT, b"do")] * 2,
    ]
    with scripted(answers) as server, requests.Session() as session:
        session.mount("http://", IdempotencyAdapter(policy=RetryPolicy(attempts=2, backoff=0)))
        answer = session.post(server.url, stream=True)
        assert answer.raw.read(decode_content=True) == b"report"
        assert session.cookies["seen"] == "yes"

        with pytest.raises(requests.exceptions.ChunkedEncodingError) as raised:
            session.post(server.url)

    assert raised.value.request.headers["Idempotency-Key"] == server.seen[-1].key


@pytest.fixture
def pauses(monkeypatch):
    """`pauses(*answers)`: the seconds before each retry, at the random part's longest."""
    monkeypatch.setattr(policy.random, "uniform", lambda low, high: high)
    monkeypatch.setattr(policy.time, "monotonic", lambda: 0.0)

    def pauses(*fields, **given):
        retries = policy.Attempts(RetryPolicy(**given), "POST", keyed=True, repeatable=True)
        return [retries.pause_after_answer(503, {"Retry-After": it}, b"") for it in fields]

    return pauses


def test_a_pause_doubles_and_comes_after_what_the_server_asks_for(pauses):
    soon = email.utils.formatdate(time.time() + 100, usegmt=True)

    assert pauses("", "", "", "", max_backoff=1) == [0.25, 0.5, 1, 1]
    assert pauses("7", "-1", "soon", "9" * 5000) == [7.25, 0.5, 1, None]
    assert 50 < pauses(soon)[0] < 101
    assert pauses("119", "120") == [119.25, None]
    assert pauses("", "", "", attempts=3) == [0.25, 0.5, None]


def test_a_request_without_a_key_and_a_refused_certificate_are_not_tried_again():
    import ssl

    keyless = policy.Attempts(RetryPolicy(), "POST", keyed=False, repeatable=True)
    assert keyless.pause_after_error(TimeoutError()) is None

    def attempts():
        return policy.Attempts(RetryPolicy(), "GET", keyed=False, repeatable=True)

    refused = ssl.SSLCertVerificationError()
    chained = httpx.ConnectError("refused")
    chained.__cause__ = refused
    for error in (chained, requests.exceptions.SSLError(refused)):
        assert attempts().pause_after_error(error) is None
    assert attempts().pause_after_error(requests.exceptions.SSLError("cut off")) is not None


@pytest.mark.parametrize("wrong", [{"attempts": 0}, {"backoff": -1}, {"seconds": float("nan")}])
def test_a_policy_says_what_is_wrong_with_it(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}="):
        RetryPolicy(**wrong)


def test_R78_the_problem_of_a_response_says_whether_a_new_key_is_safe():
    def told(members):
        body = json.dumps({**members, "detail": "why"}).encode()
        return problem_of(httpx.Response(422, headers=JSON, content=body))

    assert problem_of(httpx.Response(200, json=[])) is None
    assert told(REUSED) == Problem("idempotency_key_reused", False, False, "why")
    missing = {"code": "idempotency_key_missing", "retryable": False, "safe_new_key": True}
    assert told(missing) == Problem("idempotency_key_missing", False, True, "why")


def test_a_client_needs_no_Django():
    modules = ("client", "client.httpx", "client.requests")
    code = "import sys; sys.modules['django'] = None\n" + "".join(
        f"import django_idempotency.{name}\n" for name in modules
    )
    subprocess.run([sys.executable, "-c", code], check=True)


class Entered(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """A transport that opens what it needs when its client is entered."""

    def __init__(self):
        self.left = []

    def __enter__(self):
        self.left = None
        return self

    def __exit__(self, *exc_info):
        self.left = exc_info

    async def __aenter__(self):
        return self.__enter__()

    async def __aexit__(self, *exc_info):
        self.__exit__(*exc_info)


def test_a_transport_is_entered_and_left_with_its_client():
    inner, error = Entered(), ValueError("boom")

    def fail():
        with httpx.Client(transport=IdempotencyTransport(inner)):
            assert inner.left is None
            raise error

    with pytest.raises(ValueError, match="boom"):
        fail()

    assert inner.left[1] is error


def test_a_transport_is_entered_and_left_with_its_client_of_coroutines():
    inner, error = Entered(), ValueError("boom")

    async def main():
        async with httpx.AsyncClient(transport=AsyncIdempotencyTransport(inner)):
            assert inner.left is None
            raise error

    with pytest.raises(ValueError, match="boom"):
        asyncio.run(main())

    assert inner.left[1] is error
