"""The table as ``idempotency_table`` prints it: CloudFormation, Terraform and the CDK."""

from __future__ import annotations

import json
import re

import cfnlint
import pytest

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
    template = json.loads(FORMATS["cloudformation"](store))
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
    [resource] = json.loads(FORMATS["terraform"](store))["resource"]["aws_dynamodb_table"].values()
    names = store.names
    keys = [names.partition_key, *([names.sort_key] if names.sort_key else [])]
    assert (resource["name"], resource["billing_mode"]) == ("records", "PAY_PER_REQUEST")
    assert said(resource["hash_key"]) == keys[0]
    assert resource.get("range_key") == names.sort_key
    assert [{**it, "name": said(it["name"])} for it in resource["attribute"]] == [
        {"name": key, "type": "S"} for key in keys
    ]
    assert resource["point_in_time_recovery"] == {"enabled": True}
    assert resource["lifecycle"] == {"prevent_destroy": True}
    if store.ttl:
        assert said(resource["ttl"].pop("attribute_name")) == names.of["expiry"]
        assert resource["ttl"] == {"enabled": True}
    else:
        assert "ttl" not in resource


def said(text):
    """Return what a text says to Terraform, which fills in nothing."""
    assert not re.search(r"(?<!\$)\$\{|(?<!%)%\{", text)
    return text.replace("$${", "${").replace("%%{", "%{")
