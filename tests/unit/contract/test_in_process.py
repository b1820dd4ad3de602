"""Transports of the HTTP contract within this process: what a server would do, they do."""

from __future__ import annotations

import asyncio
import threading

import pytest

from django_idempotency.testing.http_contract import ASGITransport, Call, WSGITransport


def wsgi(respond):
    """Serve `respond`: what it is told, and the body, to status, fields and body."""

    def application(environ, start_response):
        told = {name: value for name, value in environ.items() if isinstance(value, str)}
        status, fields, body = respond(told, environ["wsgi.input"].read())
        start_response(f"{status} Status", fields)
        return [body]

    return WSGITransport(application)


def asgi(respond):
    async def application(scope, receive, send):
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message["more_body"]
        path = scope["path"].encode().decode("latin-1")
        told = {"REQUEST_METHOD": scope["method"], "PATH_INFO": path}
        told["QUERY_STRING"] = scope["query_string"].decode()
        for name, text in scope["headers"]:
            variable = f"HTTP_{name.decode().upper().replace('-', '_')}"
            told[variable] = ",".join(filter(None, [told.get(variable), text.decode("latin-1")]))
        status, fields, answered = respond(told, body)
        headers = [(name.encode(), text.encode()) for name, text in fields]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": answered})

    return ASGITransport(application)


@pytest.fixture(params=[wsgi, asgi])
def serve(request):
    return request.param


def sent(transport, call, *fields, **more):
    return transport.send("", call, fields, seconds=60, **more)


def test_application_is_told_what_a_server_has_read(serve):
    told = []

    def respond(environ, body):
        told.append((environ, body))
        return 201, [("X-One", "1"), ("X-One", "2")], b"made"

    call = Call("/caf%C3%A9/?a=%20", {"amount": 5}, headers=[("X-Two", " a "), ("x-two", "b")])
    answer = sent(serve(respond), call, ("Idempotency-Key", '"k"'), chunked=serve is asgi).answer()

    [(environ, body)] = told
    assert (answer.status, answer.body, body) == (201, b"made", b'{"amount": 5}')
    assert answer.headers.get_all("X-One") == ["1", "2"]
    assert answer.headers["Date"].endswith(" GMT")
    assert environ.pop("PATH_INFO").encode("latin-1").decode() == "/café/"
    expected = {"REQUEST_METHOD": "POST", "QUERY_STRING": "a=%20", "HTTP_HOST": "testserver"}
    assert environ.items() >= {**expected, "HTTP_X_TWO": "a,b"}.items()
    assert environ["HTTP_IDEMPOTENCY_KEY"] == '"k"'


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("POST", 204)])
def test_body_that_must_not_be_is_not_sent(serve, method, status):
    transport = serve(lambda environ, body: (status, [], b"body"))

    assert sent(transport, Call("/", method=method)).answer().body == b""


def test_application_that_fails_gives_no_answer(serve):
    def respond(environ, body):
        raise RuntimeError("boom")

    with pytest.raises(ConnectionError, match="boom"):
        sent(serve(respond), Call("/")).answer()


def test_first_answered_is_whoever_answers_first():
    go_on = threading.Event()

    def respond(environ, body):
        assert environ["PATH_INFO"] == "/" or go_on.wait(60)
        return 200, [], b""

    transport = wsgi(respond)
    held = sent(transport, Call("/held/"))
    assert transport.first_answered([held], 0.01) is None
    other = sent(transport, Call("/"))
    assert transport.first_answered([held, other], 60) is other
    with pytest.raises(TimeoutError):
        transport.send("", Call("/held/"), (), seconds=0.01).answer()
    go_on.set()
    held.close()
    assert transport.first_answered([held], 0) is held


def test_application_is_told_that_a_client_has_hung_up():
    told = []

    async def application(scope, receive, send):
        await receive()
        told.append((await receive())["type"])

    transport = ASGITransport(application)
    exchange = sent(transport, Call("/"))
    exchange.close()

    assert told == ["http.disconnect"]
    assert transport.first_answered([exchange], 0) is exchange
    with pytest.raises(ConnectionError, match="has not answered"):
        exchange.answer()


def test_requests_at_the_same_time_share_an_event_loop_that_ends_with_them():
    loops = []
    together = asyncio.Event()

    async def application(scope, receive, send):
        loops.append(asyncio.get_running_loop())
        if len(loops) == 2:
            together.set()
        await asyncio.wait_for(together.wait(), 60)

    transport = ASGITransport(application)
    for exchange in [sent(transport, Call("/")) for _ in range(2)]:
        with pytest.raises(ConnectionError):
            exchange.answer()
    for thread in [x for x in threading.enumerate() if x.name == "HTTPContract"]:
        thread.join(60)

    assert loops[0] is loops[1]
    assert loops[0].is_closed()
