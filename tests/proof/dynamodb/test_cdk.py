"""The CDK includes the very table that CloudFormation is given."""

from __future__ import annotations

import json

import pytest

from django_idempotency.stores.dynamodb import DynamoDBStore
from django_idempotency.stores.dynamodb.templates import FORMATS, cloudformation
from tests.services import or_skip
from tests.services.cdk import synthesize

SHAPES = {
    "as it comes": {},
    "sort key": {"partition_key": "PK", "sort_key": "SK", "attributes": {"expiry": "ttl"}},
    "swept": {"ttl": False},
}

SYNTHESIS = """
import json, runpy, sys
from aws_cdk import App

app = App()
for number, folder in enumerate(sys.argv[1:]):
    runpy.run_path(f"{folder}/stack.py")["IdempotencyStack"](app, f"stack{number}")
print(json.dumps([stack.template for stack in app.synth().stacks]))
"""


def store_of(name):
    return DynamoDBStore(table_name="records", region_name="eu-west-1", **SHAPES[name])


@pytest.fixture(scope="module")
def resources(tmp_path_factory):
    """The resources of each shape's stack; Node takes seconds to start, so all in one go."""
    folders = [tmp_path_factory.mktemp("stack") for _ in SHAPES]
    for folder, name in zip(folders, SHAPES, strict=True):
        store = store_of(name)
        (folder / "stack.py").write_text(FORMATS["cdk"](store))
        (folder / "idempotency_table.json").write_text(FORMATS["cloudformation"](store))
    templates = json.loads(or_skip(lambda: synthesize(SYNTHESIS, *map(str, folders))))
    found = [template["Resources"].values() for template in templates]
    return dict(zip(SHAPES, found, strict=True))


@pytest.mark.parametrize("name", SHAPES)
def test_stack_has_the_table_of_the_template(name, resources):
    [table] = [found for found in resources[name] if found["Type"] == "AWS::DynamoDB::Table"]
    wanted = cloudformation(store_of(name))["Resources"]["IdempotencyTable"]

    assert (table["DeletionPolicy"], table["UpdateReplacePolicy"]) == ("Retain", "Retain")
    assert table["Properties"] == wanted["Properties"]
