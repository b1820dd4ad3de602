"""How a rule asks an API, and what it expects of the answers."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from django_idempotency.testing.http_contract.declared import Declared
from django_idempotency.testing.http_contract.wire import (
    Answer,
    Call,
    Exchange,
    Fields,
)

#: Seconds between two looks at something that is still to come.
PAUSE = 0.05


Name = TypeVar("Name", int, str)


def quoted(key: str) -> str:
    """Return a key as a structured-field String (R3)."""
    escaped = key.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


@dataclass(frozen=True)
class Flight:
    """Work that is held, and what a second request was told meanwhile."""

    refused: Answer
    owner: Exchange


class Asking(Declared):
    """Sends calls with keys; fails where an answer is not what it has to be."""

    def new(self) -> str:
        """Return a tag or a key that nobody has used, and that is no number."""
        return f"a{uuid.uuid4().hex[:15]}"

    def ask(
        self,
        call: Call,
        key: str | None,
        *,
        user: str = "alice",
        field: str | None = None,
        headers: Fields = (),
        chunked: bool = False,
    ) -> Answer:
        """
        Send a call and return its answer.

        The key is quoted; `field` is the value of its header field instead, as it is.
        """
        return self.send(
            call, key, user=user, field=field, headers=headers, chunked=chunked
        ).answer()

    def send(
        self,
        call: Call,
        key: str | None,
        *,
        user: str = "alice",
        field: str | None = None,
        headers: Fields = (),
        chunked: bool = False,
    ) -> Exchange:
        """Send a call and leave its answer unread."""
        if key is not None and field is None:
            field = quoted(key)
        fields = [*self.sign(user, field, call.payload).items(), *headers]
        if field is not None:
            fields.append((self.header, field))
        return self.transport.send(
            self.base_url, call, fields, seconds=self.timeout, chunked=chunked
        )

    def first_answered(self, exchanges: Sequence[Exchange], seconds: float) -> Exchange | None:
        """Return the one whose answer comes first; None if none comes in so many seconds."""
        first: Exchange | None = self.transport.first_answered(exchanges, seconds)
        return first

    def twice(self, call: Call, key: str, *, user: str = "alice") -> tuple[Answer, Answer]:
        """Send a call twice, one after the other."""
        return self.ask(call, key, user=user), self.ask(call, key, user=user)

    def created(self, call: Call, key: str | None, *, user: str = "alice") -> Answer:
        """Send a call that has to be run, and return its answer."""
        answer = self.ask(call, key, user=user)
        self.expect_first(answer)
        return answer

    @contextmanager
    def in_flight(self, tag: str, call: Call, key: str, headers: Fields = ()) -> Iterator[Flight]:
        """
        Send a call twice at once, and go on while one of the two is at work.

        The other has been refused by then. However the test ends, the work is let go.
        """
        two = [self.send(call, key, headers=headers) for _ in range(2)]
        try:
            answered = self.first_answered(two, self.patience)
            assert answered is not None, "of two equal requests at once none was refused"
            [owner] = [exchange for exchange in two if exchange is not answered]
            yield Flight(answered.answer(), owner)
        finally:
            self.let_go(tag)
            for exchange in two:
                exchange.close()

    def ended(self, tag: str, flight: Flight) -> Answer:
        """Let the work go on, and return what its owner gets."""
        self.let_go(tag)
        return flight.owner.answer()

    def until(self, asked: Callable[[], Answer], holds: Callable[[Answer], bool]) -> Answer:
        """Ask until the answer is as it should be; fail when patience is at its end."""
        deadline = time.monotonic() + self.patience
        while not holds(answer := asked()):
            assert time.monotonic() < deadline, answer
            time.sleep(PAUSE)
        return answer

    # What answers have to be.

    def is_replay(self, answer: Answer) -> bool:
        """Return whether an answer says that it comes from the record."""
        return answer.headers.get(self.replay_header) == "true"

    def is_in_progress(self, answer: Answer) -> bool:
        """Return whether an answer says that the first request is still at work."""
        return answer.status == self.in_progress_status and answer.retry_after > 0

    def expect_first(self, answer: Answer) -> None:
        """Fail unless it is a success that comes from the view."""
        assert answer.is_success, answer
        assert self.replay_header not in answer.headers, answer

    def expect_replay(self, answer: Answer, of: Answer) -> None:
        """Fail unless it is a replay, and has the status and the bytes of the other."""
        assert self.is_replay(answer), answer
        assert (answer.status, answer.body) == (of.status, of.body), (answer, of)

    def expect_problem(self, answer: Answer, status: int, code: str) -> None:
        """Fail unless it is this problem."""
        assert answer.status == status, answer
        assert answer.code == code, answer

    def expect_refused_bytes(self, answer: Answer) -> None:
        """Fail unless the key was refused: by us, or by a server that refuses such bytes."""
        assert answer.status == 400, answer
        assert answer.code in ("idempotency_key_invalid", None), answer

    def expect_once(self, tag: str) -> None:
        """Fail unless there is one effect."""
        assert self.effects(tag) == 1

    def each(self, calls: Callable[[str], Mapping[Name, Call]]) -> Iterator[tuple[Name, str, Call]]:
        """Return name, tag and call of each that is declared, each with a tag of its own."""
        names = sorted(calls(self.new()))
        assert names, f"{calls} declares none"
        for name in names:
            tag = self.new()
            yield name, tag, calls(tag)[name]
