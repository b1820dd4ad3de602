"""The shop's refusals: answers of the domain, kept and replayed like any other answer."""

from __future__ import annotations

from rest_framework import status
from rest_framework.exceptions import APIException


class InsufficientFunds(APIException):
    """
    The account does not hold enough.

    The request was carried out, and this is its result: a retry with the same key gets the same
    402 even if the balance has grown meanwhile. To try again, the client sends a new key.
    """

    status_code = status.HTTP_402_PAYMENT_REQUIRED
    default_detail = "The account does not hold enough."
    default_code = "insufficient_funds"


class CurrencyMismatch(APIException):
    """The two accounts have different currencies."""

    status_code = status.HTTP_409_CONFLICT
    default_detail = "The two accounts have different currencies."
    default_code = "currency_mismatch"


class RefundTooLarge(APIException):
    """The refund is more than what is left of its payment."""

    status_code = status.HTTP_409_CONFLICT
    default_detail = "The refund is more than what is left of its payment."
    default_code = "refund_too_large"
