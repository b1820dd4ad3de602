"""What the loops of the guide do with messages that cannot be done."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.app.models import Payment
from tests.pages import DOCS, blocks_of

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The names of the page, whose examples have run."""
    models = ModuleType("shop.models")
    vars(models)["Payment"] = Payment
    monkeypatch.setitem(sys.modules, "shop.models", models)
    names: dict[str, Any] = {"__name__": "shop.page"}
    for block in blocks_of(DOCS / "howto/events.md"):
        if block.language == "python":
            exec(block.compiled(), names)
    return SimpleNamespace(**names)


def test_C7_loop_over_SQS_goes_on_after_a_bad_message(page: Any) -> None:
    left = {"m-1": {"Boddy": "x"}, "": {"Body": "no id"}, "m-3": {"Body": "good"}}
    messages = [{"MessageId": name, "ReceiptHandle": name, **body} for name, body in left.items()]
    sqs = SimpleNamespace(
        receive_message=lambda **asked: {"Messages": messages},
        delete_message=lambda *, QueueUrl, ReceiptHandle: left.pop(ReceiptHandle),
    )

    page.consume(sqs, "url")

    assert list(left) == ["m-1", ""]
    assert Payment.objects.filter(reference="good").count() == 1


@pytest.mark.parametrize(
    ("message_id", "body", "told"),
    [
        pytest.param(None, b"amqp-1", "nack, requeue=False", id="C1 no id"),
        pytest.param("a-0", b"forged", "nack, requeue=False", id="C3 another body"),
        pytest.param("a-1", b"\xff", "nack, requeue=True", id="C7 its work fails"),
        pytest.param("a-0", b"amqp-0", "ack", id="C4 a duplicate"),
    ],
)
def test_callback_of_AMQP_answers_for_every_message(
    page: Any, message_id: str | None, body: bytes, told: str
) -> None:
    answers: list[str] = []
    channel = SimpleNamespace(
        basic_ack=lambda tag: answers.append("ack"),
        basic_nack=lambda tag, requeue: answers.append(f"nack, requeue={requeue}"),
    )
    method = SimpleNamespace(delivery_tag=1)
    page.callback(channel, method, SimpleNamespace(message_id="a-0"), b"amqp-0")

    page.callback(channel, method, SimpleNamespace(message_id=message_id), body)

    assert answers == ["ack", told]
