"""What a client sees of the DynamoDB store; its client, its rights, and servers in trouble."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from dataclasses import replace

import pytest

from django_idempotency.claims import Resolution
from django_idempotency.conf import store_for
from django_idempotency.engine import Engine
from django_idempotency.exceptions import StoreError
from django_idempotency.keys import new_token
from django_idempotency.leases import Lease
from django_idempotency.stores.dynamodb import DynamoDBStore
from django_idempotency.stores.dynamodb import schema as dynamodb_schema
from django_idempotency.stores.dynamodb.client import Client
from django_idempotency.testing import FakeClock
from tests.app.models import Effect
from tests.claims import DAY, HOUR, asked, found, operation, record_id, won
from tests.integration.dynamodb.conftest import BACKEND
from tests.integration.dynamodb.wire import Throttle, Wire
from tests.integration.stories import Behind, EncryptionStory, HTTPStory, ServerStory
from tests.services.forks import in_child
from tests.services.processes import ROOT
from tests.unit.http.api import Api, problem, replayed


class TestHTTP(HTTPStory):
    @pytest.fixture
    def api(self, settings, options, link_url):
        given = options(endpoint_url=link_url, timeout=4)
        settings.IDEMPOTENCY = {"default": {"BACKEND": BACKEND, "OPTIONS": given}}
        api = Api()
        api.client.raise_request_exception = False
        return api


class TestEncryption(EncryptionStory):
    @pytest.fixture
    def alias(self, options):
        return {"BACKEND": BACKEND, "OPTIONS": options()}

    @pytest.fixture
    def behind(self):
        class InDynamoDB(Behind):
            def everything(self):
                client, table = native()
                return repr(client.scan(TableName=table)["Items"]).encode()

            def put(self, record_id, result):
                client, table = native()
                client.update_item(
                    TableName=table,
                    Key=store_for().names.key(record_id),
                    UpdateExpression="SET responsePayload = :result",
                    ExpressionAttributeValues={":result": {"B": result}},
                )

            def damage(self, record_id):
                client, table = native()
                client.update_item(
                    TableName=table,
                    Key=store_for().names.key(record_id),
                    UpdateExpression="REMOVE createdAt",
                )

        def native():
            table = store_for().table
            return table.client.ready(), table.name

        return InDynamoDB()


class TestServer(ServerStory):
    CLAIM = b'"UpdateExpression"'  # of the body, which goes out after the head

    @pytest.fixture
    def make_linked(self, options, link_url):
        given = options(endpoint_url=link_url, timeout=4)
        return lambda timeout: DynamoDBStore(**{**given, "timeout": timeout})


@pytest.mark.parametrize(
    ("error", "status"),
    [
        ("ProvisionedThroughputExceededException", 400),
        ("TransactionConflictException", 400),
        ("Whatever", 500),
    ],
)
def test_short_trouble_is_bridged(store, error, status):
    throttle = Throttle(store, error, status=status, times=2)
    won(store.claim(asked()))
    assert throttle.refused == 2
    assert found(store).attempts == 1


def test_long_trouble_is_an_error_within_the_timeout(make_store):
    store = make_store(timeout=1)
    throttle = Throttle(store)
    begun = time.monotonic()
    with pytest.raises(StoreError, match="ProvisionedThroughputExceededException"):
        store.claim(asked())
    assert time.monotonic() - begun < 1 + 5
    assert throttle.refused > 1


def test_R79_what_does_not_pass_by_itself_is_an_error_at_once_that_quotes_nothing(store):
    throttle = Throttle(store, "AccessDeniedException")
    with pytest.raises(StoreError) as raised:
        store.claim(asked("secret-key"))
    message = "The store could not send update_item to DynamoDB: AccessDeniedException."
    assert (str(raised.value), throttle.refused) == (message, 1)


def test_R61_table_that_is_not_there_is_an_error_that_no_retry_at_once_cures(url):
    with pytest.raises(StoreError, match="ResourceNotFoundException") as missing:
        DynamoDBStore(table_name="nowhere", endpoint_url=url, timeout=30).claim(asked())
    assert missing.value.retry_after == 60


def test_R61_an_endpoint_of_the_environment_that_is_no_url_is_an_error_of_the_store(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", "localhost:8000")
    store = DynamoDBStore(table_name="t", region_name="eu-west-1")
    with pytest.raises(StoreError, match="could not set up its client of DynamoDB: ValueError"):
        store.claim(asked())


@pytest.mark.django_db(transaction=True)
def test_R61_throttled_view_is_503_with_retry_after_and_nothing_is_lost(settings, options):
    settings.IDEMPOTENCY = {"default": {"BACKEND": BACKEND, "OPTIONS": options(timeout=4)}}
    api = Api()
    throttle = Throttle(store_for("default"))

    refused = api()
    throttle.end()
    first, again = api(), api()

    assert problem(refused) == (503, "store_unavailable")
    assert int(refused["Retry-After"]) >= 1
    assert (first.status_code, replayed(first), replayed(again)) == (201, False, True)
    assert Effect.objects.count() == 1


def test_R69_renewal_that_reaches_the_server_for_some_holds_the_others(store, monkeypatch):
    leases = [won(store.claim(asked(str(number)))) for number in range(3)]
    store.release(leases[0])
    send = store.table.update

    def update(statement, record_id, values, **more):
        if record_id == leases[1].record_id:
            raise StoreError
        return send(statement, record_id, values, **more)

    monkeypatch.setattr(store.table, "update", update)

    assert store.renew(leases, HOUR) == set(leases[1:])


UPDATE, PUT, GET = "UpdateItem", "PutItem", "GetItem"


def test_threads_that_need_it_at_the_same_moment_share_one(url, run_in_threads):
    client = Client(region_name=None, endpoint_url=url, timeout=10)
    assert client._built is None
    natives = run_in_threads(8, lambda index: client.ready())
    assert len({id(native) for native in natives}) == 1


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_forked_child_builds_its_own_and_leaves_the_parents_connections(store):
    """With another thread of the parent in the middle of building one."""
    won(store.claim(asked("parent's")))
    parents = store.table.client.ready()

    def child():
        won(store.claim(asked("child's")))
        assert store.table.client.ready() is not parents

    with store.table.client._mutex:
        assert in_child(child) == 0
    assert found(store, "child's").live
    assert found(store, "parent's").live


@pytest.mark.parametrize(("callers", "number"), [("threads", 8), ("coroutines", 4)])
def test_calls_of_a_process_do_not_wait_for_one_another(store, run_in_threads, callers, number):
    """All claims are on the wire at the same moment, or none of them arrives."""
    together = threading.Barrier(number)

    def meet(**kwargs):
        together.wait(20)

    store.table.client.ready().meta.events.register("before-send.dynamodb.UpdateItem", meet)

    async def done(lease):
        return "done"

    async def main():
        calls = (Engine(store).arun(operation(key=str(n)), done) for n in range(number))
        return await asyncio.gather(*calls)

    if callers == "threads":
        claimed = run_in_threads(number, lambda index: store.claim(asked(str(index))))
        assert all(isinstance(lease, Lease) for lease in claimed)
    else:
        assert all(outcome.stored for outcome in asyncio.run(main()))


# Rights.


def documented_rights():
    """The actions of a running process, and those that ``--create`` needs on top of them."""
    page = (ROOT / "docs/howto/dynamodb.md").read_text()
    section = page.partition("## Permissions\n")[2].partition("\n## ")[0]
    table, _, rest = section.partition("`idempotency_table --create`")
    texts = (table, rest.partition(". ")[0])
    return tuple(set(re.findall(r"dynamodb:(\w+)", text)) for text in texts)


def every_operation(store, clock):
    lease = won(store.claim(asked()))
    store.renew([lease], HOUR)
    store.fail(lease, "boom")
    lease = won(store.claim(replace(lease.request, token=new_token())))
    store.release(lease)
    seen = found(store)
    store.resolve(seen.record_id, Resolution("expire", epoch=seen.epoch, state=seen.state))
    clock.advance(DAY)
    lease = won(store.claim(asked()))  # in the place of an expired record: PutItem
    store.complete(lease, b"result", retention=HOUR)
    store.peek([seen.record_id])
    store.browse()
    clock.advance(DAY)
    store.count_expired()
    store.sweep()
    store.check()


def test_documented_rights_are_those_that_are_used(make_store, url):
    used = set()
    for sort_key in (None, "SK"):
        clock = FakeClock()
        store = make_store(ttl=False, sort_key=sort_key, clock=clock)
        wire = Wire(store)
        every_operation(store, clock)
        used |= set(wire.taken())
    creating = DynamoDBStore(table_name=f"{store.table.name}-created", endpoint_url=url, timeout=30)
    wire = Wire(creating)
    dynamodb_schema.create(creating)

    assert (used, set(wire.taken()) - used) == documented_rights()


# Round trips.


def test_R24_R25_a_first_request_is_two_calls_and_a_duplicate_one(store, wire):
    Engine(store).run(operation(), lambda lease: "done")
    assert wire.taken() == [UPDATE, UPDATE]
    assert Engine(store).run(operation(), lambda lease: pytest.fail("ran")).replayed
    assert wire.taken() == [UPDATE]


@pytest.mark.parametrize(("kind", "more"), [("moto", []), ("dynalite", [GET])])
def test_what_a_failed_condition_met_is_read_where_the_server_does_not_say(store, wire, more):
    lease = won(store.claim(asked()))
    store.complete(lease, b"done", retention=HOUR)
    wire.taken()
    store.complete(lease, b"done", retention=HOUR)
    assert wire.taken() == [UPDATE, *more]
    store.claim(asked())
    assert wire.taken() == [UPDATE, *more]


def test_reads_are_consistent(store, wire):
    """One call each, or one for 100 items."""
    asked_for = []

    def listen(params, **kwargs):
        asked_for.append(params.get("ConsistentRead") or params["RequestItems"])

    for call in (GET, "BatchGetItem"):
        event = f"provide-client-params.dynamodb.{call}"
        store.table.client.ready().meta.events.register(event, listen)
    assert store.get(record_id()) is None
    assert store.peek([record_id(f"key {number}") for number in range(150)]) == {}
    assert wire.taken() == [GET, "BatchGetItem", "BatchGetItem"]
    consistent, *batches = asked_for
    assert consistent is True
    [first, second] = [batch[store.table.name] for batch in batches]
    assert (len(first["Keys"]), len(second["Keys"])) == (100, 50)
    assert first["ConsistentRead"] is second["ConsistentRead"] is True
