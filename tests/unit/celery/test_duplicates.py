"""What a duplicate of a finished task gets, and what the first caller gets (C4, C5)."""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Iterator
from datetime import date, datetime, timezone
from decimal import Decimal
from traceback import format_exception
from typing import Any, ClassVar

import pytest
from celery.exceptions import Ignore
from django.core.exceptions import ImproperlyConfigured
from kombu import serialization

from django_idempotency import ResultUnavailable, StoreError
from django_idempotency.codecs import unpack
from django_idempotency.contrib.celery import DuplicateTask, idempotent_task
from django_idempotency.contrib.celery.codec import KombuCodec, TaskCodec
from django_idempotency.models import IdempotencyRecord
from tests.app.models import Effect
from tests.unit.celery.local import Local


class Text:
    """A codec of the project's own."""

    id: ClassVar[str] = "text"
    exact: ClassVar[bool] = True

    def __repr__(self) -> str:
        return "Text"

    def encode(self, result: str) -> bytes:
        return result.encode("utf-16")

    def decode(self, payload: bytes) -> str:
        return payload.decode("utf-16")


class TestDuplicate:
    pytestmark = pytest.mark.usefixtures("memory")

    @pytest.mark.parametrize(
        "result", [0, "", None, [], {}, False, 0.0, "x", {"a": [1, None]}], ids=repr
    )
    def test_C4_it_returns_the_result_whatever_it_was(self, local: Local, result: Any) -> None:
        runs = []

        @local.app.task
        @idempotent_task
        def work() -> Any:
            runs.append(1)
            return result

        message = local.send(work)
        first, again = local.deliver(message), local.deliver(message)

        assert (first.state, again.state) == ("SUCCESS", "SUCCESS")
        assert first.value == again.value == result
        assert type(again.value) is type(result)
        assert runs == [1]

    @pytest.mark.parametrize(("wish", "error"), [("ignore", Ignore), ("raise", DuplicateTask)])
    @pytest.mark.parametrize("result", ["done", object()], ids=["kept", "not kept"])
    def test_C4_it_ends_as_it_is_told(
        self, app: Any, wish: str, error: type[Exception], result: Any
    ) -> None:
        @app.task
        @idempotent_task(key=lambda: "one", on_duplicate=wish)
        def work() -> Any:
            return result

        assert work() == result
        with pytest.raises(error):
            work()


class TestFidelity:
    pytestmark = pytest.mark.usefixtures("memory")

    def ends(self, app: Any, result: Any, **options: Any) -> list[Any]:
        """What the first caller and a duplicate get."""

        @app.task(name=f"work with {options}")
        @idempotent_task(key=lambda: "one", **options)
        def work() -> Any:
            return result

        return [work(), work()]

    @pytest.fixture
    def words(self) -> Iterator[None]:
        """A serializer of the project's own."""
        serialization.register("words", " ".join, lambda text: str.split(text), "text/x-words")
        yield
        serialization.unregister("words")

    @pytest.mark.usefixtures("words")
    @pytest.mark.parametrize(
        ("result", "codec"),
        [
            (Decimal("1.10"), None),
            (datetime(2026, 7, 1, 12, 30, 1, 5, tzinfo=timezone.utc), None),
            (date(2026, 7, 1), None),
            (uuid.UUID(int=7), None),
            (b"\x00\xff", None),
            (b"text", None),
            ("\N{SNOWMAN}", None),
            ({"nested": [Decimal("0.1"), {"at": date(2026, 1, 1)}]}, None),
            ({1: "a"}, "yaml"),
            ("a\nb", Text()),
            (["a", "b"], "words"),
            ("text", "raw"),
            (b"bytes", "raw"),
        ],
        ids=repr,
    )
    def test_C5_values_come_back_equal(self, app: Any, result: Any, codec: Any) -> None:
        first, again = self.ends(app, result, codec=codec)

        assert first == again == result
        assert type(first) is type(again) is type(result)

    @pytest.mark.parametrize(
        ("result", "left"),
        [
            pytest.param((1, 2), [1, 2], id="a tuple"),
            pytest.param({1: "a"}, {"1": "a"}, id="an integer key"),
        ],
    )
    def test_C5_what_json_loses_is_lost_for_the_first_caller_too(
        self, app: Any, result: Any, left: Any
    ) -> None:
        assert self.ends(app, result) == [left, left]

    def test_C5_it_is_the_serializer_of_the_task(self, local: Local) -> None:
        @local.app.task(serializer="yaml")
        @idempotent_task(key=lambda: "one")
        def work() -> Any:
            return {1: date(2026, 7, 1)}

        assert [work(), work()] == [{1: date(2026, 7, 1)}] * 2

    def test_C5_a_task_may_change_its_serializer(self, app: Any) -> None:
        @idempotent_task(key=lambda: "one", scope="one", operation="one")
        def work() -> Any:
            return {"at": date(2026, 7, 1)}

        first = app.task(work, name="old", serializer="json")()
        again = app.task(work, name="new", serializer="yaml")()

        assert first == again == {"at": date(2026, 7, 1)}

    def test_R95_a_serializer_that_is_not_accepted_is_not_read(self, app: Any) -> None:
        """JSON is, by Celery's default; YAML if ``accept_content`` names it, by either name."""

        @idempotent_task(key=lambda: "one", scope="one", operation="one")
        def work() -> Any:
            return [1]

        app.task(work, name="old", serializer="yaml")()
        again = app.task(work, name="new", serializer="json")

        with pytest.raises(StoreError) as raised:
            again()
        assert "'application/x-yaml' are not accepted" in "".join(format_exception(raised.value))
        for name in ("yaml", "application/x-yaml"):
            app.conf.accept_content = ["json", name]
            assert again() == [1]

    def test_C5_a_result_of_another_codec_is_not_read(self, app: Any) -> None:
        self.ends(app, "done", scope="one", operation="one")

        with pytest.raises(StoreError, match=r"the codec 'kombu', not by 'text'"):
            self.ends(app, "done", scope="one", operation="one", codec=Text())


