"""Section F, R55, R56 and R64: which answers are kept."""

from __future__ import annotations

from typing import Any

import pytest
from django.http import HttpResponse
from rest_framework.response import Response

from django_idempotency.models import IdempotencyRecord
from tests.app.models import Effect
from tests.app.views import EffectView, Refusal
from tests.unit.http.api import Api, problem, replayed
from tests.unit.http.conftest import Mount, SetPolicy
from tests.unit.http.views import answering

# The verdicts.

KEPT = [200, 201, 202, 204, 206, 301, 302, 303, 307, 308]
KEPT_ERRORS = [402, 409, 410, 412, 414, 416, 418, 422, 423, 424, 428, 431, 451]
RELEASED = [400, 401, 403, 404, 405, 406, 407, 408, 411, 413, 415, 425, 429]
FAILED = [500, 501, 502, 503, 504, 507, 599]


@pytest.mark.django_db
@pytest.mark.parametrize("status", KEPT + KEPT_ERRORS)
def test_R55_returned_and_kept(api: Api, runs: list[str], status: int) -> None:
    first, again = (api.then("returned", status=status) for _ in range(2))

    assert first.status_code == again.status_code == status
    assert replayed(again)
    assert IdempotencyRecord.objects.get().state == "COMPLETED"
    assert len(runs) == 1


@pytest.mark.django_db
@pytest.mark.parametrize("status", KEPT_ERRORS)
def test_R55_raised_and_kept(api: Api, runs: list[str], status: int) -> None:
    first, again = (api.then("raised", status=status) for _ in range(2))

    assert first.status_code == again.status_code == status
    assert again.content == first.content == b'{"detail":"refused"}'
    assert replayed(again)
    assert IdempotencyRecord.objects.get().state == "COMPLETED"
    assert len(runs) == 1


@pytest.mark.django_db
@pytest.mark.parametrize("then", ["returned", "raised"])
@pytest.mark.parametrize("status", RELEASED)
def test_R55_nothing_was_executed_so_the_key_is_free(
    api: Api, runs: list[str], status: int, then: str
) -> None:
    refused = api.then(then, status=status)
    state = IdempotencyRecord.objects.values("state", "fingerprint").get()
    corrected = api({"name": "corrected"})

    assert refused.status_code == status
    assert state == {"state": "RELEASED", "fingerprint": None}
    assert corrected.status_code == 201
    assert not replayed(corrected)
    assert runs == ["first", "corrected"]


@pytest.mark.django_db
@pytest.mark.parametrize("then", ["returned", "raised"])
@pytest.mark.parametrize("status", FAILED)
def test_R55_failed_may_run_again_as_it_was(
    api: Api, runs: list[str], status: int, then: str
) -> None:
    failed = api.then(then, status=status)
    state = IdempotencyRecord.objects.get().state
    other = api({"name": "other"})
    again = api.then(then, status=status)

    assert failed.status_code == status
    assert state == "FAILED"
    assert problem(other) == (422, "idempotency_key_reused")
    assert again.status_code == status
    assert not replayed(again)
    assert runs == ["first", "first"]


@pytest.mark.django_db
def test_R55_unhandled_exception_fails(api: Api, runs: list[str]) -> None:
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"^boom$"):
            api.then("boom")

    record = IdempotencyRecord.objects.get()
    assert (record.state, record.attempts) == ("FAILED", 2)
    assert runs == ["first", "first"]


@pytest.mark.django_db
def test_R55_what_is_not_kept_is_not_marked_as_unstored(api: Api) -> None:
    assert "Idempotency-Stored" not in api.then("returned", status=400).headers
    assert "Idempotency-Stored" not in api.then("returned", status=500).headers


# Other verdicts.


