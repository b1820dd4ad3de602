"""What a duplicate of a finished task gets, and what the first caller gets (C4, C5, C11, C12)."""

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
ONE = {"scope": "one", "operation": "one"}


class Text:
    """A codec of the project's own."""

    id, exact = "text", True

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


@pytest.mark.parametrize(("wish", "error"), [("ignore", Ignore), ("raise", DuplicateTask)])
def test_C4_it_ends_as_it_is_told(work, wish, error):
    for result in ("kept", object()):
        task = work(result, on_duplicate=wish)

        assert task() == result
        with pytest.raises(error):
            task()


#: A result, the codec, and what comes of it where that is not the same.
KEPT = [
    *((falsy, None) for falsy in (0, "", None, [], {}, False, 0.0)),
    (Decimal("1.10"), None),
    (datetime(2026, 7, 1, 12, 30, 1, 5, tzinfo=timezone.utc), None),
    (uuid.UUID(int=7), None),
    (b"\x00\xff", None),
    ("\N{SNOWMAN}", None),
    ({"nested": [Decimal("0.1"), {"at": DAY}]}, None),
    ({1: "a"}, "yaml"),
    ("a\nb", Text()),
    (["a", "b"], "words"),
    ("text", "raw"),
    (b"bytes", "raw"),
    # What JSON loses is lost for the first caller too.
    ((1, 2), None, [1, 2]),
    ({1: "a"}, None, {"1": "a"}),
]


def test_C5_two_callers_never_get_the_same_object():
    codec = KombuCodec("json")
    first, again = (codec.decode(codec.encode(result)) for result in (["a"], ["a"]))
    payload = codec.encode(["a"])
    results = [first, again, codec.decode(payload), codec.decode(payload)]
    assert (results, len({id(result) for result in results})) == ([["a"]] * 4, 4)


@pytest.mark.parametrize("keys", [(), [bytes(32)]], ids=["plain", "encrypted"])
@pytest.mark.usefixtures("words")
def test_C4_C5_values_come_back_equal_whatever_they_are(work, keys):
    for result, codec, *lossy in KEPT:
        task = work(result, codec=codec, encryption_keys=keys)
        first, again = task(), task()

        [expected] = lossy or [result]
        assert first == again == expected
        assert type(first) is type(again) is type(expected)


def test_C5_R95_a_task_may_change_its_serializer_to_one_that_reads_what_is_accepted(app, work):
    """JSON is, by Celery's default; YAML if ``accept_content`` names it, by either name."""
    old = work({1: DAY}, serializer="yaml", **ONE)
    assert old() == work(None, codec="yaml", **ONE)() == old() == {1: DAY}
    again = work(None, **ONE)

    with pytest.raises(StoreError) as raised:
        again()
    assert "'application/x-yaml' are not accepted" in "".join(format_exception(raised.value))
    for name in ("yaml", "application/x-yaml"):
        app.conf.accept_content = ["json", name]
        assert again() == {1: DAY}
    with pytest.raises(StoreError, match=r"the codec 'kombu', not by 'text'"):
        work(None, codec=Text(), **ONE)()


class Other:
    """Of a type that no serializer knows."""


UNSERIALISABLE = [
    (Other(), "json", "Other"),
    ({"a": [Other()]}, "json", "Other"),
    (Other(), "yaml", "Other"),
    (5, "raw", "neither text nor bytes"),
    ({"__type__": "x", "__value__": 1}, "json", "Unsupported"),  # it could not be read back
]


def test_C5_R62_what_cannot_be_kept_is_a_type_error_that_names_it():
    for result, serializer, name in UNSERIALISABLE:
        with pytest.raises(TypeError, match=rf"(?s)type {type(result).__name__} .*{name}"):
            TaskCodec(KombuCodec(serializer)).encode(result)


def test_C5_R62_separate_completes_without_it(work):
    result = Other()
    task = work(result)

    assert task() is result
    with pytest.raises(ResultUnavailable):
        task()


def test_C5_pickle_is_refused_by_any_name_as_what_nobody_knows(app, work, monkeypatch):
    task = work("ran")
    for task.serializer in ("pickle", "jsn"):
        with pytest.raises(ImproperlyConfigured, match=task.serializer):
            task()

    content_type = "application/x-python-serialize"
    monkeypatch.setitem(serialization.registry.name_to_type, "harmless", content_type)
    with pytest.raises(ValueError, match="is pickle"):
        idempotent_task(codec="harmless")


def test_R62_what_is_no_codec_is_a_TypeError_at_decoration():
    for codec in (Text, 5, object()):
        with pytest.raises(TypeError, match="codec must be an object with"):
            idempotent_task(codec=codec)


FORGED = [
    b"",
    b"odd\nx",
    b"result",
    b"result\nkombu\napplication/json\nutf-8\nodd\n1",
    b"result\nkombu\napplication/json\nutf-8\ntext\n\xff",
    b"result\nkombu\napplication/text\nutf-8\ntext\nx",
    b"result\nkombu\napplication/x-python-serialize\nbinary\nbytes\n\x80\x04N.",
    b"result\nkombu\ntext/x-words\nutf-8\ntext\na b",
    b"failed\n[]",
    b"failed\n{}",
    b'failed\n{"kind":5,"arguments":[]}',
    b'failed\n{"kind":"os.Error","arguments":"x"}',
]
INFLATED = b"result\nkombu\napplication/data\nzlib\nbytes\n" + zlib.compress(b"x" * 99)


def test_R95_C5_a_forged_ending_is_a_StoreError():
    """Pickled, of a serializer that is gone, or inflated, too."""
    for serializer, payload in [*(("json", forged) for forged in FORGED), ("raw", INFLATED)]:
        with pytest.raises(StoreError):
            unpack(
                TaskCodec(KombuCodec(serializer, lambda: ["json"])), b"\x01\x00\x04task" + payload
            )


# On the database.


@pytest.fixture
def effects(app):
    """A task that writes a row, and returns the result that it is called with."""

    @app.task
    @idempotent_task(key=lambda result: "one", payload=None)
    def work(result):
        return Effect.objects.create(name="work") and result

    return work


@pytest.mark.django_db(transaction=True)
def test_C5_R62_joined_fails_before_the_commit(effects):
    with pytest.raises(TypeError, match="type Other"):
        effects(Other())

    assert not Effect.objects.exists()
    assert IdempotencyRecord.objects.get().state == "FAILED"


@pytest.mark.django_db
def test_C11_C12_in_place_and_inside_a_testcase_a_duplicate_gets_the_result(app, effects):
    app.conf.task_always_eager = True
    first, again = effects.delay("a"), effects.delay("b")

    assert (first.state, again.state) == ("SUCCESS", "SUCCESS")
    assert first.get() == again.get() == "a"
    assert (Effect.objects.count(), IdempotencyRecord.objects.get().state) == (1, "COMPLETED")
