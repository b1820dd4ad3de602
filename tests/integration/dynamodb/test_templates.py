"""The table as ``idempotency_table`` prints it: CloudFormation, Terraform and the CDK."""

from __future__ import annotations

import ast
import json
import re

import cfnlint
import hcl2
import pytest
import yaml

from django_idempotency.stores.dynamodb import DynamoDBStore
from django_idempotency.stores.dynamodb.templates import FORMATS

SHAPES = {
    "as it comes": {},
    "sort key": {"partition_key": "PK", "sort_key": "SK", "attributes": {"expiry": "ttl"}},
    "swept": {"ttl": False},
    "names that need quotes": {
        "partition_key": "a: ${b} \"c\" 'd'",
        "attributes": {"expiry": "%{e}"},
    },
}


@pytest.fixture(params=SHAPES)
def store(request):
    return DynamoDBStore(table_name="records", region_name="eu-west-1", **SHAPES[request.param])


def test_cloudformation_is_what_the_store_needs(store):
    template = yaml.safe_load(FORMATS["cloudformation"](store))

    assert template == json.loads(FORMATS["cloudformation-json"](store))
    [table] = template["Resources"].values()
    keys = {"HASH": store.names.partition_key, "RANGE": store.names.sort_key}
    keys = {kind: name for kind, name in keys.items() if name}
    assert table == {
        "Type": "AWS::DynamoDB::Table",
        "DeletionPolicy": "Retain",
        "UpdateReplacePolicy": "Retain",
        "Properties": {
            "TableName": "records",
            "BillingMode": "PAY_PER_REQUEST",
            "AttributeDefinitions": [
                {"AttributeName": name, "AttributeType": "S"} for name in keys.values()
            ],
            "KeySchema": [{"AttributeName": name, "KeyType": kind} for kind, name in keys.items()],
            "PointInTimeRecoverySpecification": {"PointInTimeRecoveryEnabled": True},
            **({"TimeToLiveSpecification": ttl(store)} if store.ttl else {}),
        },
    }


def ttl(store):
    return {"AttributeName": store.names.of["expiry"], "Enabled": True}


@pytest.mark.parametrize("store", ["sort key"], indirect=True)
def test_cloudformation_is_valid_by_the_schema_of_its_resources(store):
    found = cfnlint.lint(FORMATS["cloudformation"](store), regions=["eu-west-1"])
    assert [str(match) for match in found] == []


def test_terraform_is_what_the_store_needs(store):
    resource = parsed(FORMATS["terraform"](store))
    names = store.names
    keys = [names.partition_key, *([names.sort_key] if names.sort_key else [])]
    assert (resource["name"], resource["billing_mode"]) == ("records", "PAY_PER_REQUEST")
    assert (resource["hash_key"], resource.get("range_key")) == (keys[0], names.sort_key)
    assert resource["attribute"] == [{"name": key, "type": "S"} for key in keys]
    assert resource["point_in_time_recovery"] == [{"enabled": True}]
    wanted = [{"attribute_name": names.of["expiry"], "enabled": True}]
    assert resource.get("ttl") == (wanted if store.ttl else None)


def parsed(text):
    """Return the one resource of a file of HCL, its quoted strings as what they say."""

    def plain(value):
        if isinstance(value, dict):
            items = {plain(name): plain(item) for name, item in value.items()}
            return {name: item for name, item in items.items() if not name.startswith("__")}
        if isinstance(value, list):
            return [plain(item) for item in value]
        if isinstance(value, str) and value.startswith('"'):
            assert not re.search(r"(?<!\$)\$\{|(?<!%)%\{", value)  # Terraform would fill it in
            return json.loads(value.replace("$${", "${").replace("%%{", "%{"))
        return value

    [kinds] = plain(hcl2.loads(text))["resource"]
    assert list(kinds) == ["aws_dynamodb_table"]
    [resource] = kinds["aws_dynamodb_table"].values()
    return dict(resource)


def test_stack_of_the_CDK_is_what_the_store_needs(store):
    """aws-cdk-lib takes 470 MB and Node: its stack is read here, and run by `make proof`."""
    [table] = [
        node
        for node in ast.walk(ast.parse(FORMATS["cdk"](store)))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "dynamodb.Table"
    ]

    string = "type=dynamodb.AttributeType.STRING"
    expected = {
        "table_name": repr("records"),
        "partition_key": f"dynamodb.Attribute(name={store.names.partition_key!r}, {string})",
        "billing_mode": "dynamodb.BillingMode.PAY_PER_REQUEST",
        "point_in_time_recovery_specification": (
            "dynamodb.PointInTimeRecoverySpecification(point_in_time_recovery_enabled=True)"
        ),
        "removal_policy": "RemovalPolicy.RETAIN",
    }
    if store.names.sort_key:
        expected["sort_key"] = f"dynamodb.Attribute(name={store.names.sort_key!r}, {string})"
    if store.ttl:
        expected["time_to_live_attribute"] = repr(store.names.of["expiry"])
    assert {str(x.arg): ast.unparse(x.value) for x in table.keywords} == expected
