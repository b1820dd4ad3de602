"""The CDK's own tool makes of the printed stack the very table that CloudFormation is given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from django_idempotency.stores.dynamodb import DynamoDBStore
from django_idempotency.stores.dynamodb.templates import cdk, cloudformation
from tests.services import MissingService, may_be_missing
from tests.services.cdk import synthesize

SHAPES: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "sort key": {"partition_key": "PK", "sort_key": "SK", "attributes": {"expiry": "ttl"}},
    "swept": {"ttl": False},
}

SYNTHESIS = """
import json, runpy, sys
from aws_cdk import App

app = App()
for number, path in enumerate(sys.argv[1:]):
    runpy.run_path(path)["IdempotencyStack"](app, f"stack{number}")
print(json.dumps([stack.template for stack in app.synth().stacks]))
"""


def store_of(shape: dict[str, Any]) -> DynamoDBStore:
    return DynamoDBStore(table_name="records", region_name="eu-west-1", **shape)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The table of each shape's stack; Node takes seconds to start, so all in one go."""
    folder: Path = tmp_path_factory.mktemp("stacks")
    paths = [folder / f"{number}.py" for number in range(len(SHAPES))]
    for path, shape in zip(paths, SHAPES.values(), strict=True):
        path.write_text(cdk(store_of(shape)))
    try:
        templates = json.loads(synthesize(SYNTHESIS, *map(str, paths)))
    except MissingService as error:
        if may_be_missing():
            pytest.skip(str(error))
        raise
    found = {}
    for name, template in zip(SHAPES, templates, strict=True):
        [found[name]] = [
            resource
            for resource in template["Resources"].values()
            if resource["Type"] == "AWS::DynamoDB::Table"
        ]
    return found


@pytest.mark.parametrize("name", SHAPES)
def test_stack_has_the_table_of_the_template(name: str, tables: dict[str, dict[str, Any]]) -> None:
    table = tables[name]
    wanted = cloudformation(store_of(SHAPES[name]))["Resources"]["IdempotencyTable"]

    assert (table["DeletionPolicy"], table["UpdateReplacePolicy"]) == ("Retain", "Retain")
    assert table["Properties"] == wanted["Properties"]
