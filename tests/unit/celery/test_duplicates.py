"""What a duplicate of a finished task gets, and what the first caller gets (C4, C5)."""

from __future__ import annotations

import itertools
import uuid
import zlib
from datetime import date, datetime, timezone
from decimal import Decimal
from traceback import format_exception

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

DAY = date(2026, 7, 1)


class Text:
    """A codec of the project's own."""

    id, exact = "text", True

    def __repr__(self):
        return "Text"

    def encode(self, result):
        return result.encode("utf-16")

    def decode(self, payload):
        return payload.decode("utf-16")


@pytest.fixture
def work(app, memory):
    """`work(result, …)`: a task with one key that returns `result` in its first run alone."""
    numbers = itertools.count()

    def work(result, *, serializer="json", **options):
        results = iter([result])

        @idempotent_task(key=lambda: "one", **options)
        def body():
            return next(results)

        return app.task(body, name=f"work {next(numbers)}", serializer=serializer)

    return work


@pytest.fixture
def words():
    """A serializer of the project's own."""
    serialization.register("words", " ".join, lambda text: str.split(text), "text/x-words")
    yield
    serialization.unregister("words")


@pytest.mark.parametrize("result", [0, "", None, [], {}, False, 0.0, "x", {"a": [1, None]}])
def test_C4_it_returns_the_result_whatever_it_was(local, work, result):
    message = local.send(work(result))
    first, again = local.deliver(message), local.deliver(message)

    assert (first.state, again.state) == ("SUCCESS", "SUCCESS")
    assert first.value == again.value == result
    assert type(again.value) is type(result)


@pytest.mark.parametrize(("wish", "error"), [("ignore", Ignore), ("raise", DuplicateTask)])
@pytest.mark.parametrize("result", ["done", object()], ids=["kept", "not kept"])
def test_C4_it_ends_as_it_is_told(work, wish, error, result):
    task = work(result, on_duplicate=wish)

    assert task() == result
    with pytest.raises(error):
        task()


@pytest.mark.usefixtures("words")
@pytest.mark.parametrize(
    ("result", "codec"),
    [
        (Decimal("1.10"), None),
        (datetime(2026, 7, 1, 12, 30, 1, 5, tzinfo=timezone.utc), None),
        (uuid.UUID(int=7), None),
        (b"\x00\xff", None),
        (b"text", None),
        ("\N{SNOWMAN}", None),
        ({"nested": [Decimal("0.1"), {"at": DAY}]}, None),
        ({1: "a"}, "yaml"),
        ("a\nb", Text()),
        (["a", "b"], "words"),
        ("text", "raw"),
        (b"bytes", "raw"),
    ],
    ids=repr,
)
def test_C5_values_come_back_equal(work, result, codec):
    task = work(result, codec=codec)
    first, again = task(), task()

    assert first == again == result
    assert type(first) is type(again) is type(result)


@pytest.mark.parametrize(("result", "left"), [((1, 2), [1, 2]), ({1: "a"}, {"1": "a"})])
def test_C5_what_json_loses_is_lost_for_the_first_caller_too(work, result, left):
    task = work(result)

    assert [task(), task()] == [left, left]


def test_C5_a_task_has_a_serializer_and_may_change_it(work):
    shared = {"scope": "one", "operation": "one"}
    old, new = work({1: DAY}, serializer="yaml", **shared), work(None, codec="yaml", **shared)

    assert old() == new() == old() == {1: DAY}


def test_R95_a_serializer_that_is_not_accepted_is_not_read(app, work):
    """JSON is, by Celery's default; YAML if ``accept_content`` names it, by either name."""
    work([1], serializer="yaml", scope="one", operation="one")()
    again = work(None, scope="one", operation="one")

    with pytest.raises(StoreError) as raised:
        again()
    assert "'application/x-yaml' are not accepted" in "".join(format_exception(raised.value))
    for name in ("yaml", "application/x-yaml"):
        app.conf.accept_content = ["json", name]
        assert again() == [1]


def test_C5_a_result_of_another_codec_is_not_read(work):
    work("done", scope="one", operation="one")()

    with pytest.raises(StoreError, match=r"the codec 'kombu', not by 'text'"):
        work(None, scope="one", operation="one", codec=Text())()


class Other:
    """Of a type that no serializer knows."""


UNSERIALISABLE = [
    pytest.param(Other(), {}, "Other", id="json"),
    pytest.param({"a": [Other()]}, {}, "Other", id="json, inside"),
    pytest.param(Other(), {"codec": "yaml"}, "Other", id="yaml"),
    pytest.param(5, {"codec": "raw"}, "neither text nor bytes", id="raw"),
    pytest.param({"__type__": "x", "__value__": 1}, {}, "Unsupported", id="cannot be read back"),
]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("result", "options", "name"), UNSERIALISABLE)
def test_C5_R62_it_fails_before_the_commit_and_names_the_type(app, result, options, name):
    @app.task
    @idempotent_task(key=lambda: "one", transaction="joined", **options)
    def work():
        Effect.objects.create(name="work")
        return result

    with pytest.raises(TypeError, match=rf"(?s)type {type(result).__name__} .*{name}"):
        work()

    assert not Effect.objects.exists()
    assert not IdempotencyRecord.objects.filter(state="COMPLETED").exists()


@pytest.mark.parametrize(("result", "options", "name"), UNSERIALISABLE)
def test_C5_R62_separate_completes_without_it(work, result, options, name):
    task = work(result, **options)

    assert task() is result
    with pytest.raises(ResultUnavailable):
        task()


@pytest.mark.parametrize("serializer", ["pickle", "jsn"])
def test_C5_pickle_is_refused_at_the_call_as_what_nobody_knows(app, work, serializer):
    task = work("ran")
    task.serializer = serializer

    with pytest.raises(ImproperlyConfigured, match=serializer):
        task()


def test_C5_pickle_is_refused_by_any_other_name(monkeypatch):
    content_type = "application/x-python-serialize"
    monkeypatch.setitem(serialization.registry.name_to_type, "harmless", content_type)

    with pytest.raises(ValueError, match="is pickle"):
        idempotent_task(codec="harmless")


@pytest.mark.parametrize(
    ("serializer", "payload"),
    [
        ("json", b""),
        ("json", b"odd\nx"),
        ("json", b"result"),
        ("json", b"result\nkombu\napplication/json\nutf-8\nodd\n1"),
        ("json", b"result\nkombu\napplication/json\nutf-8\ntext\n\xff"),
        ("json", b"result\nkombu\napplication/text\nutf-8\ntext\nx"),
        ("json", b"result\nkombu\napplication/x-python-serialize\nbinary\nbytes\n\x80\x04N."),
        ("json", b"result\nkombu\ntext/x-words\nutf-8\ntext\na b"),
        ("json", b"failed\n[]"),
        ("json", b"failed\n{}"),
        ("json", b'failed\n{"module":"os","name":5,"arguments":[],"attributes":{},"text":""}'),
        ("json", b'failed\n{"module":"os","name":"","arguments":"x","attributes":{},"text":""}'),
        ("json", b'failed\n{"module":"os","name":"","arguments":[],"attributes":[],"text":""}'),
        ("raw", b"result\nkombu\napplication/data\nzlib\nbytes\n" + zlib.compress(b"x" * 99)),
    ],
)
def test_R95_C5_a_forged_ending_is_a_StoreError(serializer, payload):
    """Pickled, of a serializer that is gone, or inflated, too."""
    with pytest.raises(StoreError):
        unpack(TaskCodec(KombuCodec(serializer, ["json"])), b"\x01\x00\x04task" + payload)
