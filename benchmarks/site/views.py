"""
One INSERT behind REST framework or in a plain view: bare, by hand, and guarded.

`TwoPhase` and `LateInsert` are the protocols of `joined` and `single` as one would write them for
one project on PostgreSQL, with prepared statements: the floor. They keep what makes them right (the
lease, the token, the fence, the lock) and have none of what makes them a library.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from typing import Any

import psycopg
from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from benchmarks.site.models import Payment

LEASE, RETENTION = "60 seconds", "24 hours"


class Unguarded(APIView):
    """The work alone, in a transaction of whoever calls it."""

    def post(self, request: Request) -> Any:
        return self.work(request)

    def work(self, request: Request) -> Response:
        data: Any = request.data
        payment = Payment.objects.create(
            reference=data["reference"], amount=data["amount"], key=data["key"]
        )
        return Response({"id": payment.pk, **data}, status=201)


class Bare(Unguarded):
    """What all is measured against."""

    def post(self, request: Request) -> Any:
        with transaction.atomic():
            return self.work(request)


def plain_work(request: HttpRequest) -> JsonResponse:
    """Do the work without REST framework."""
    data = json.loads(request.body)
    payment = Payment.objects.create(
        reference=data["reference"], amount=data["amount"], key=data["key"]
    )
    return JsonResponse({"id": payment.pk, **data}, status=201)


def plain_bare(request: HttpRequest) -> JsonResponse:
    with transaction.atomic():
        return plain_work(request)


def ours(name: str) -> Any:
    """Return the guarded view; not imported where django_idempotency is not installed."""
    from django_idempotency.contrib.rest_framework import IdempotencyMixin
    from django_idempotency.http import idempotent, scopes

    class Guarded(IdempotencyMixin, Unguarded):
        idempotency_required = True

    class GuardedInAtomic(IdempotencyMixin, Bare):
        idempotency_required = True

    guarded = idempotent(required=True, scope=scopes.anyone)
    views = {
        "Guarded": Guarded,
        "GuardedInAtomic": GuardedInAtomic,
        "plain_guarded": guarded(plain_work),
        "plain_guarded_in_atomic": guarded(plain_bare),
    }
    return views[name]


def __getattr__(name: str) -> Any:
    if name == "MixedIn":
        from drf_idempotencykey.mixins import DrfIdempotencyKeyMixin

        return type("MixedIn", (DrfIdempotencyKeyMixin, Bare), {})
    raise AttributeError(name)


# The protocols by hand.


class ByHand(Unguarded):
    """What both share: the id, the fingerprint, the answer, and a cursor that prepares."""

    def begun(self, request: Request) -> tuple[uuid.UUID, bytes]:
        parts = ("http", f"user:{request.user.pk}", request.headers["Idempotency-Key"])
        named = hashlib.sha256("".join(f"{len(part)}:{part}" for part in parts).encode())
        asked = f"{request.method} {request.get_full_path()}\n".encode() + request._request.body
        return uuid.UUID(bytes=named.digest()[:16]), hashlib.sha256(asked).digest()

    def cursor(self) -> psycopg.Cursor[Any]:
        connection.ensure_connection()
        driver = connection.connection
        driver.prepare_threshold = 0
        return psycopg.Cursor(driver)

    def together(self, *statements: tuple[str, tuple[Any, ...]]) -> psycopg.Cursor[Any]:
        """Send the statements in one round trip; return the cursor of the first."""
        cursors = [self.cursor() for _ in statements]
        with connection.connection.pipeline():
            for cursor, (statement, parameters) in zip(cursors, statements, strict=True):
                cursor.execute(statement, parameters)
        return cursors[0]

    def answer(self, request: Request) -> Response:
        """Do the work, and render its response."""
        response: Response = self.finalize_response(request, self.work(request))
        response.render()
        return response

    def replay(self, fingerprint: bytes, found: Any) -> HttpResponse:
        if bytes(found[1]) != fingerprint:
            return HttpResponse(status=422)
        if found[0] != "COMPLETED":
            return HttpResponse(status=409)
        return HttpResponse(bytes(found[3]), status=found[2], content_type="application/json")


CLAIM = f"""
INSERT INTO site_floorrecord (id, fingerprint, state, token, lease_until, expires_at)
VALUES (%s, %s, 'IN_PROGRESS', %s, clock_timestamp() + interval '{LEASE}',
        clock_timestamp() + interval '{RETENTION}')