@pytest.mark.django_db
@pytest.mark.parametrize("then", ["returned", "raised"])
@pytest.mark.parametrize(
    ("status", "state"),
    [(200, "COMPLETED"), (303, "COMPLETED"), (400, "FAILED"), (409, "FAILED"), (500, "FAILED")],
)
def test_R56_success_keeps_success(
    api: Api, policy: SetPolicy, runs: list[str], then: str, status: int, state: str
) -> None:
    policy(HTTP={"KEEP": "success"})
    then = then if status >= 400 else "returned"

    first, again = (api.then(then, status=status) for _ in range(2))

    assert first.status_code == again.status_code == status
    assert replayed(again) == (state == "COMPLETED")
    assert IdempotencyRecord.objects.get().state == state
    assert len(runs) == (1 if state == "COMPLETED" else 2)


class Judged(EffectView):
    """The body names the verdict."""

    verdicts: list[tuple[int, BaseException | None]] = []

    def idempotency_keep(self, response: HttpResponse, exception: BaseException | None) -> Any:
        self.verdicts.append((response.status_code, exception))
        return self.request.data["keep"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("verdict", "state"), [("keep", "COMPLETED"), ("release", "RELEASED"), ("fail", "FAILED")]
)
@pytest.mark.parametrize(("then", "status"), [("created", 201), ("raised", 500), ("raised", 403)])
def test_R56_keep_as_a_method(
    api: Api,
    mount: Mount,
    mode: str,
    runs: list[str],
    then: str,
    status: int,
    verdict: str,
    state: str,
) -> None:
    url = mount(Judged)
    body = {"name": "a", "then": then, "status": status, "keep": verdict}

    first = api(body, path=url)
    record, effects = IdempotencyRecord.objects.get(), Effect.objects.count()
    again = api(body, path=url)

    assert first.status_code == again.status_code == status
    assert record.state == state
    work_stands = mode == "separate" or (then == "created" and verdict != "fail")
    assert effects == work_stands
    assert replayed(again) == (verdict == "keep")
    assert len(runs) == (1 if verdict == "keep" else 2)


@pytest.mark.django_db
def test_R56_keep_sees_the_response_and_the_exception(api: Api, mount: Mount) -> None:
    url = mount(Judged)
    Judged.verdicts.clear()

    api({"name": "a", "keep": "release"}, path=url)
    api({"name": "a", "then": "raised", "status": 403, "keep": "release"}, path=url)

    [(created, nothing), (refused, error)] = Judged.verdicts
    assert (created, nothing) == (201, None)
    assert refused == 403
    assert isinstance(error, Refusal)


@pytest.mark.django_db(transaction=True)
def test_R56_another_verdict_is_an_error_and_keeps_nothing(
    api: Api, mount: Mount, mode: str
) -> None:
    url = mount(Judged)

    with pytest.raises(ValueError, match="'maybe'"):
        api({"name": "a", "keep": "maybe"}, path=url)

    assert IdempotencyRecord.objects.get().state == "FAILED"
    assert Effect.objects.count() == (mode == "separate")


# Falsy results.


@pytest.mark.django_db
@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(lambda request: Response(0), id="0"),
        pytest.param(lambda request: Response(False), id="False"),
        pytest.param(lambda request: Response(""), id="empty string"),
        pytest.param(lambda request: Response([]), id="empty list"),
        pytest.param(lambda request: Response({}), id="empty object"),
        pytest.param(lambda request: Response(None), id="None"),
        pytest.param(lambda request: Response(status=204), id="204"),
        pytest.param(lambda request: HttpResponse(b""), id="no bytes"),
        pytest.param(lambda request: HttpResponse(b"\0"), id="a NUL"),
    ],
)
def test_R64_falsy_results_replay(
    api: Api, mount: Mount, mode: str, runs: list[str], answer: Any
) -> None:
    url = mount(answering(answer))

    first, again = api(path=url), api(path=url)

    assert replayed(again)
    assert again.status_code == first.status_code
    assert again.content == first.content
    assert again.headers.get("Content-Type") == first.headers.get("Content-Type")
    assert len(runs) == 1
