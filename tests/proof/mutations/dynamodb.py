"""Changes of the DynamoDB store."""

from __future__ import annotations

from functools import partial

from tests.proof.mutations import Mutation

TESTS = "tests/integration/dynamodb"
STORE = "stores/dynamodb/store.py"
CLIENT = "stores/dynamodb/client.py"
SCHEMA = "stores/dynamodb/schema.py"

#: No test of this store asks which database the project has.
Change = partial(Mutation, leg="sqlite")

MUTATIONS = [
    # The margin for clocks that differ.
    Change(
        "a claim takes over without the margin",
        STORE,
        "_NEVER if refuse else seconds(now - self._skew)",
        "_NEVER if refuse else seconds(now)",
        f"{TESTS}/test_clocks.py -k R72_live",
    ),
    Change(
        "the re-claim of an expired record forgets the margin",
        STORE,
        '":lapsed": seconds(now - self._skew),\n        }\n        claimed',
        '":lapsed": seconds(now),\n        }\n        claimed',
        f"{TESTS}/test_clocks.py -k I1_R72",
    ),
    Change(
        "the sweep's delete forgets the margin",
        STORE,
        '{":now": seconds(now), ":lapsed": seconds(now - self._skew)}',
        '{":now": seconds(now), ":lapsed": seconds(now)}',
        f"{TESTS}/test_clocks.py -k I9_R75",
    ),
    Change(
        "an operator needs no force for a lease in its margin",
        STORE,
        "_END_OF_TIME if force else lapsed",
        "_END_OF_TIME if force else seconds(now)",
        f"{TESTS}/test_clocks.py -k operator_needs",
    ),
    Change(
        "a record under a lease in its margin counts as expired to an operator",
        STORE,
        '":lapsed": lapsed,',
        '":lapsed": seconds(now),',
        f"{TESTS}/test_clocks.py -k operator_needs",
    ),
    Change(
        "a record says that its lease ends without the margin",
        "stores/dynamodb/items.py",
        "_moment(until) + skew",
        "_moment(until)",
        f"{TESTS}/test_clocks.py -k R49_retry",
    ),
    Change(
        "the time that the client takes to be built is taken from the lease",
        STORE,
        "        self.table.client.ready()\n",
        "",
        f"{TESTS}/test_clocks.py -k R66_time",
    ),
    # The client.
    Change(
        "a forked child uses its parent's connections",
        CLIENT,
        "os.register_at_fork(after_in_child=_forget_all)",
        "",
        f"{TESTS}/test_client.py -k forked",
    ),
    Change(
        "the calls of a process queue for its client",
        CLIENT,
        "                answer: dict[str, Any] = call(**parameters)\n",
        "                with self._mutex:\n"
        "                    answer: dict[str, Any] = call(**parameters)\n",
        f"{TESTS}/test_client.py -k wait_for_one_another",
    ),
    Change(
        "an item in another's transaction is an error at once",
        CLIENT,
        '        "TransactionConflictException",\n',
        "",
        f"{TESTS}/test_trouble.py -k short",
    ),
    Change(
        "a server error without a known name is an error at once",
        CLIENT,
        "code in TRANSIENT or status >= 500",
        "code in TRANSIENT",
        f"{TESTS}/test_trouble.py -k short",
    ),
    Change(
        "a call is sent again until its timeout is over, and may then take as long again",
        CLIENT,
        "spent > self.timeout / 2",
        "spent > 4 * self.timeout",
        f"{TESTS}/test_trouble.py -k long",
    ),
    Change(
        "a renewal that could not be sent counts as lost",
        STORE,
        "                return error\n",
        "                return False\n",
        f"{TESTS}/test_trouble.py -k R69",
    ),
    Change(
        "a renewal that reaches no server is told as held",
        STORE,
        "if errors and len(errors) == len(answers):",
        "if len(errors) > len(answers):",
        f"{TESTS}/test_trouble.py -k R69_server",
    ),
    # Large results.
    Change(
        "one attempt's results have one object",
        "stores/dynamodb/overflow.py",
        "{token}-{digest.hex()}",
        "{token}",
        f"{TESTS}/test_overflow.py -k I3_R68",
    ),
    Change(
        "an object that was altered is replayed",
        "stores/dynamodb/overflow.py",
        "if result is not None and hashlib.sha256(result).digest() == digest:",
        "if result is not None:",
        f"{TESTS}/test_overflow.py -k R62_result_whose",
    ),
    Change(
        "a storage that fails makes the completion fail",
        "stores/dynamodb/overflow.py",
        "raise failure from error",
        "raise StoreError(str(failure)) from error",
        f"{TESTS}/test_overflow.py -k R62_call",
    ),
    Change(
        "the item's other attributes are left no room",
        "stores/dynamodb/overflow.py",
        "390 * 1024",
        "399 * 1024",
        f"{TESTS}/test_overflow.py -k first_byte",
    ),
    Change(
        "a mismatch reads the object",
        STORE,
        "seen = self.names.record(item, now, self._skew)\n",
        "seen = self._with_result(self.names.record(item, now, self._skew), item)\n",
        f"{TESTS}/test_overflow.py -k mismatch",
    ),
    Change(
        "an expired record's object is read",
        STORE,
        "record.state is not State.COMPLETED or record.expired:",
        "record.state is not State.COMPLETED:",
        f"{TESTS}/test_overflow.py -k R74",
    ),
    # The completion in the caller's own transaction.
    Change(
        "the item of a transaction has no condition",
        STORE,
        'return {"Update": self.table.parameters(statement, lease.record_id, values)}',
        "parameters = self.table.parameters(statement, lease.record_id, values)\n"
        '        parameters["ConditionExpression"] = "#token <> :token OR #epoch <= :epoch OR '
        '#status = :IN_PROGRESS"\n'
        '        return {"Update": parameters}',
        f"{TESTS}/test_transact_item.py -k I7",
    ),
    Change(
        "work that returns another result answers with it",
        STORE,
        "                lease.completed_before = stored\n",
        "                pass\n",
        f"{TESTS}/test_transact_item.py -k I4_work",
    ),
    Change(
        "a completion that is sent again is told as another result",
        STORE,
        "if stored.result not in (None, result):",
        "if stored.result is not None:",
        f"{TESTS}/test_transact_item.py -k I4_completion",
    ),
    # Claims that meet another write.
    Change(
        "the late resend of a claim takes again what its attempt has ended",
        "stores/dynamodb/expressions.py",
        '"OR #token <> :token",',
        '"OR #token <> :epoch",',
        f"{TESTS}/test_contract.py -k R68_ended_attempt",
    ),
    Change(
        "what a failed condition brings is read once more",
        STORE,
        "item = failed.item or self.table.item(request.record_id)",
        "item = self.table.item(request.record_id)",
        f"{TESTS}/test_wire_counts.py -k R24",
    ),
    Change(
        "a read may be stale",
        "stores/dynamodb/table.py",
        '"ConsistentRead": True',
        '"ConsistentRead": False',
        f"{TESTS}/test_wire_counts.py -k consistent",
    ),
    Change(
        "a claim does not recognise what it has written",
        STORE,
        "if seen.token == request.token and seen.state is State.IN_PROGRESS:",
        "if seen.token == request.token and seen.state is State.FAILED:",
        f"{TESTS}/test_contract.py -k R68_claim_whose_answer",
    ),
    Change(
        "a completion does not recognise what it has written",
        STORE,
        "            return self._completed_before(lease, result, failed)\n",
        "            raise LeaseLost from failed\n",
        f"{TESTS}/test_contract.py -k R68_completion_whose_answer",
    ),
    Change(
        "a decision does not recognise what it has written",
        STORE,
        "self.names.record(item, now, self._skew).token == token\n",
        "self.names.record(item, now, self._skew).token == epoch\n",
        f"{TESTS}/test_contract.py -k resolution_whose_answer",
    ),
    Change(
        "a claim takes an expired record's place whatever its owner has done meanwhile",
        "stores/dynamodb/expressions.py",
        'f"#epoch = :seenEpoch AND #token = :seenToken AND {EXPIRED}"',
        '"#epoch = :seenEpoch AND #token = :seenToken AND (#expiry <= :now OR #expiry > :lapsed)"',
        f"{TESTS}/test_contract.py -k R66_I1_I3_I6",
    ),
    Change(
        "a claim takes an expired record's place whoever has claimed it meanwhile",
        "stores/dynamodb/expressions.py",
        'f"#epoch = :seenEpoch AND #token = :seenToken AND {EXPIRED}"',
        'f"#epoch >= :seenEpoch AND (#token = :seenToken OR #epoch > :seenEpoch) AND {EXPIRED}"',
        f"{TESTS}/test_reclaims.py -k I2",
    ),
    Change(
        "the sweep deletes what was renewed after it was read",
        "stores/dynamodb/expressions.py",
        "SWEEP: Statement = (None, EXPIRED)",
        'SWEEP: Statement = (None, "#expiry <= :now AND (#epoch > :zero OR #epoch > :lapsed)")',
        f"{TESTS}/test_contract.py -k I9_R75_sweep_repeats",
    ),
    Change(
        "an owner proves itself by the epoch or the token",
        "stores/dynamodb/expressions.py",
        "#token = :token AND #epoch = :epoch AND #status = :IN_PROGRESS",
        "(#token = :token OR #epoch = :epoch) AND #status = :IN_PROGRESS",
        f"{TESTS}/test_contract.py -k R68_proof",
    ),
    Change(
        "a claim by an older fingerprint does not look whose the record is by now",
        "stores/dynamodb/expressions.py",
        '"OR #status = :IN_PROGRESS AND #lockExpiry <= :stale",',
        '"OR #status = :IN_PROGRESS AND #lockExpiry > :zero",',
        f"{TESTS}/test_reclaims.py -k I1",
    ),
    Change(
        "a record that is gone when it is looked at is in progress",
        STORE,
        "                seen = None\n                continue\n",
        "                break\n",
        f"{TESTS}/test_reclaims.py -k R76",
    ),
    Change(
        "a record that is never seen is looked for without end",
        STORE,
        "for _ in range(TRIES):",
        "for _ in range(100 * TRIES):",
        f"{TESTS}/test_reclaims.py -k R54",
    ),
    # Pages.
    Change(
        "a filtered page that is full goes on after what was read, not after its last record",
        STORE,
        "return Page(page, str(page[-1].record_id))",
        "return Page(page, None if last is None else str(self.names.record_id(last)))",
        f"{TESTS}/test_pages.py -k each_record_once",
    ),
    Change(
        "a sweep takes more than its limit",
        STORE,
        "expired[: limit - deleted]",
        "expired",
        f"{TESTS}/test_pages.py -k all_pages",
    ),
    Change(
        "a damaged item hides its page",
        STORE,
        'logger.exception("An item of the table %s is left out.", self.table.name)',
        "raise",
        f"{TESTS}/test_pages.py -k damaged",
    ),
    # Items and options.
    Change(
        "an expiry is rounded down",
        "stores/dynamodb/items.py",
        "math.ceil(moment.timestamp())",
        "math.floor(moment.timestamp())",
        f"{TESTS}/test_items.py -k moment",
    ),
    Change(
        "a forged time is no StoreError",
        "stores/dynamodb/items.py",
        "except (KeyError, OSError, OverflowError, TypeError, ValueError) as error:",
        "except (KeyError, TypeError) as error:",
        f"{TESTS}/test_items.py -k R95_forged",
    ),
    Change(
        "a completed item without a result is replayed",
        STORE,
        "            if record.result is None:\n                raise StoreError(",
        "            if record.result == b'never':\n                raise StoreError(",
        f"{TESTS}/test_items.py -k R95_claim_that_meets",
    ),
    # The table.
    Change(
        "a table whose parts have not heard of it yet is an error",
        SCHEMA,
        '        "TableNotFoundException",\n',
        "",
        f"{TESTS}/test_table_command.py -k not_possible",
    ),
    Change(
        "a table with another key is made use of",
        SCHEMA,
        "    if _keys(found) != _keys(wanted):\n",
        "    if len(found) > 2:\n",
        f"{TESTS}/test_table_command.py -k another_table",
    ),
    Change(
        "TTL that a lost call has turned on is an error",
        SCHEMA,
        "if not (is_ttl and _has_ttl(store)):  # it was, and that answer was lost\n",
        "if True:\n",
        f"{TESTS}/test_table_command.py -k lost_call",
    ),
    Change(
        "a name is a template to Terraform",
        "stores/dynamodb/templates.py",
        '.replace("${", "$${")',
        "",
        f"{TESTS}/test_templates.py -k terraform",
    ),
    Change(
        "a stack turns on TTL for a store that sweeps",
        "stores/dynamodb/templates.py",
        "    if store.ttl:\n        lines.append",
        "    if store.names:\n        lines.append",
        f"{TESTS}/test_templates.py -k CDK",
    ),
    Change(
        "strongly consistent replicas are warned of",
        SCHEMA,
        'described.get("Replicas") and described.get("MultiRegionConsistency") != "STRONG"',
        'described.get("Replicas")',
        f"{TESTS}/test_check.py -k W021",
    ),
]