ON CONFLICT (id) DO NOTHING
"""
LOOK = "SELECT state, fingerprint, status, body FROM site_floorrecord WHERE id = %s"
COMPLETE = """
WITH done AS (
     UPDATE site_floorrecord SET state = 'COMPLETED', status = %s, body = %s
      WHERE id = %s AND token = %s AND state = 'IN_PROGRESS' RETURNING 1)
SELECT 1 / (SELECT count(*) FROM done)
"""


class TwoPhase(ByHand):
    """`joined` by hand: the claim commits alone; work and fenced completion commit together."""

    def post(self, request: Request) -> Any:
        record, fingerprint = self.begun(request)
        token = uuid.uuid4()
        cursor = self.cursor()
        cursor.execute(CLAIM, (record, fingerprint, token))
        if cursor.rowcount == 0:
            return self.replay(fingerprint, cursor.execute(LOOK, (record,)).fetchone())
        with transaction.atomic():
            response = self.answer(request)
            result = response.status_code, response.content
            self.together((COMPLETE, (*result, record, token)), ("COMMIT", ()))
        return response


LOCK = """
SELECT pg_try_advisory_xact_lock(%s), state, fingerprint, status, body
  FROM (SELECT) AS always LEFT JOIN site_floorrecord ON id = %s
"""
INSERT = f"""
INSERT INTO site_floorrecord
       (id, fingerprint, state, token, lease_until, expires_at, status, body)
VALUES (%s, %s, 'COMPLETED', %s, clock_timestamp(),
        clock_timestamp() + interval '{RETENTION}', %s, %s)
"""


class LateInsert(ByHand):
    """`single` by hand: a lock, the work, and the finished record in one transaction."""

    def post(self, request: Request) -> Any:
        record, fingerprint = self.begun(request)
        lock = int.from_bytes(record.bytes[:8], "big", signed=True)
        with transaction.atomic():
            self.cursor()  # connects
            [(locked, *found)] = self.together((LOCK, (lock, record))).fetchall()
            if found[0] is not None:
                return self.replay(fingerprint, found)
            if not locked:
                return HttpResponse(status=409)
            response = self.answer(request)
            result = response.status_code, response.content
            self.together((INSERT, (record, fingerprint, uuid.uuid4(), *result)), ("COMMIT", ()))
        return response


CLAIM_SCRIPT = """
local found = redis.call('HMGET', KEYS[1], 's', 'f', 'c', 'b')
if found[1] then return found end
redis.call('HSET', KEYS[1], 's', 'IN_PROGRESS', 'f', ARGV[1], 't', ARGV[2])
redis.call('PEXPIRE', KEYS[1], 86400000)
return false
"""
COMPLETE_SCRIPT = """
if redis.call('HGET', KEYS[1], 't') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 's', 'COMPLETED', 'c', ARGV[2], 'b', ARGV[3])
return 1
"""


class Scripts(ByHand):
    """`separate` on Redis by hand: two scripts, the work in a transaction between them."""

    def post(self, request: Request) -> Any:
        client, claim, complete = _scripts()
        record, fingerprint = self.begun(request)
        token = uuid.uuid4().bytes
        found = claim([record.bytes], [fingerprint, token], client=client)
        if found is not None:
            state, asked, status, body = found
            known = (state.decode(), asked, int(status or 0), body)
            return self.replay(fingerprint, known)
        with transaction.atomic():
            response = self.answer(request)
        complete([record.bytes], [token, response.status_code, response.content], client=client)
        return response


_made: list[Any] = []


def _scripts() -> Any:
    if not _made:
        import redis

        client = redis.Redis.from_url(os.environ["BENCHMARK_REDIS"])
        _made[:] = [
            client,
            client.register_script(CLAIM_SCRIPT),
            client.register_script(COMPLETE_SCRIPT),
        ]
    return _made
