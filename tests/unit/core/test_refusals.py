"""What a policy refuses, and what it says of it."""

from __future__ import annotations

import dataclasses
import re
from datetime import timedelta

import pytest

from django_idempotency.policy import HTTPPolicy, Policy, merge

DURATION = "must be a timedelta or a number of seconds above 0, and at most 100 years."
LENGTHS = (
    "key_min_length and key_max_length must lie between 1 and 255, the first not above the second."
)
STATUS = "must be a status between 400 and 499."
BOOLEAN = "must be True or False."
DOTTED = "must be a callable or its dotted path."
HEADERS = "must be names of header fields, with a minus before those to drop, not 'a b'."
#: A value that each field refuses, and the error after the name of the field.
REFUSED = {
    "lease": (0, DURATION),
    "retention": (0, DURATION),
    "wait": (-1, "must be a timedelta or a number of seconds, 0 or more, and at most 100 years."),
    "renew": (1, BOOLEAN),
    "max_duration": (0, DURATION),
    "transaction": (
        "joint",
        "must be one of single, joined, separate, steps, not 'joint'. Did you mean 'joined'?",
    ),
    "on_stale": ("wait", "must be one of take_over, refuse, not 'wait'."),
    "max_result_bytes": (-1, "must be a whole number of bytes."),
    "max_steps_bytes": (-1, "must be a whole number of bytes."),
    "deadline": (5, "must be a callable that returns the seconds left."),
    "fingerprint_secrets": ("", "must be strings or bytes, none of them empty."),
    "encryption_keys": (
        "x",
        "encryption_keys: key 1 of 1 is not 32 random bytes, or their base64 text.",
    ),
    "header": ("", "must be the name of a header field, not ''."),
    "required": (1, BOOLEAN),
    "methods": (["GET"], "must be a set of DELETE, PATCH, POST, PUT."),
    "form_field": ("", "must be the name of a field."),
    "scope": (5, DOTTED),
    "scope_endpoint": (1, BOOLEAN),
    "fingerprint": (5, DOTTED),
    "fingerprint_exclude": (5, "must be paths of JSON members."),
    "fingerprint_headers": (5, "must be names of header fields, not 5."),
    "key_validator": ("uid", "must be one of uuid, uuid7, not 'uid'. Did you mean 'uuid'?"),
    "key_min_length": (0, LENGTHS),
    "key_max_length": (256, LENGTHS),
    "strict_header": (1, BOOLEAN),
    "keep": ("all", "must be one of default, success, stripe, not 'all'."),
    "replay_header": ("", "must be the name of a header field of its own, or None, not ''."),
    "replay_headers": ("a b", HEADERS),
    "echo_key": (1, BOOLEAN),
    "in_progress_status": (200, STATUS),
    "mismatch_status": (200, STATUS),
    "documentation_url": ("", "must be an URL."),
    "error_renderer": (5, DOTTED),
    "fail_open": (1, BOOLEAN),
    "replay_check": (5, DOTTED),
}


@pytest.mark.parametrize("policy", [Policy, HTTPPolicy])
def test_each_field_refuses_a_wrong_value_and_says_what_is_allowed(policy):
    for field in dataclasses.fields(policy):
        wrong, error = REFUSED[field.name]
        with pytest.raises(ValueError, match=re.escape(error)) as refused:
            merge(policy(), {field.name: wrong})
        assert field.name in str(refused.value)


@pytest.mark.parametrize("field", ["header", "replay_header", "fingerprint_headers"])
@pytest.mark.parametrize("name", ["HTTP_X_KEY", "X Key", "X-Key\r\n", "X-Kéy", "X:Key", " "])
def test_what_no_request_has_is_no_name_of_a_header_field(field, name):
    """A guard that looks for it would find no key, and let each request run."""
    with pytest.raises(ValueError, match=f"{field} must be .*not {re.escape(repr(name))}"):
        merge(HTTPPolicy(), {field: name})


@pytest.mark.parametrize(
    "name", ["Content-Type", "content-length", "Cache-Control", "Idempotency-Stored", "Location"]
)
def test_a_field_that_says_something_else_marks_no_replay(name):
    with pytest.raises(ValueError, match=f"of its own, or None, not '{name}'"):
        merge(HTTPPolicy(), {"replay_header": name})


@pytest.mark.parametrize("given", [{"header": "idempotency-replayed"}, {"replay_header": "x-key"}])
def test_the_key_and_the_mark_of_a_replay_have_two_fields(given):
    with pytest.raises(ValueError, match="replay_header and header must be two header fields"):
        merge(HTTPPolicy(header="X-Key"), given)
    assert merge(HTTPPolicy(header="X-Key"), {"replay_header": None}).replay_header is None


@pytest.mark.parametrize("url", ["/a b/", "/a\r\nSet-Cookie: a=b/", "/<a>/", "/é/", "\x7f"])
def test_what_cannot_stand_in_a_link_is_no_url(url):
    with pytest.raises(ValueError, match="documentation_url must be an URL"):
        merge(HTTPPolicy(), {"documentation_url": url})


def test_a_wait_that_no_clock_can_measure_is_refused():
    with pytest.raises(ValueError, match=r"wait must be .* at most 100 years"):
        merge(Policy(), {"wait": timedelta.max})
    assert merge(Policy(), {"wait": timedelta(days=36_525)}).wait == timedelta(days=36_525)
