"""The store in a DynamoDB table."""

from __future__ import annotations

from django_idempotency.stores.dynamodb.store import DynamoDBStore

__all__ = ["DynamoDBStore"]
