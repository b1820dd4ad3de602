"""Short stories of a store whose server is elsewhere, each told over each such store."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, ClassVar
from uuid import UUID

import pytest

from django_idempotency.conf import store_for
from django_idempotency.engine import Engine
from django_idempotency.exceptions import StoreError
from django_idempotency.records import Record
from django_idempotency.stores.base import BaseStore
from tests.app.models import Effect
from tests.app.views import THEN, created
from tests.claims import asked, found, operation, record_id, won
from tests.services.processes import wait_until
from tests.services.proxy import Proxy
from tests.unit.http.api import Api, problem, replayed


@pytest.mark.django_db(transaction=True)
class HTTPStory:
    """What a client sees: with the fixture `api`, whose default store is behind `link`."""

    def test_R24_R25_R26_first_and_again(self, api: Api) -> None:
        first, again = api(), api()

        assert (first.status_code, replayed(first)) == (201, False)
        assert (again.status_code, replayed(again)) == (201, True)
        assert (again.content, again["Location"]) == (first.content, first["Location"])
        assert Effect.objects.count() == 1

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


OLD, NEW = bytes(32), "bmV3IGtleSBvZiAzMiBieXRlcywgYmFzZTY0LXRleHQ"


@pytest.mark.django_db(transaction=True)
class EncryptionStory:
    """
    What is stored of an answer, and who reads it.

    With the fixtures `alias`, what IDEMPOTENCY says of a store, and `behind`, which looks behind it
    and writes there.
    """

    @pytest.fixture
    def under(self, settings: Any, alias: dict[str, Any]) -> Callable[..., Api]:
        """`under(*keys)`: a client of a process with these keys, which fails open."""

        def under(*keys: Any) -> Api:
            policy = {"ENCRYPTION_KEYS": keys, "HTTP": {"FAIL_OPEN": True}}
            settings.IDEMPOTENCY = {"default": {**alias, **policy}}
            return Api()

        return under

    def test_it_replays_after_a_rotation_and_without_its_key_is_503(
        self, under: Callable[..., Api], behind: Behind, caplog: pytest.LogCaptureFixture
    ) -> None:
        plain, first = under()(key="plain"), under(OLD)({"name": "the secret body"})
        assert b"the secret body" in first.content
        assert b"secret" not in behind.everything()

        for keys in ((NEW, OLD), (OLD,)):
            assert under(*keys)({"name": "the secret body"}).content == first.content
            assert under(*keys)(key="plain").content == plain.content
        for keys, said in (((NEW,), "put the key back"), ((), "encryption_keys is empty")):
            caplog.clear()
            for _ in range(2):
                refused = under(*keys)({"name": "the secret body"})
                assert problem(refused) == (503, "store_unavailable")
            assert said in caplog.text
        assert replayed(under(NEW, OLD)({"name": "the secret body"}))
        assert Effect.objects.count() == 2

    def test_R95_what_was_put_there_by_another_is_503_and_does_not_run(
        self, under: Callable[..., Api], behind: Behind
    ) -> None:
        api = under(NEW)
        for key in ("mine", "theirs"):
            api(key=key)
        mine, theirs = (behind.result(record.record_id) for record in behind.records())
        for forged in (theirs, mine[:-1] + bytes((mine[-1] ^ 1,))):
            behind.put(behind.records()[0].record_id, forged)
            assert problem(api(key=behind.records()[0].key)) == (503, "store_unavailable")
        behind.put(behind.records()[0].record_id, mine)
        assert replayed(api(key=behind.records()[0].key))
        assert Effect.objects.count() == 2

    def test_R61_R95_record_that_cannot_be_read_is_503_and_does_not_run(
        self, under: Callable[..., Api], behind: Behind
    ) -> None:
        """Its work may be done: the store was reached, so nothing opens."""
        api = under()
        api()
        behind.damage(behind.records()[0].record_id)
        assert problem(api()) == (503, "store_unavailable")
        assert Effect.objects.count() == 1


class Behind:
    """A look at what a store holds, and a write, without the library."""

    def everything(self) -> bytes:
        raise NotImplementedError

    def put(self, record_id: UUID, result: bytes) -> None:
        raise NotImplementedError

    def damage(self, record_id: UUID) -> None:
        """Write what no release of the library has written."""
        raise NotImplementedError

    def records(self) -> list[Record]:
        found = store_for().browse().records
        return sorted(found, key=lambda record: record.record_id)

    def result(self, record_id: UUID) -> bytes:
        record = store_for().get(record_id)
        assert record is not None
        assert record.result is not None
        return record.result


class ServerStory:
    """
    A server that misses a call, or does not answer.

    With the fixture `make_linked(timeout=seconds)`: a store behind the proxy `link`.
    """

    #: Seconds that a store gives a server which does not answer.
    TIMEOUT: ClassVar[float] = 0.5
    #: What goes over the wire with a claim, when the server has all of it.
    CLAIM: ClassVar[bytes]

    @pytest.fixture
    def store(self, make_linked: Callable[..., BaseStore]) -> BaseStore:
        """A store that is in no hurry, and whose connection is open."""
        store = make_linked(timeout=30)
        won(store.claim(asked("before")))
        return store

    @pytest.fixture
    def hasty(self, make_linked: Callable[..., BaseStore], store: BaseStore) -> BaseStore:
        """The same store, which waits for TIMEOUT; its connection is open."""
        hasty = make_linked(timeout=self.TIMEOUT)

        def answers() -> bool:
            try:
                return bool(hasty.get(record_id("before")))
            except StoreError:
                return False

        wait_until(answers, seconds=30, what="an answer of the server within the timeout")
        return hasty

    def test_I5_R26_work_runs_once_when_the_answer_to_its_claim_is_lost(
        self, store: BaseStore, link: Proxy
    ) -> None:
        runs: list[object] = []
        link.cut_after(self.CLAIM)

        outcomes = [Engine(store).run(operation(), runs.append) for _ in range(2)]

        assert link.fired.is_set()
        assert (len(runs), [outcome.replayed for outcome in outcomes]) == (1, [False, True])

    @pytest.mark.parametrize("how", ["before the server", "while nothing was sent"])
    def test_call_whose_connection_is_cut_off_is_sent_again(
        self, store: BaseStore, link: Proxy, how: str
    ) -> None:
        if how == "before the server":
            link.cut_before(self.CLAIM)
        else:
            link.cut()

        won(store.claim(asked()))

        assert link.fired.is_set() is (how == "before the server")
        assert found(store).attempts == 1

    @pytest.mark.parametrize("how", ["refuse", "swallow"])
    def test_R61_server_that_does_not_answer_is_an_error_within_the_timeout(
        self, hasty: BaseStore, link: Proxy, how: str
    ) -> None:
        getattr(link, how)()
        calls: list[Callable[[], object]] = [lambda: hasty.claim(asked())]
        if how == "refuse":
            link.cut()
            calls += [lambda: hasty.get(record_id()), hasty.browse]
        for call in calls:
            begun = time.monotonic()
            with pytest.raises(StoreError) as raised:
                call()
            assert time.monotonic() - begun < self.TIMEOUT + 5
            assert raised.value.unreachable
            assert raised.value.__cause__ is not None
            assert "key" not in str(raised.value)

    def test_R69_server_that_does_not_answer_costs_one_renewal_and_no_lease(
        self, store: BaseStore, hasty: BaseStore, link: Proxy
    ) -> None:
        leases = {won(store.claim(asked(str(number)))) for number in range(20)}
        link.swallow()
        begun = time.monotonic()

        with pytest.raises(StoreError):
            hasty.renew(leases, timedelta(hours=1))

        assert time.monotonic() - begun < self.TIMEOUT + 5
        link.heal()
        assert store.renew(leases, timedelta(hours=1)) == leases
