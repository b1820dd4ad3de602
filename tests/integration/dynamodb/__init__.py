"""The DynamoDB store alone: what the contract of all stores does not say."""

from __future__ import annotations
