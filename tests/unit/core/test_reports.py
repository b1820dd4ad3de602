"""Reports of errors show the variables of each frame, as Django's and Sentry's do: no key."""
# mypy: ignore-errors

from __future__ import annotations

import base64
import hmac
from contextlib import contextmanager
from pathlib import Path

import pytest
from django.http import HttpResponse
from django.urls import path
from django.utils.crypto import salted_hmac
from django.views import View
from django.views.debug import ExceptionReporter
from rest_framework.views import APIView

import django_idempotency as idempotency
from django_idempotency.codecs import encryption
from django_idempotency.conf import fingerprint_secrets, policy_for, store_for
from django_idempotency.contrib.celery import idempotent_task
from django_idempotency.contrib.rest_framework import IdempotencyMixin
from django_idempotency.fingerprint import Fingerprint
from django_idempotency.http import idempotent
from django_idempotency.keys import record_id
from django_idempotency.operators.facts import Reading
from django_idempotency.options import Secret, secrets_in
from tests.unit.core.conftest import MEMORY, callers, fail, run

TESTS = Path(__file__).parents[2]
KEY, OLD = (base64.urlsafe_b64encode(bytes(range(at, at + 32))).decode() for at in (33, 160))
SECRET = "Zq7-vX2_mKp9+tR4-secret-of-fingerprints"
BOTH = {"encryption_keys": [KEY, OLD], "fingerprint_secrets": (SECRET,)}


def marks():
    """The bytes that no report shows: of each key, and of what is derived of it."""
    for secret in secrets_in([KEY, OLD, SECRET]):
        yield secret.value.encode()
        salt = "django_idempotency.fingerprint"
        yield salted_hmac(salt, "key", secret.value, algorithm="sha256").digest()
        if secret.value != SECRET:
            yield base64.urlsafe_b64decode(secret.value)
            message = b"django_idempotency.encryption.record:" + RECORD.bytes + b"\1"
            yield hmac.digest(base64.urlsafe_b64decode(secret.value), message, "sha256")


RECORD = record_id("call", "s", "k")
MARKS = {
    form
    for mark in marks()
    for form in (repr(mark)[2:14], mark.hex()[:16], base64.b64encode(mark).decode()[:12])
} | {KEY[:12], OLD[:12], SECRET[:12]}


def frames(error):
    """Each frame of an error and of those that led to it."""
    seen, left = set(), [error]
    while left:
        error = left.pop()
        if error is None or id(error) in seen:
            continue
        seen.add(id(error))
        left += [error.__cause__, error.__context__]
        traceback = error.__traceback__
        while traceback is not None:
            yield traceback.tb_frame
            traceback = traceback.tb_next


def shown(value, depth=0):
    """Yield the texts of a value, as Sentry's serializer looks into it, and deeper."""
    yield repr(value)
    if depth > 6:
        return
    if isinstance(value, dict):
        for name, item in [*value.items()]:
            yield from shown(name, depth + 1)
            yield from shown(item, depth + 1)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for item in [*value]:
            yield from shown(item, depth + 1)


@contextmanager
def no_key_is_reported(*, rendered=True):
    """The block raises, and no frame below this file's has a key of ours."""
    with pytest.raises(Exception) as caught:  # noqa: PT011
        yield
    error, looked_at = caught.value, []
    for frame in frames(error):
        if Path(frame.f_code.co_filename).is_relative_to(TESTS):
            continue
        looked_at.append(frame)
        for name, value in frame.f_locals.items():
            found = [text for text in shown(value) if any(mark in text for mark in MARKS)]
            assert found == [], (name, frame.f_code.co_name, frame.f_code.co_filename)
    assert looked_at or not rendered
    assert not any(mark in str(error) for mark in MARKS)
    if rendered:
        reporter = ExceptionReporter(None, type(error), error, error.__traceback__)
        for text in (reporter.get_traceback_html(), reporter.get_traceback_text()):
            assert "IDEMPOTENCY" in text
            assert [mark for mark in MARKS if mark in text] == []


@pytest.fixture
def alias(settings):
    """``alias(**fields)``: the default alias, a memory store, with these fields of the policy."""
    given = {"BACKEND": MEMORY}

    def change(**fields):
        settings.IDEMPOTENCY = {"default": {**given, **fields}}

    settings.SECRET_KEY = SECRET
    settings.LOGGING_CONFIG = None
    change(ENCRYPTION_KEYS=[KEY], FINGERPRINT_SECRETS=[SECRET])
    return change


class Codec:
    """Raises where it is told to."""

    id, exact, fails_at = "json", False, ""

    def encode(self, result):
        if self.fails_at == "encode":
            raise RuntimeError("encode")
        return b"1"

    def decode(self, payload):
        if self.fails_at == "decode":
            raise RuntimeError("decode")
        return 1


@callers([("run", "separate"), ("arun", "separate"), ("aattempt", "separate")])
def test_no_key_stands_in_a_report_of_the_work_and_of_its_result(call, alias, monkeypatch):
    codec, stored = Codec(), store_for()
    monkeypatch.setattr(codec, "fails_at", "encode")
    with no_key_is_reported():
        call(lambda lease: 1, codec=codec)
    with no_key_is_reported():
        call(fail)
    monkeypatch.setattr(codec, "fails_at", "")
    assert call(lambda lease: 1, codec=codec).result == 1
    monkeypatch.setattr(codec, "fails_at", "decode")
    with no_key_is_reported():
        call(fail, codec=codec)
    monkeypatch.setattr(encryption, "_cipher", lambda *arguments: 1 / 0)
    with no_key_is_reported():
        call(fail, codec=codec)
    with no_key_is_reported():
        call(lambda lease: 1, key="another", codec=codec)
    assert stored


