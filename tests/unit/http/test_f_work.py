"""Section F, R57: the work that stands, and the record that says so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest
from django.db import connection, connections, transaction
from django.utils.decorators import method_decorator
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from django_idempotency.conf import store_for
from django_idempotency.keys import record_id
from django_idempotency.models import IdempotencyRecord
from tests.app.models import Child, Effect, Unique
from tests.app.views import EffectView
from tests.unit.http.api import Api, problem, replayed
from tests.unit.http.conftest import Mount, SetPolicy
from tests.unit.http.views import answering, state_seen_by_others

# The work.


@dataclass(frozen=True)
class Row:
    """How a request ends, whether its work stands, and what the record says."""

    then: str
    status: int
    work_stands: bool
    state: str

    @property
    def body(self) -> dict[str, Any]:
        return {"name": "first", "then": self.then, "status": self.status}


ROWS = {
    "success": Row("created", 201, work_stands=True, state="COMPLETED"),
    "204": Row("empty", 204, work_stands=True, state="COMPLETED"),
    "returned 409": Row("returned", 409, work_stands=True, state="COMPLETED"),
    "raised 409": Row("raised", 409, work_stands=False, state="COMPLETED"),
    "raised 422": Row("raised", 422, work_stands=False, state="COMPLETED"),
    "returned 400": Row("returned", 400, work_stands=True, state="RELEASED"),
    "raised 403": Row("raised", 403, work_stands=False, state="RELEASED"),
    "ValidationError": Row("invalid", 400, work_stands=False, state="RELEASED"),
    "returned 500": Row("returned", 500, work_stands=False, state="FAILED"),
    "raised 503": Row("raised", 503, work_stands=False, state="FAILED"),
    "unhandled exception": Row("boom", 500, work_stands=False, state="FAILED"),
    "broken transaction, raised 409": Row("broken", 409, work_stands=False, state="COMPLETED"),
    "constraint at COMMIT": Row("deferred", 500, work_stands=False, state="FAILED"),
}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("name", ROWS)
def test_R57_kept_and_committed_together(
    api: Api, mode: str, atomic_requests: bool, runs: list[str], name: str
) -> None:
    row = ROWS[name]
    api.client.raise_request_exception = False
    autocommit = mode == "separate" and not atomic_requests

    first = api(row.body)
    seen_by_others, effects = state_seen_by_others(), Effect.objects.count()
    again = api(row.body)

    assert first.status_code == again.status_code == row.status
    assert seen_by_others == row.state
    assert effects == (row.work_stands or autocommit)
    assert replayed(again) == (row.state == "COMPLETED")
    if row.state == "COMPLETED":
        assert again.content == first.content
        assert len(runs) == 1
        assert Effect.objects.count() == effects
    else:
        assert len(runs) == 2
        assert Effect.objects.count() == 2 * effects
    assert not Child.objects.exists()
    assert Unique.objects.exists() == (row.then == "broken" and autocommit)
    assert not connection.in_atomic_block


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("name", ROWS)
def test_R57_store_that_cannot_join(
    api: Api,
    mount: Mount,
    policy: SetPolicy,
    atomic_requests: bool,
    runs: list[str],
    name: str,
) -> None:
    class InMemory(EffectView):
        idempotency_store = "memory"
        idempotency_scope = "django_idempotency.http.scopes.anyone"

    row, url = ROWS[name], mount(InMemory)
    api.client.raise_request_exception = False

    first = api(row.body, path=url)
    record = store_for("memory").get(record_id("http", "anyone", "key-1"))
    effects = Effect.objects.count()
    again = api(row.body, path=url)

    assert first.status_code == again.status_code == row.status
    assert record is not None
    assert record.state == row.state
    assert effects == (row.work_stands or not atomic_requests)
    assert replayed(again) == (row.state == "COMPLETED")
    assert len(runs) == (1 if row.state == "COMPLETED" else 2)
    assert not Child.objects.exists()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("store", "mode", "atomic_requests"),
    [
        ("default", "single", False),
        ("default", "single", True),
        ("default", "joined", False),
        ("default", "joined", True),
        ("default", "separate", True),
        ("memory", "separate", True),
    ],
    indirect=["mode", "atomic_requests"],
)
def test_R91_success_that_wished_to_be_rolled_back_is_answered_and_not_kept(
    api: Api, mount: Mount, store: str, mode: str, atomic_requests: bool
) -> None:
    def answer(request: Request) -> Response:
        transaction.set_rollback(True)
        return Response({"done": True}, status=201)

    url = mount(answering(answer, idempotency_store=store))

    first, again = api(path=url), api(path=url)

    assert Effect.objects.count() == 0
    assert (first.status_code, first["Idempotency-Stored"]) == (201, "false")
    assert not replayed(again)


class TakenOver(EffectView):
    """Another attempt takes over while this one runs."""

    def post(self, request: Request) -> Any:
        other = connections["default"].copy()
        try:
            with other.cursor() as cursor:
                cursor.execute(
                    "UPDATE idempotency_record SET epoch = epoch + 1, token = %s",
                    [UUID(TOKEN).hex],
                )
        finally:
            other.close()
        return super().post(request)


TOKEN = "8e03978e-40d5-43e8-bc93-6894a57f9324"
NO_SQLITE = pytest.mark.leg("postgres18", "postgres16")  # joined: its writers wait for each other


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "mode", [pytest.param("joined", marks=NO_SQLITE), "separate"], indirect=True
)
@pytest.mark.parametrize(
    ("then", "status", "answer"),
    [
        ("created", 201, 409),
        ("returned", 409, 409),
        ("returned", 400, 409),
        ("raised", 422, 409),
        ("raised", 400, 400),
        ("raised", 500, 500),
    ],
)
def test_R57_nothing_is_kept_without_the_lease(
    api: Api,
    mount: Mount,
    mode: str,
    atomic_requests: bool,
    then: str,
    status: int,
    answer: int,
) -> None:
    if (then, status, mode) == ("returned", 400, "separate"):
        answer = 400  # the work has committed, and its answer is not kept in any case

    response = api.then(then, status=status, path=mount(TakenOver))

    record = IdempotencyRecord.objects.get()
    assert response.status_code == answer
    if answer == 409:
        assert problem(response) == (409, "lease_lost")
    assert (str(record.token), record.state) == (TOKEN, "IN_PROGRESS")
    if mode == "joined":
        assert not Effect.objects.exists()


@pytest.mark.django_db(transaction=True)
@NO_SQLITE
def test_R57_single_releases_nothing_without_the_proof(
    api: Api, mount: Mount, policy: SetPolicy
) -> None:
    policy(TRANSACTION="single")
    api.then("returned", status=400)  # leaves a record for another to take
    Effect.objects.all().delete()

    response = api.then("returned", status=400, path=mount(TakenOver))

    assert problem(response) == (409, "lease_lost")
    assert not Effect.objects.exists()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("then", ["returned", "raised"])
def test_R57_kept_5xx_is_kept_without_its_work(
    api: Api, policy: SetPolicy, mode: str, runs: list[str], then: str
) -> None:
    policy(HTTP={"KEEP": "stripe"})

    first, again = (api.then(then, status=503) for _ in range(2))

    assert [first.status_code, again.status_code] == [503, 503]
    assert replayed(again)
    assert len(runs) == 1
    assert Effect.objects.count() == (mode == "separate")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("mode", ["joined", "single"], indirect=True)
def test_R57_released_and_committed_at_the_same_moment(api: Api, mount: Mount, mode: str) -> None:
    seen: list[Any] = []

    def answer(request: Request) -> Response:
        transaction.on_commit(lambda: seen.append((state_seen_by_others(), Effect.objects.count())))
        seen.append(state_seen_by_others())
        return Response({}, status=403)

    assert api(path=mount(answering(answer))).status_code == 403
    assert seen == ["IN_PROGRESS" if mode == "joined" else None, ("RELEASED", 1)]


@pytest.mark.django_db(transaction=True)
def test_R57_in_a_callers_transaction_a_returned_refusal_commits_with_it(
    api: Api, policy: SetPolicy
) -> None:
    with transaction.atomic():
        assert api.then("returned", status=400).status_code == 400
        assert api.then("returned", status=500, key="key-2").status_code == 500

    assert Effect.objects.count() == 1
    states = IdempotencyRecord.objects.order_by("created_at").values_list("state", flat=True)
    assert list(states) == ["RELEASED", "FAILED"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("mode", ["joined", "single"], indirect=True)
def test_R57_work_and_record_commit_at_the_same_moment(
    api: Api, mount: Mount, mode: str, atomic_requests: bool
) -> None:
    during = []

    class Looking(EffectView):
        def finalize_response(self, *args: Any, **kwargs: Any) -> Any:
            during.append((connection.in_atomic_block, state_seen_by_others()))
            return super().finalize_response(*args, **kwargs)

    response = api(path=mount(Looking))

    assert response.status_code == 201
    assert during == [(True, "IN_PROGRESS" if mode == "joined" else None)]
    assert state_seen_by_others() == "COMPLETED"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("then", "status"), [("created", 201), ("raised", 409), ("invalid", 400)])
def test_R57_in_a_callers_transaction_it_dies_with_it(
    api: Api, policy: SetPolicy, then: str, status: int
) -> None:
    with transaction.atomic():
        response = api.then(then, status=status)
        inside = IdempotencyRecord.objects.count()
        transaction.set_rollback(True)

    assert response.status_code == status
    assert inside == 1
    assert not IdempotencyRecord.objects.exists()
    assert not Effect.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_R57_in_a_callers_transaction_it_lives_with_it(api: Api, policy: SetPolicy) -> None:
    with transaction.atomic():
        refused = api.then("raised", status=409, key="key-2")
        first = api()
        during = state_seen_by_others()
        within = api()

    assert (first.status_code, refused.status_code) == (201, 409)
    assert during is None
    assert replayed(within)
    assert replayed(api())
    assert replayed(api.then("raised", status=409, key="key-2"))
    assert Effect.objects.count() == 1


# Around the work.


class Unrenderable(JSONRenderer):
    def render(self, data: Any, *args: Any, **kwargs: Any) -> bytes:
        if data == {"detail": "refused"}:
            return b"refused"
        raise ValueError("cannot be rendered")


@pytest.mark.django_db(transaction=True)
def test_R57_answer_is_rendered_inside_the_transaction(
    api: Api, mount: Mount, mode: str, atomic_requests: bool, runs: list[str]
) -> None:
    class Rendered(EffectView):
        renderer_classes = [Unrenderable]

    url = mount(Rendered)
    for _ in range(2):
        with pytest.raises(ValueError, match="cannot be rendered"):
            api(path=url)

    assert state_seen_by_others() == "FAILED"
    assert Effect.objects.count() == (2 if mode == "separate" and not atomic_requests else 0)
    assert len(runs) == 2


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("key", [None, "key-1"], ids=["no key", "unguarded method"])
@pytest.mark.parametrize(
    ("then", "status", "work_stands"),
    [("created", 201, True), ("returned", 409, True), ("raised", 409, False), ("boom", 500, False)],
)
def test_R57_unguarded_requests_keep_djangos_transaction(
    api: Api,
    mount: Mount,
    mode: str,
    atomic_requests: bool,
    key: str | None,
    then: str,
    status: int,
    work_stands: bool,
) -> None:
    class PutOnly(EffectView):
        idempotency_required = False
        idempotency_methods = {"PUT"}

    api.client.raise_request_exception = False

    response = api.then(then, status=status, key=key, path=mount(PutOnly))

    assert response.status_code == status
    assert Effect.objects.count() == (work_stands or not atomic_requests)
    assert not IdempotencyRecord.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_R57_exempt_views_have_no_transaction_of_djangos(
    api: Api, mount: Mount, atomic_requests: bool, mode: str
) -> None:
    @method_decorator(transaction.non_atomic_requests, name="dispatch")
    class Exempt(EffectView):
        idempotency_required = False

    url = mount(Exempt)

    api.then("raised", status=409, key=None, path=url)
    assert Effect.objects.count() == (mode == "separate")

    api.then("raised", status=409, path=url)
    assert Effect.objects.count() == (2 if mode == "separate" else 0)
