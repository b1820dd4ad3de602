"""The rules of HTTP as tests of any API that is served at a URL, or in this process."""

from __future__ import annotations

from django_idempotency.testing.http_contract.a_header import HeaderRules
from django_idempotency.testing.http_contract.b_scope import ScopeRules
from django_idempotency.testing.http_contract.c_replay import ReplayRules
from django_idempotency.testing.http_contract.d_fingerprint import FingerprintRules
from django_idempotency.testing.http_contract.declared import Page
from django_idempotency.testing.http_contract.e_concurrency import ConcurrencyRules
from django_idempotency.testing.http_contract.f_kept import KeptRules
from django_idempotency.testing.http_contract.g_leases import LeaseRules
from django_idempotency.testing.http_contract.i_errors import ErrorRules
from django_idempotency.testing.http_contract.in_process import ASGITransport, WSGITransport
from django_idempotency.testing.http_contract.j_django import DjangoRules
from django_idempotency.testing.http_contract.selected import Selected
from django_idempotency.testing.http_contract.wire import Answer, Call, Transport, multipart

__all__ = [
    "ASGITransport",
    "Answer",
    "Call",
    "HTTPContract",
    "Page",
    "Transport",
    "WSGITransport",
    "multipart",
]


class HTTPContract(
    HeaderRules,
    ScopeRules,
    ReplayRules,
    FingerprintRules,
    ConcurrencyRules,
    KeptRules,
    LeaseRules,
    ErrorRules,
    DjangoRules,
    Selected,
):
    """
    A test for each rule of HTTP that can be seen from outside, named by its number.

    A subclass says where the API is, who calls it, what creates something and how to count that:
    `base_url` or `transport`, `alice`, `create` and `effects`. Whatever else it declares brings
    the rules that need it; the others are no part of the subclass, and `summary` names them. The
    tests are methods without arguments and need nothing but the standard library: pytest runs them
    as they are, unittest with ``class PaymentTests(HTTPContract, unittest.TestCase)``.
    """