def test_no_key_stands_in_a_report_of_a_result_that_cannot_be_read(alias):
    run(lambda lease: 1)
    run(lambda lease: 1, "another")
    store = store_for()
    mine, theirs = (store.get(record_id("call", "s", key)) for key in ("k", "another"))
    for damaged in (theirs.result, mine.result[:-1], mine.result[:20]):
        with no_key_is_reported():
            encryption.opened(damaged, mine.record_id, policy_for().encryption_keys)
    with no_key_is_reported(rendered=False):
        run(fail, encryption_keys=[OLD])
    assert "put the key back" not in Reading(store_for(), mine).answer.error


def test_no_key_stands_in_a_report_of_what_is_given_with_a_call(alias):
    alias()
    with no_key_is_reported(rendered=False):
        run(fail, **BOTH)
    with no_key_is_reported(rendered=False):
        run(lambda lease: 1, payload=object(), **BOTH)
    with no_key_is_reported(rendered=False), idempotency.attempt(key="k", scope="s", **BOTH):
        fail()
    with no_key_is_reported(rendered=False):
        idempotency.idempotent_function(key="key", scope="s", **BOTH)(lambda key: fail())("k")
    short = {"encryption_keys": KEY[1:]}
    for wrong in ({"leese": 1}, {"lease": -1}, {"encryption_key": KEY}, short):
        with no_key_is_reported(rendered=False):
            run(fail, **{**BOTH, **wrong})
        with no_key_is_reported(rendered=False):
            idempotent(**{**BOTH, **wrong}).args[0].plan()
        with no_key_is_reported(rendered=False):
            idempotent_task(**{**BOTH, **wrong})


#: Settings that are refused, by their number: a report of Django's shows the tests' variables, too.
WRONG = [
    {"default": {"ENCRYPTION_KEY": KEY}},
    {"default": {"ENCRYPTION_KEYS": [KEY, OLD[1:]]}},
    {"default": {"ENCRYPTION_KEYS": [KEY], "LEASE": -1}},
    {"default": {"ENCRYPTION_KEYS": [KEY], "OPTIONS": {"wrong": 1}}},
    {"default": {"FINGERPRINT_SECRETS": [SECRET, ""]}},
    {"default": {"HTTP": {"FINGERPRINT_SECRETS": SECRET}}},
    {"ENCRYPTION_KEYS": [KEY]},
    {"other": {"ENCRYPTION_KEYS": [KEY]}},
]


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_no_key_stands_in_a_report_of_a_wrong_setting(settings, number):
    settings.IDEMPOTENCY = WRONG[number]
    with no_key_is_reported():
        run(fail)


def test_no_key_stands_in_a_report_of_a_fingerprint(alias, settings):
    with no_key_is_reported():
        Fingerprint.of(["no bytes"], fingerprint_secrets(policy_for()))
    settings.SECRET_KEY = [SECRET]
    alias(FINGERPRINT_SECRETS=())
    with no_key_is_reported():
        run(fail)
    settings.SECRET_KEY = f"{SECRET}\udc80"  # no error, whose text would quote it
    assert run(lambda lease: 1).result == 1


def pay(request):
    return HttpResponse(1 / 0)


class Pay(View):
    def post(self, request):
        return pay(request)


class APIPay(IdempotencyMixin, APIView):
    idempotency_encryption_keys, idempotency_fingerprint_secrets = [KEY], SECRET
    authentication_classes = permission_classes = ()

    def post(self, request):
        return pay(request)


class WrongPay(APIPay):
    idempotency_lease = -1


HTTP = {"required": True, "scope": lambda request: "s"}
IN_VIEW = {f"idempotency_{name}": value for name, value in {**BOTH, **HTTP}.items()}
urlpatterns = [
    path("function/", idempotent(**BOTH, **HTTP)(pay)),
    path("class/", idempotent(**BOTH, **HTTP)(Pay.as_view())),
    path("drf/", APIPay.as_view(idempotency_scope=HTTP["scope"])),
    path("keywords/", APIPay.as_view(**IN_VIEW)),
    path("wrong/", WrongPay.as_view(idempotency_scope=HTTP["scope"])),
]


@pytest.mark.parametrize("name", ["function", "class", "drf", "keywords", "wrong"])
def test_no_key_stands_in_a_report_of_a_view(alias, settings, client, name):
    settings.ROOT_URLCONF = __name__
    alias()
    with no_key_is_reported():
        client.post(f"/{name}/", headers={"Idempotency-Key": "k"})


def test_a_secret_is_hidden_and_is_what_it_was_given_as():
    secret = Secret(KEY)
    assert (repr([secret]), str(secret)) == ("[<secret>]", "<secret>")
    assert (secret == Secret(KEY), secret == KEY, secret == Secret(OLD)) == (True, False, False)
    assert (hash(secret), secret.value) == (hash(KEY), KEY)
    assert secrets_in(secrets_in([KEY])) == (secret,)
