"""The command ``idempotency_table``: what it prints, and what it does to a live table."""

from __future__ import annotations

import ast
import io
import json
import sys
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import cfnlint  # type: ignore[import-untyped]
import hcl2
import pytest
import yaml
from django.core.management import CommandError, call_command

from django_idempotency.conf import store_for
from django_idempotency.stores import dynamodb_schema
from django_idempotency.stores.dynamodb import DynamoDBStore
from tests.integration.dynamodb.conftest import Options
from tests.integration.dynamodb.throttle import Throttle
from tests.services.proxy import Proxy

BACKEND = "django_idempotency.stores.dynamodb.DynamoDBStore"
SHAPES: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "sort key": {"partition_key": "PK", "sort_key": "SK", "attributes": {"expiry": "ttl"}},
    "swept": {"ttl": False},
    "names that need quotes": {
        "partition_key": "a: ${b} \"c\" 'd'",
        "attributes": {"expiry": "%{e}"},
    },
}
shapes = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
plain_shapes = pytest.mark.parametrize("shape", list(SHAPES.values())[:3], ids=list(SHAPES)[:3])


@pytest.fixture
def name() -> str:
    return f"table-{uuid4()}"


@pytest.fixture
def configure(settings: Any, url: str, name: str) -> Any:
    def configured(**options: Any) -> DynamoDBStore:
        given = {"table_name": name, "endpoint_url": url, **options}
        settings.IDEMPOTENCY = {
            "default": {},
            "events": {"BACKEND": BACKEND, "OPTIONS": given},
        }
        store = store_for("events")
        assert isinstance(store, DynamoDBStore)
        return store

    return configured


def said(*arguments: str) -> str:
    out = io.StringIO()
    call_command("idempotency_table", *arguments, stdout=out, stderr=out)
    return out.getvalue()


class TestCloudFormation:
    @shapes
    def test_YAML_and_JSON_say_the_same(self, configure: Any, shape: dict[str, Any]) -> None:
        configure(**shape)

        assert yaml.safe_load(said()) == json.loads(said("--format", "cloudformation-json"))

    @pytest.mark.parametrize("shape", [SHAPES["sort key"]], ids=["sort key"])
    def test_template_is_valid_by_the_schema_of_its_resources(
        self, configure: Any, shape: dict[str, Any]
    ) -> None:
        configure(**shape)

        found = cfnlint.lint(said(), regions=["eu-west-1"])

        assert [str(match) for match in found] == []

    @plain_shapes
    def test_stack_makes_a_table_that_the_store_can_use(
        self, configure: Any, shape: dict[str, Any], name: str
    ) -> None:
        store = configure(**shape)
        cloudformation = store.table.client._boto3.client(
            "cloudformation", endpoint_url=store.table.client.native.meta.endpoint_url
        )

        cloudformation.create_stack(StackName=name, TemplateBody=said())

        # moto's stacks turn no TTL on, nor off.
        found = [message.id for message in store.check()]
        assert found == (["django_idempotency.W020"] if store.ttl else [])

    def test_table_is_kept_recovered_and_paid_by_request(self, configure: Any) -> None:
        configure()

        [table] = yaml.safe_load(said())["Resources"].values()

        assert (table["DeletionPolicy"], table["UpdateReplacePolicy"]) == ("Retain", "Retain")
        properties = table["Properties"]
        assert properties["BillingMode"] == "PAY_PER_REQUEST"
        assert properties["PointInTimeRecoverySpecification"] == {
            "PointInTimeRecoveryEnabled": True
        }
        assert properties["TimeToLiveSpecification"] == {
            "AttributeName": "expiry",
            "Enabled": True,
        }

    def test_no_ttl_for_a_store_that_sweeps(self, configure: Any) -> None:
        configure(ttl=False)

        assert "TimeToLive" not in said()


class TestTerraform:
    @shapes
    def test_resource_is_what_the_store_needs(
        self, configure: Any, shape: dict[str, Any], name: str
    ) -> None:
        store = configure(**shape)

        resource = parsed(said("--format", "terraform"))

        names = store.names
        keys = [names.partition_key, *([names.sort_key] if names.sort_key else [])]
        assert (resource["name"], resource["billing_mode"]) == (name, "PAY_PER_REQUEST")
        assert resource["hash_key"] == keys[0]
        assert resource.get("range_key") == names.sort_key
        assert resource["attribute"] == [{"name": key, "type": "S"} for key in keys]
        assert resource["point_in_time_recovery"] == [{"enabled": True}]
        ttl = [{"attribute_name": names.of["expiry"], "enabled": True}]
        assert resource.get("ttl") == (ttl if store.ttl else None)


