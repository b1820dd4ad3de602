"""Defects of a guard, before and behind an application: the contract of HTTP has to find them."""

from __future__ import annotations

from contextlib import closing
from types import SimpleNamespace
from wsgiref.headers import Headers

KEY, USER, REPLAYED = "HTTP_IDEMPOTENCY_KEY", "HTTP_X_USER", "Idempotency-Replayed"


def spoilt(application, defect):
    """Return the application with a defect of its POSTs."""
    before, after = BEFORE.get(defect), AFTER.get(defect)

    def spoil(environ, start_response):
        if environ["REQUEST_METHOD"] != "POST":
            return application(environ, start_response)
        told = []
        if before:
            before[0](environ)
        with closing(application(environ, lambda *begun: told.append(begun))) as parts:
            body = b"".join(parts)
        status, fields = told[0][:2]
        answer = SimpleNamespace(status=int(status[:3]), headers=Headers(fields), body=body)
        if after:
            after[0](environ, answer)
        start_response(f"{answer.status} Status", answer.headers.items())
        return [answer.body]

    return spoil


def _key(change):
    return lambda environ: environ.update({KEY: change(environ[KEY])} if KEY in environ else {})


def _no_key(environ):
    environ.pop(KEY, None)
    environ["PATH_INFO"] = "/optional/"


def _one_user(environ):
    environ.update({USER: "everybody"} if environ.get(USER) else {})


def _anybody(environ):
    environ.setdefault(USER, "alice")


def _with(name, value):
    return lambda environ, answer: answer.headers.__setitem__(name, value)


def _without(name):
    return lambda environ, answer: answer.headers.__delitem__(name)


def _status(of, to):
    return lambda _, answer: vars(answer).update({"status": to} if answer.status == of else {})


def _replays(spoil):
    return lambda environ, answer: spoil(environ, answer) if REPLAYED in answer.headers else None


def _byte(environ, answer):
    answer.body = answer.body[:-1] + b" "


def _telling(environ, answer):
    if answer.status in (400, 409, 422):
        key = environ.get(KEY, "")
        answer.body = answer.body.replace(b'"detail": "', f'"detail": "{key} '.encode())
        answer.headers["Content-Length"] = str(len(answer.body))


def _new_key_is_safe(environ, answer):
    answer.body = answer.body.replace(b'"safe_new_key": false', b'"safe_new_key": true')
    answer.headers["Content-Length"] = str(len(answer.body))


REPLAY = "R25_replay_is_byte_equal"
LATER = "Thu, 01 Jan 2099 00:00:00 GMT"
#: What is done to a request, and the tests that find it.
BEFORE = {
    "lower case": (_key(str.lower), "R11_keys_are_case_sensitive_and_byte_exact"),
    "cut short": (
        _key(lambda key: key[:200] + '"' * (len(key) > 200)),
        "R9_256_characters_are_400",
    ),
    "bare keys": (_key(lambda key: key.partition(";")[0]), "R6_malformed_parameters_are_400"),
    "first of two": (_key(lambda key: key.partition(",")[0]), "R7_two_field_lines_are_400"),
    "one scope": (_one_user, "R19_two_users_with_one_key_run_twice"),
    "anybody": (_anybody, "R14_a_stranger_claims_no_key_and_gets_no_stored_body"),
    "no query": (lambda environ: environ.update(QUERY_STRING=""), "R40_query_counts"),
    "no guard": (_no_key, f"{REPLAY} R50_equal_requests_at_once_run_once"),
}
#: What is done to an answer.
AFTER = {
    "not marked": (_without(REPLAYED), REPLAY),
    "all marked": (_with(REPLAYED, "true"), "R2_without_a_key_it_runs_each_time"),
    "another status": (_replays(_status(201, 200)), REPLAY),
    "other bytes": (_replays(_byte), f"{REPLAY} R29_bodies_are_byte_equal"),
    "cookies": (
        _replays(_with("Set-Cookie", "seen=1")),
        "R30_header_fields_of_the_answer_are_replayed",
    ),
    "no Location": (
        _replays(_without("Location")),
        f"{REPLAY} R28_every_success_replays_as_it_is",
    ),
    "no Expires": (
        _replays(_without("Idempotency-Expires")),
        "R77_the_end_of_retention_is_published",
    ),
    "extended": (
        _replays(_with("Idempotency-Expires", LATER)),
        "R73_within_retention_it_replays_which_extends_nothing",
    ),
    "stored in between": (
        _without("Cache-Control"),
        "R31_replays_and_mismatches_are_never_stored_in_between",
    ),
    "mismatch is 409": (
        _status(422, 409),
        "R37_other_body_is_a_mismatch R38_mismatch_beats_in_progress",
    ),
    "no Retry-After": (_without("Retry-After"), "R61_store_down_at_the_claim_is_503"),
    "no Link": (_without("Link"), "R1_missing_key_is_a_problem_that_says_where_to_read"),
    "key told": (_telling, "R79_problems_name_neither_key_nor_payload"),
    "a new key is safe": (_new_key_is_safe, "R78_members_of_a_problem"),
    "missing is 422": (_status(400, 422), "R8_empty_is_invalid_and_not_missing"),
}
