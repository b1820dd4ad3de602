"""Section J, R83, R86 and R89: transactions of requests, hooks, and forms of visitors."""

from __future__ import annotations

from collections.abc import Sequence
from html.parser import HTMLParser
from http.cookies import SimpleCookie

from django_idempotency.testing.http_contract.asking import Asking
from django_idempotency.testing.http_contract.declared import Page, needs
from django_idempotency.testing.http_contract.wire import (
    Answer,
    Call,
    Exchange,
)

HTML = ("Accept", "text/html,application/xhtml+xml,*/*;q=0.8")


class DjangoRules(Asking):
    """R83, R86 and R89."""

    @needs("held", "atomic_requests")
    def test_R83_claim_is_visible_while_the_view_runs_in_a_transaction(self) -> None:
        tag, key = self.new(), self.new()
        with self.in_flight(tag, self.held(tag), key) as flight:
            other = self.ask(self.held(self.new()), key)
            first = self.ended(tag, flight)
        assert self.is_in_progress(flight.refused), flight
        assert other.status == self.mismatch_status, other
        self.expect_first(first)
        self.expect_once(tag)

    @needs("hooked", "hooks")
    def test_R86_a_hook_runs_once_and_not_on_a_replay(self) -> None:
        tag = self.new()
        first, again = self.twice(self.hooked(tag), self.new())
        self.expect_first(first)
        self.expect_replay(again, of=first)
        assert self.hooks(tag) == 1

    @needs("hooked_failure", "hooks", "rolls_back")
    def test_R86_a_hook_of_work_that_is_rolled_back_does_not_run(self) -> None:
        tag = self.new()
        failed = self.ask(self.hooked_failure(tag), self.new())
        assert not failed.is_success, failed
        assert self.hooks(tag) == 0

    @needs("page")
    def test_R89_a_double_click_runs_once_and_both_see_the_page(self) -> None:
        tag = self.new()
        visitor = Visitor(self, self.page(tag))
        clicks = [visitor.click() for _ in range(2)]
        first, second = sorted((click.answer() for click in clicks), key=self.is_replay)
        self.expect_first(first)
        self.expect_replay(second, of=first)
        assert first.headers["Location"] == second.headers["Location"]
        self.expect_once(tag)

    @needs("held_page")
    def test_R89_the_second_click_waits_for_the_first(self) -> None:
        tag = self.new()
        visitor = Visitor(self, self.held_page(tag))
        clicks = [visitor.click() for _ in range(2)]
        early = self.first_answered(clicks, 0.3)
        self.let_go(tag)
        answers = [click.answer() for click in clicks]
        assert early is None, answers
        first, second = sorted(answers, key=self.is_replay)
        self.expect_first(first)
        self.expect_replay(second, of=first)
        self.expect_once(tag)

    @needs("page")
    def test_R89_every_page_has_a_key_of_its_own(self) -> None:
        tag = self.new()
        visitor = Visitor(self, self.page(tag))
        first = visitor.click().answer()
        visitor.open()
        second = visitor.click().answer()
        for answer in (first, second):
            self.expect_first(answer)
        assert self.effects(tag) == 2

    @needs("page")
    def test_R89_the_csrf_token_does_not_count(self) -> None:
        tag = self.new()
        visitor = Visitor(self, self.page(tag))
        first = visitor.click().answer()
        sent = visitor.hidden
        visitor.open()
        changed = {**visitor.hidden, "idempotency_key": sent["idempotency_key"]}
        assert changed != sent, "there is no csrfmiddlewaretoken"
        visitor.hidden = changed
        self.expect_replay(visitor.click().answer(), of=first)
        self.expect_once(tag)

    @needs("page")
    def test_R89_a_changed_form_gets_a_page_that_says_so(self) -> None:
        tag = self.new()
        visitor = Visitor(self, self.page(tag))
        visitor.click().answer()
        visitor.fields = self.page(self.new()).fields
        refused = visitor.click().answer()
        assert refused.status == self.mismatch_status, refused
        assert refused.headers.get_content_type() == "text/html", refused
        assert refused.headers["Cache-Control"] == "no-store", refused

    @needs("page")
    def test_R89_a_visitors_key_is_worth_nothing_to_another(self) -> None:
        tag = self.new()
        visitor, other = Visitor(self, self.page(tag)), Visitor(self, self.page(tag))
        first = visitor.click().answer()
        other.hidden["idempotency_key"] = visitor.hidden["idempotency_key"]
        second = other.click().answer()
        for answer in (first, second):
            self.expect_first(answer)
        assert self.effects(tag) == 2


class Visitor:
    """Somebody with a browser, who has opened the page and filled in its form."""

    def __init__(self, rules: Asking, page: Page) -> None:
        self._rules = rules
        self._cookies: SimpleCookie = SimpleCookie()
        self._page = page
        self.fields: Sequence[tuple[str, str]] = page.fields
        #: What the form has and nobody sees: the key, and the token against forged requests.
        self.hidden: dict[str, str] = {}
        self.open()

    def open(self) -> Answer:
        """Load the page."""
        answer = self._send("GET", None).answer()
        for line in answer.headers.get_all("Set-Cookie", []):
            self._cookies.load(line)
        self.hidden = hidden_fields(answer.body.decode())
        assert "idempotency_key" in self.hidden, answer
        return answer

    def click(self) -> Exchange:
        """Press the form's button."""
        return self._send("POST", [*self.hidden.items(), *self.fields])

    def _send(self, method: str, body: list[tuple[str, str]] | None) -> Exchange:
        call = Call(self._page.path, body, method, headers=[HTML])
        cookies = "; ".join(f"{cookie.key}={cookie.value}" for cookie in self._cookies.values())
        return self._rules.send(call, None, user="nobody", headers=[("Cookie", cookies)])


class _Hidden(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "input" and given.get("type") == "hidden":
            self.found[given.get("name") or ""] = given.get("value") or ""


def hidden_fields(page: str) -> dict[str, str]:
    """Return the hidden fields of the forms in a page."""
    parser = _Hidden()
    parser.feed(page)
    return parser.found
