"""An operator's decision whose answer is lost: it may have been done, and leaves a trace."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_idempotency import keys
from django_idempotency.conf import store_for
from django_idempotency.exceptions import StoreError
from django_idempotency.records import State
from tests.claims import asked, won

pytestmark = pytest.mark.django_db(databases=["default"])


def down(*given: Any) -> Any:
    raise StoreError("No answer.")


def failed_record(settings: Any) -> Any:
    """A store and a failed record in it."""
    settings.IDEMPOTENCY = {
        "default": {"BACKEND": "django_idempotency.stores.memory.MemoryStore"},
    }
    store = store_for()
    lease = won(store.claim(asked()))
    store.fail(lease, "builtins.ValueError")
    return store, lease.record_id


def release(record_id: Any) -> str:
    written = io.StringIO()
    words = [str(record_id), "--yes", "--reason", "asked the bank"]
    call_command("idempotency_release", *words, stdout=written, stderr=written)
    return written.getvalue()


def interrupt(*given: Any) -> Any:
    raise KeyboardInterrupt


@pytest.mark.parametrize("lose", [down, interrupt])
def test_a_decision_whose_answer_is_lost_stands_in_the_log_and_says_so(
    settings: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    lose: Callable[..., Any],
) -> None:
    store, record_id = failed_record(settings)
    resolve = store.resolve
    monkeypatch.setattr(store, "resolve", lambda *given: resolve(*given) and lose())

    with pytest.raises((CommandError, KeyboardInterrupt)) as raised:
        release(record_id)

    told = "No answer. It may have been done: look at it again."
    assert str(raised.value) == (told if lose is down else "")

    assert store.get(record_id).state is State.RELEASED
    [line] = caplog.messages
    assert line.startswith(f"Record {keys.short(record_id)}: release by ")
    assert line.endswith(" may have been done. Reason: asked the bank (store default)")


def test_a_decision_is_done_whether_its_record_can_be_read_afterwards_or_not(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, record_id = failed_record(settings)
    get, resolve = store.get, store.resolve

    def resolve_and_go_down(*given: Any) -> bool:
        done: bool = resolve(*given)
        monkeypatch.setattr(store, "get", down)
        return done

    monkeypatch.setattr(store, "resolve", resolve_and_go_down)

    assert release(record_id) == f"Record {keys.short(record_id)} is released.\n"
    assert get(record_id).state is State.RELEASED
