"""The store's table as CloudFormation, CDK and Terraform have it."""

from __future__ import annotations

import json
import textwrap
from typing import Any

from django_idempotency.stores.dynamodb import schema as dynamodb_schema
from django_idempotency.stores.dynamodb.store import DynamoDBStore

__all__ = ["FORMATS"]

CDK = """\
from aws_cdk import RemovalPolicy, Stack
from aws_cdk import aws_dynamodb as dynamodb
from constructs import Construct


class IdempotencyStack(Stack):
    def __init__(self, scope: Construct, construct_id: str, **kwargs) -> None:
        super().__init__(scope, construct_id, **kwargs)
        self.table = dynamodb.Table(
            self,
            "IdempotencyTable",
{arguments}
            billing_mode=dynamodb.BillingMode.PAY_PER_REQUEST,
            point_in_time_recovery_specification=dynamodb.PointInTimeRecoverySpecification(
                point_in_time_recovery_enabled=True,
            ),
            removal_policy=RemovalPolicy.RETAIN,
        )
"""

TERRAFORM = """\
resource "aws_dynamodb_table" "idempotency" {{
  name         = {name}
  billing_mode = "PAY_PER_REQUEST"
{keys}

{blocks}

  point_in_time_recovery {{
    enabled = true
  }}

  lifecycle {{
    prevent_destroy = true
  }}
}}
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


def cloudformation_json(store: DynamoDBStore) -> str:
    """Return the template as JSON."""
    return json.dumps(cloudformation(store), indent=2)


def cloudformation_yaml(store: DynamoDBStore) -> str:
    """Return the template as YAML."""
    return "\n".join(_yaml(cloudformation(store)))


def cdk(store: DynamoDBStore) -> str:
    """Return a stack in Python."""
    lines = [f"table_name={_python(store.table.name)},"]
    for argument, key in zip(("partition_key", "sort_key"), _keys(store), strict=False):
        lines += [
            f"{argument}=dynamodb.Attribute(",
            f"    name={_python(key)}, type=dynamodb.AttributeType.STRING",
            "),",
        ]
    if store.ttl:
        lines.append(f"time_to_live_attribute={_python(store.names.of['expiry'])},")
    return CDK.format(arguments=textwrap.indent("\n".join(lines), " " * 12))


def terraform(store: DynamoDBStore) -> str:
    """Return a resource of the provider hashicorp/aws."""
    keys = [
        f"  {argument:<12} = {_hcl(key)}"
        for argument, key in zip(("hash_key", "range_key"), _keys(store), strict=False)
    ]
    blocks = [
        f'  attribute {{\n    name = {_hcl(key)}\n    type = "S"\n  }}' for key in _keys(store)
    ]
    if store.ttl:
        expiry = _hcl(store.names.of["expiry"])
        blocks.append(f"  ttl {{\n    attribute_name = {expiry}\n    enabled        = true\n  }}")
    return TERRAFORM.format(
        name=_hcl(store.table.name), keys="\n".join(keys), blocks="\n\n".join(blocks)
    )


#: What can be printed, by the name of the format.
FORMATS = {
    "cloudformation": cloudformation_yaml,
    "cloudformation-json": cloudformation_json,
    "cdk": cdk,
    "terraform": terraform,
}


def _keys(store: DynamoDBStore) -> list[str]:
    return [key["AttributeName"] for key in store.names.key_schema()]


def _python(text: str) -> str:
    return json.dumps(text)


def _hcl(text: str) -> str:
    """Return a quoted string of HCL, in which nothing is a template."""
    return json.dumps(text, ensure_ascii=False).replace("${", "$${").replace("%{", "%%{")


def _yaml(value: Any, indent: str = "") -> list[str]:
    """Return dicts, lists and what JSON calls scalars as lines of YAML, each text quoted."""
    lines: list[str] = []
    for name, item in value.items() if isinstance(value, dict) else ((None, x) for x in value):
        start = f"{indent}-" if name is None else f"{indent}{name}:"
        if not isinstance(item, (dict, list)):
            lines.append(f"{start} {json.dumps(item)}")
            continue
        nested = _yaml(item, f"{indent}  ")
        if name is None:
            nested[0] = f"{start} {nested[0].lstrip()}"
        else:
            lines.append(start)
        lines += nested
    return lines
