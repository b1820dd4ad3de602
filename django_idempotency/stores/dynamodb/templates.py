"""The store's table as CloudFormation, CDK and Terraform have it."""

from __future__ import annotations

import json
from typing import Any

from django_idempotency.stores.dynamodb import schema as dynamodb_schema
from django_idempotency.stores.dynamodb.store import DynamoDBStore

CDK = """\
from pathlib import Path

from aws_cdk import Stack
from aws_cdk.cloudformation_include import CfnInclude
from constructs import Construct

# What `manage.py idempotency_table > idempotency_table.json` has written.
TEMPLATE = Path(__file__).with_name("idempotency_table.json")


class IdempotencyStack(Stack):
    def __init__(self, scope: Construct, construct_id: str, **kwargs) -> None:
        super().__init__(scope, construct_id, **kwargs)
        CfnInclude(self, "Idempotency", template_file=str(TEMPLATE))
"""


def cloudformation(store: DynamoDBStore) -> dict[str, Any]:
    """Return a template with the table, which is kept when the stack is deleted."""
    table = store.table
    properties = dynamodb_schema.definition(table.name, table.names)
    for specification in dynamodb_schema.options(store).values():
        properties |= specification
    return {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": "Idempotency records of django-idempotency",
        "Resources": {
            "IdempotencyTable": {
                "Type": "AWS::DynamoDB::Table",
                "DeletionPolicy": "Retain",
                "UpdateReplacePolicy": "Retain",
                "Properties": properties,
            }
        },
    }


def terraform(store: DynamoDBStore) -> dict[str, Any]:
    """Return a resource of the provider hashicorp/aws, for a file ``….tf.json``."""
    keys = [key["AttributeName"] for key in store.names.key_schema()]
    table: dict[str, Any] = {
        "name": store.table.name,
        "billing_mode": "PAY_PER_REQUEST",
        **dict(zip(("hash_key", "range_key"), keys, strict=False)),
        "attribute": [{"name": key, "type": "S"} for key in keys],
        "point_in_time_recovery": {"enabled": True},
        "lifecycle": {"prevent_destroy": True},
    }
    if store.ttl:
        table["ttl"] = {"attribute_name": store.names.of["expiry"], "enabled": True}
    return {"resource": {"aws_dynamodb_table": {"idempotency": _escaped(table)}}}


def _escaped(value: Any) -> Any:
    """Return a value whose texts are no templates to Terraform."""
    if isinstance(value, dict):
        return {name: _escaped(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_escaped(item) for item in value]
    return value.replace("${", "$${").replace("%{", "%%{") if isinstance(value, str) else value


#: What can be printed, by the name of the format.
FORMATS = {
    "cloudformation": lambda store: json.dumps(cloudformation(store), indent=2),
    "cdk": lambda store: CDK,
    "terraform": lambda store: json.dumps(terraform(store), indent=2),
}
