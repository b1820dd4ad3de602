"""What a policy refuses, and what it says of it."""

from __future__ import annotations

import dataclasses
import re

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
    "wait": (-1, "must be a timedelta or a number of seconds, 0 or more."),
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
    "header": ("", "must be the name of a field."),
    "required": (1, BOOLEAN),
    "methods": (["GET"], "must be a set of DELETE, PATCH, POST, PUT."),
    "form_field": ("", "must be the name of a field."),
    "scope": (5, DOTTED),
    "scope_endpoint": (1, BOOLEAN),
    "fingerprint": (5, DOTTED),
    "fingerprint_exclude": (5, "must be paths of JSON members."),
    "fingerprint_headers": (5, "must be names of header fields."),
    "key_validator": ("uid", "must be one of uuid, uuid7, not 'uid'. Did you mean 'uuid'?"),
    "key_min_length": (0, LENGTHS),
    "key_max_length": (256, LENGTHS),
    "strict_header": (1, BOOLEAN),
    "keep": ("all", "must be one of default, success, stripe, not 'all'."),
    "replay_header": ("", "must be the name of a header field, or None."),
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