def parsed(text: str) -> dict[str, Any]:
    """Return the one resource of a file of HCL, its quoted strings as what they say."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                plain(name): plain(item)
                for name, item in value.items()
                if not name.startswith("__")
            }
        if isinstance(value, list):
            return [plain(item) for item in value]
        if isinstance(value, str) and value.startswith('"'):
            return json.loads(value.replace("$${", "${").replace("%%{", "%{"))
        return value

    [kinds] = plain(hcl2.loads(text))["resource"]
    assert list(kinds) == ["aws_dynamodb_table"]
    [resource] = kinds["aws_dynamodb_table"].values()
    return dict(resource)


class TestCDK:
    """aws-cdk-lib takes 470 MB and Node, so its stack is read, not run."""

    @shapes
    def test_stack_is_what_the_store_needs(
        self, configure: Any, shape: dict[str, Any], name: str
    ) -> None:
        store = configure(**shape)

        arguments = table_arguments(said("--format", "cdk"))

        string = "type=dynamodb.AttributeType.STRING"
        expected = {
            "table_name": repr(name),
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
        assert arguments == expected


def table_arguments(source: str) -> dict[str, str]:
    """Return the keyword arguments of the one dynamodb.Table in a stack, as source."""

    def calls() -> Iterator[ast.Call]:
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "dynamodb.Table":
                yield node

    [call] = calls()
    return {str(keyword.arg): ast.unparse(keyword.value) for keyword in call.keywords}


class TestCreate:
    @plain_shapes
    def test_creates_what_the_check_accepts_and_tells_of_each_step(
        self, configure: Any, shape: dict[str, Any], name: str
    ) -> None:
        store = configure(**shape)

        told = said("--create")

        assert store.check() == []
        assert f"==> creating the table {name}\n" in told
        assert ("==> turning on time to live\n" in told) is store.ttl
        assert "==> turning on continuous backups\n" in told
        assert told.endswith(f"the table {name} is ready\n")

    def test_records_can_be_kept_in_it(self, configure: Any) -> None:
        configure()
        said("--create")
        import django_idempotency as idempotency

        call: dict[str, Any] = {"key": "k", "scope": "s", "store": "events"}
        assert not idempotency.run(lambda lease: 1, **call).replayed
        assert idempotency.run(lambda lease: 1, **call).replayed

    class TestOnAServerWithLess:
        @pytest.fixture
        def kind(self) -> str:
            return "dynalite"

        def test_what_it_does_not_have_is_told(self, configure: Any, name: str) -> None:
            configure()

            told = said("--create")

            assert "==> this server has no time to live\n" in told
            assert told.endswith(f"the table {name} is ready\n")


class TestCreateAgain:
    """What has stopped half-way goes on."""

    @pytest.fixture(autouse=True)
    def poll(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(dynamodb_schema, "_POLL", 0.01)

    @pytest.fixture
    def throttle(self, url: str) -> Iterator[Throttle]:
        with Throttle(url) as throttle:
            yield throttle

    def test_table_that_is_there_is_told_and_is_ready(self, configure: Any, name: str) -> None:
        store = configure()
        said("--create")

        told = said("--create")

        assert "==> it is there already\n" in told
        assert told.endswith(f"the table {name} is ready\n")
        assert store.check() == []

    def test_table_with_another_key_is_refused(self, configure: Any) -> None:
        configure()
        said("--create")
        configure(partition_key="PK", sort_key="SK")

        with pytest.raises(CommandError, match=r"idempotencyKey, not PK \+ SK") as raised:
            said("--create")
        assert raised.value.returncode == 1

    def test_TTL_by_another_attribute_is_refused(self, configure: Any) -> None:
        configure(attributes={"expiry": "ttl"})
        said("--create")
        configure()

        with pytest.raises(CommandError, match="goes by 'ttl'"):
            said("--create")

    def test_what_was_interrupted_is_gone_on_with(self, configure: Any) -> None:
        store = configure()

        def interrupted(step: str) -> None:
            if step.startswith("waiting"):
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            dynamodb_schema.create(store, interrupted)
        assert store.check() != []

        said("--create")
        assert store.check() == []

    @pytest.mark.parametrize(
        "part",
        [b"KeySchema", b"TimeToLiveSpecification", b"PointInTimeRecoverySpecification"],
        ids=["CreateTable", "UpdateTimeToLive", "UpdateContinuousBackups"],
    )
    def test_lost_answer_stops_nothing(
        self, configure: Any, proxied: tuple[Proxy, str], part: bytes
    ) -> None:
        link, url = proxied
        store = configure(endpoint_url=url, timeout=10)
        link.cut_after(part)  # of the request's body, which may come in a chunk of its own

        told = said("--create")

        assert link.fired.is_set()
        assert told.endswith("is ready\n")
        assert store.check() == []

    @pytest.mark.parametrize(
        ("operation", "error"),
        [
            ("DescribeTable", "ResourceNotFoundException"),
            ("DescribeTimeToLive", "ResourceNotFoundException"),
            ("UpdateTimeToLive", "ResourceInUseException"),
            ("UpdateContinuousBackups", "ContinuousBackupsUnavailableException"),
            ("UpdateContinuousBackups", "TableNotFoundException"),
        ],
    )
    def test_what_is_not_possible_yet_is_tried_again(
        self, configure: Any, throttle: Throttle, operation: str, error: str
    ) -> None:
        store = configure(endpoint_url=throttle.url)
        throttle.begin(times=3, error=error, operation=operation)

        told = said("--create")

        assert throttle.refused == 3
        assert told.endswith("is ready\n")
        assert store.check() == []

    def test_TTL_that_the_lost_call_has_turned_on_is_on(
        self, configure: Any, throttle: Throttle
    ) -> None:
        """DynamoDB refuses the call that is sent again; moto does not."""
        store = configure(endpoint_url=throttle.url)
        throttle.begin(error="ValidationException", operation="UpdateTimeToLive", applied=True)

        said("--create")

        assert throttle.refused == 1
        assert store.check() == []

    def test_TTL_that_is_refused_and_not_on_is_an_error(
        self, configure: Any, throttle: Throttle
    ) -> None:
        configure(endpoint_url=throttle.url)
        throttle.begin(error="ValidationException", operation="UpdateTimeToLive")

        with pytest.raises(CommandError, match="ValidationException"):
            said("--create")

    def test_patience_has_an_end(
        self, configure: Any, throttle: Throttle, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        configure(endpoint_url=throttle.url)
        throttle.begin(error="ResourceNotFoundException", operation="DescribeTable")
        monkeypatch.setattr(dynamodb_schema, "PATIENCE", 0.05)

        with pytest.raises(CommandError, match=r"was not active within 0\.05 s"):
            said("--create")

    def test_other_errors_are_told_at_once(self, configure: Any, throttle: Throttle) -> None:
        configure(endpoint_url=throttle.url)
        throttle.begin(error="AccessDeniedException", operation="UpdateContinuousBackups")

        with pytest.raises(CommandError, match="AccessDeniedException"):
            said("--create")
        assert throttle.refused == 1


class TestCheck:
    def test_good_table(self, configure: Any, name: str) -> None:
        configure()
        said("--create")

        assert said("--check") == f"the table {name} can be used\n"

    def test_warning_is_told_and_is_no_failure(self, configure: Any, options: Options) -> None:
        configure(table_name=options()["table_name"])

        assert "django_idempotency.W020" in said("--check")

    def test_error_is_told_and_is_a_failure(self, configure: Any) -> None:
        configure()
        out = io.StringIO()

        with pytest.raises(CommandError, match="not what the store needs") as raised:
            call_command("idempotency_table", "--check", stdout=out, stderr=out)

        assert "django_idempotency.E020" in out.getvalue()
        assert raised.value.returncode == 1


class TestWhichStore:
    def test_the_only_one_is_found(self, configure: Any, name: str) -> None:
        configure()

        assert name in said()
        assert said() == said("--store", "events")

    @pytest.mark.parametrize("alias", ["default", "nonesuch"])
    def test_another_alias_is_refused(self, configure: Any, alias: str) -> None:
        configure()

        with pytest.raises(CommandError) as raised:
            said("--store", alias)
        assert raised.value.returncode == 2

    def test_two_are_too_many(self, configure: Any, settings: Any) -> None:
        configure()
        other = {"BACKEND": BACKEND, "OPTIONS": {"table_name": "other"}}
        settings.IDEMPOTENCY = {**settings.IDEMPOTENCY, "other": other}

        with pytest.raises(CommandError, match="events, other"):
            said()

    def test_none_is_too_few(self, settings: Any) -> None:
        settings.IDEMPOTENCY = {"default": {}}

        with pytest.raises(CommandError, match="none"):
            said()

    @pytest.mark.parametrize("arguments", [[], ["--store", "events"]], ids=["found", "named"])
    def test_without_boto3_it_says_what_to_install(
        self, settings: Any, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
    ) -> None:
        monkeypatch.setitem(sys.modules, "boto3", None)
        events = {"BACKEND": BACKEND, "OPTIONS": {"table_name": "t"}}
        settings.IDEMPOTENCY = {"default": {}, "events": events}

        with pytest.raises(CommandError, match=r"pip install .django-idempotency\[dynamodb\]") as e:
            said(*arguments)
        assert e.value.returncode == 2