class Other:
    """Of a type that no serializer knows."""


UNSERIALISABLE = [
    pytest.param(Other(), {}, "Other", id="json"),
    pytest.param({"a": [Other()]}, {}, "Other", id="json, inside"),
    pytest.param(Other(), {"codec": "yaml"}, "Other", id="yaml"),
    pytest.param(5, {"codec": "raw"}, "neither text nor bytes", id="raw"),
    pytest.param({"__type__": "x", "__value__": 1}, {}, "Unsupported", id="cannot be read back"),
]


class TestUnserialisable:
    @pytest.mark.django_db(transaction=True)
    @pytest.mark.parametrize("mode", ["joined", "single"])
    @pytest.mark.parametrize(("result", "options", "name"), UNSERIALISABLE)
    def test_C5_R62_it_fails_before_the_commit_and_names_the_type(
        self, app: Any, settings: Any, mode: str, result: Any, options: Any, name: str
    ) -> None:
        settings.IDEMPOTENCY = {"default": {"TRANSACTION": mode}}

        @app.task
        @idempotent_task(key=lambda: "one", **options)
        def work() -> Any:
            Effect.objects.create(name="work")
            return result

        with pytest.raises(TypeError, match=rf"(?s)type {type(result).__name__} .*{name}"):
            work()

        assert not Effect.objects.exists()
        assert not IdempotencyRecord.objects.filter(state="COMPLETED").exists()

    @pytest.mark.parametrize(("result", "options", "name"), UNSERIALISABLE)
    def test_C5_R62_separate_completes_without_it(
        self, app: Any, memory: Any, result: Any, options: Any, name: str
    ) -> None:
        runs = []

        @app.task
        @idempotent_task(key=lambda: "one", **options)
        def work() -> Any:
            runs.append(1)
            return result

        assert work() is result
        with pytest.raises(ResultUnavailable):
            work()
        assert runs == [1]


class TestPickle:
    pytestmark = pytest.mark.usefixtures("memory")

    @pytest.mark.parametrize("serializer", ["pickle", "jsn"])
    def test_C5_it_is_refused_at_the_call_as_what_nobody_knows(
        self, app: Any, serializer: str
    ) -> None:
        @app.task
        @idempotent_task(key=lambda: "one")
        def work() -> None:
            pytest.fail("ran")

        work.serializer = serializer

        with pytest.raises(ImproperlyConfigured, match=serializer):
            work()

    def test_C5_it_is_refused_by_any_other_name(self, monkeypatch: pytest.MonkeyPatch) -> None:
        content_type = "application/x-python-serialize"
        monkeypatch.setitem(serialization.registry.name_to_type, "harmless", content_type)

        with pytest.raises(ValueError, match="is pickle"):
            idempotent_task(codec="harmless")

    def test_C5_a_record_that_says_pickle_is_not_read(self) -> None:
        payload = b"result\nkombu\napplication/x-python-serialize\nbinary\nbytes\n\x80\x04N."

        with pytest.raises(ValueError, match="not accepted"):
            TaskCodec(KombuCodec("json")).decode(payload)

    @pytest.mark.parametrize(
        "payload",
        [
            b"",
            b"odd\nx",
            b"result",
            b"result\nkombu\napplication/json\nutf-8\nodd\n1",
            b"result\nkombu\napplication/json\nutf-8\ntext\n\xff",
            b"result\nkombu\napplication/text\nutf-8\ntext\nx",
            b"failed\n[]",
            b"failed\n{}",
            b'failed\n{"module":"os","name":5,"arguments":[],"attributes":{},"text":""}',
            b'failed\n{"module":"os","name":"","arguments":"x","attributes":{},"text":""}',
            b'failed\n{"module":"os","name":"","arguments":[],"attributes":[],"text":""}',
        ],
    )
    def test_R95_a_forged_ending_is_a_StoreError(self, payload: bytes) -> None:
        with pytest.raises(StoreError):
            unpack(TaskCodec(KombuCodec("json", ["json"])), b"\x01\x00\x04task" + payload)

    def test_R95_a_raw_result_is_not_inflated(self) -> None:
        payload = b"result\nkombu\napplication/data\nzlib\nbytes\n" + zlib.compress(b"x" * 99)

        with pytest.raises(StoreError):
            unpack(TaskCodec(KombuCodec("raw")), b"\x01\x00\x04task" + payload)

    def test_C5_a_record_of_a_serializer_that_is_gone_is_not_read(self) -> None:
        serialization.register("words", " ".join, lambda text: str.split(text), "text/x-words")
        payload = KombuCodec("words").encode(["a", "b"])
        serialization.unregister("words")

        with pytest.raises(ValueError, match="'text/x-words' are not accepted"):
            KombuCodec("json").decode(payload)
