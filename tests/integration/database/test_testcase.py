"""R84: inside a TestCase everything works, and its transaction is never poisoned."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from django.db import connection, connections, transaction
from django.test import TestCase, override_settings

import django_idempotency as idempotency
from django_idempotency.conf import policy_for
from django_idempotency.exceptions import TransactionOpen
from tests.app.models import Effect
from tests.integration.database.claims import Boom, effects, work
from tests.unit.http.api import Api, problem, replayed

pytestmark = pytest.mark.leg("postgres18", "sqlite")


class Rules:
    """The rules; each subclass runs them with a store of its own."""

    databases = {"default", "other"}
    atomic_requests: ClassVar[bool] = True

    @pytest.fixture(autouse=True)
    def _views(self, monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
        settings.ROOT_URLCONF = "tests.integration.database.views"
        monkeypatch.setitem(
            connections.settings["default"], "ATOMIC_REQUESTS", self.atomic_requests
        )
        self.api = Api()
        self.api.client.raise_request_exception = False

    def setUp(self) -> None:
        Effect.objects.create(name="of the test")

    def assert_alive(self) -> None:
        """What the test wrote is there, and it can write more."""
        assert not connection.needs_rollback
        assert effects()[0] == "of the test"
        Effect.objects.create(name="of the test, too")

    def test_R84_first_request_and_replay(self) -> None:
        assert self.api().status_code == 201
        assert replayed(self.api())
        assert problem(self.api({"name": "second"})) == (422, "idempotency_key_reused")
        assert effects() == ["of the test", "first"]
        self.assert_alive()

    def test_R84_error_that_is_kept_released_or_of_the_work(self) -> None:
        assert self.api.then("boom", key="boom").status_code == 500
        assert self.api.then("boom", key="boom").status_code == 500
        assert self.api.then("invalid", key="invalid").status_code == 400
        assert self.api.then("invalid", key="invalid").status_code == 400
        assert self.api.then("raised", status=409).status_code == 409
        assert replayed(self.api.then("raised", status=409))
        self.assert_alive()

    def test_R84_view_that_is_exempt_from_ATOMIC_REQUESTS(self) -> None:
        for path in ("/non-atomic/", "/non-atomic-url/"):
            refused = self.api(path=f"{path}?refuse=1", key=path)
            assert refused.status_code == 409
            assert replayed(self.api(path=f"{path}?refuse=1", key=path))
        self.assert_alive()

    def test_R84_run_that_fails(self) -> None:
        def fail(lease: Any) -> None:
            Effect.objects.create(name="run")
            raise Boom

        with pytest.raises(Boom):
            idempotency.run(fail, key="key", scope=self.id())
        assert idempotency.run(work("run"), key="key", scope=self.id()).result == "run"
        assert idempotency.run(work("again"), key="key", scope=self.id()).replayed
        self.assert_alive()

    def test_R84_run_in_a_block_of_the_tests_own(self) -> None:
        with transaction.atomic():
            if policy_for("default").transaction == "separate":  # by name, and so refused
                with pytest.raises(TransactionOpen):
                    idempotency.run(work("run"), key="key", scope=self.id())
            else:
                idempotency.run(work("run"), key="key", scope=self.id())
                assert effects() == ["of the test", "run"]
        self.assert_alive()

    def test_R86_hooks_can_be_captured(self) -> None:
        with self.captureOnCommitCallbacks(execute=True):
            assert self.api.then("hook").status_code == 201
        assert effects() == ["of the test", "first", "hook of first"]


class RulesWithin(Rules):
    """Rules where a transaction of ours stands between the work and the test's own."""

    def test_R84_work_that_marks_its_transaction_for_rollback(self) -> None:
        for _ in range(2):
            response = self.api.then("rolled_back")
            assert (response.status_code, replayed(response)) == (409, False)
        assert effects() == ["of the test"]
        self.assert_alive()


class TestJoined(RulesWithin, TestCase):
    pass


@override_settings(IDEMPOTENCY={"default": {"TRANSACTION": "single"}})
class TestSingleAutocommit(RulesWithin, TestCase):
    atomic_requests = False


@override_settings(IDEMPOTENCY={"default": {"TRANSACTION": "separate"}})
class TestSeparateAutocommit(Rules, TestCase):
    atomic_requests = False
