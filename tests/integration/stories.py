"""What a client sees of a store that is no database: one short story, told over each."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connections

from django_idempotency.conf import store_for
from django_idempotency.records import State
from tests.app.models import Effect
from tests.app.views import THEN, created
from tests.services.proxy import Proxy
from tests.unit.http.api import Api, problem, replayed


@pytest.mark.django_db(transaction=True)
class HTTPStory:
    """A subclass has the fixture `api`, whose default store is behind the proxy `link`."""

    def test_R24_R25_R26_first_and_again(self, api: Api) -> None:
        first, again = api(), api()

        assert (first.status_code, replayed(first)) == (201, False)
        assert (again.status_code, replayed(again)) == (201, True)
        assert (again.content, again["Location"]) == (first.content, first["Location"])
        assert Effect.objects.count() == 1

    def test_R37_other_body_is_422(self, api: Api) -> None:
        api()
        assert problem(api({"name": "other"})) == (422, "idempotency_key_reused")
        assert Effect.objects.count() == 1

    def test_R49_duplicate_of_a_running_request_is_409(
        self, api: Api, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        during: list[Any] = []

        def asks_again(request: Any, effect: Effect) -> Any:
            during.append(Api()())
            return created(request, effect)

        monkeypatch.setitem(THEN, "created", asks_again)
        api()

        assert problem(during[0]) == (409, "in_progress")
        assert int(during[0]["Retry-After"]) >= 1

    def test_R57_commit_that_fails_completes_nothing(
        self, api: Api, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)

        assert api.then("deferred").status_code == 500

        [record] = store_for("default").browse().records
        assert record.state is State.FAILED

    def test_R61_no_server_is_503_and_nothing_runs(self, api: Api, link: Proxy) -> None:
        link.refuse()
        link.cut()
        assert problem(api()) == (503, "store_unavailable")
        assert Effect.objects.count() == 0

    def test_R60_server_that_goes_away_in_mid_work_does_not_take_its_answer(
        self, api: Api, link: Proxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def away(request: Any, effect: Effect) -> Any:
            link.refuse()
            link.cut()
            return created(request, effect)

        monkeypatch.setitem(THEN, "created", away)
        first = api()
        link.heal()

        assert (first.status_code, first["Idempotency-Stored"]) == (201, "false")
        assert problem(api()) == (409, "in_progress")
        assert Effect.objects.count() == 1
