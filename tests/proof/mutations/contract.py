"""Changes of the testing kit: the contracts, their transports and hooks, what projects use."""

from __future__ import annotations

from tests.proof.mutations import Mutation

KIT = "testing/"
HTTP = "testing/http_contract/"
STORES = "tests/unit/contract/test_mutants.py"
DEFECTS = "tests/unit/contract/test_http_defects.py"
PROCESS = "tests/unit/contract/test_in_process.py"
SELECTION = "tests/unit/contract/test_http_selection.py"
OVERRIDES = "tests/unit/contract/test_overrides.py"
ASSERTION = "tests/unit/contract/test_assertion.py"
PLUGIN = "tests/acceptance/contract/test_plugin.py"

MUTATIONS = [
    # Transports in this process.
    Mutation(
        "the second of two header lines takes the place of the first",
        f"{HTTP}in_process.py",
        "        if variable in environ:\n",
        "        if name == 'cookie' and variable in environ:\n",
        f"{PROCESS} -k told_what_a_server",
    ),
    Mutation(
        "a body in chunks loses its second half",
        f"{HTTP}in_process.py",
        "[payload[:middle], payload[middle:]] if chunked",
        "[payload[:middle]] if chunked",
        f"{PROCESS} -k told_what_a_server",
    ),
    Mutation(
        "an answer to HEAD keeps its body",
        f"{HTTP}in_process.py",
        'method == "HEAD" or status',
        "status",
        f"{PROCESS} -k body_that_must_not_be",
    ),
    Mutation(
        "an ASGI application is not told that its client has hung up",
        f"{HTTP}in_process.py",
        "loop.call_soon_threadsafe(gone.set)",
        "pass",
        f"{PROCESS} -k hung_up",
    ),
    Mutation(
        "each ASGI request has an event loop of its own",
        f"{HTTP}in_process.py",
        "            if self._running is None:\n",
        "            if True:\n",
        f"{PROCESS} -k share_an_event_loop",
    ),
    # Rules that see less, by what the defects of a guard show.
    Mutation(
        "a replay is compared by its status alone",
        f"{HTTP}asking.py",
        "(answer.status, answer.body) == (of.status, of.body)",
        "answer.status == of.status",
        DEFECTS,
    ),
    Mutation(
        "a first answer may be marked as a replay",
        f"{HTTP}asking.py",
        "        assert answer.is_success, answer\n"
        "        assert self.replay_header not in answer.headers, answer\n",
        "        assert answer.is_success, answer\n",
        DEFECTS,
    ),
    Mutation(
        "a mismatch may have any status",
        f"{HTTP}asking.py",
        "        assert answer.status == status, answer\n        assert answer.code",
        "        assert answer.code",
        DEFECTS,
    ),
    Mutation(
        "a rule runs without what it needs",
        f"{HTTP}selected.py",
        '    return f"needs {\', \'.join(missing)}" if missing else ""',
        '    return ""',
        SELECTION,
    ),
    Mutation(
        "a subclass does not run again what its base left out",
        f"{HTTP}selected.py",
        'if name in vars(owner) and name not in vars(owner).get("_missing", {}):',
        "if name in vars(owner):",
        SELECTION,
    ),
    # Rules of stores that see less, by what defective stores show.
    Mutation(
        "a resend may count as an attempt",
        f"{KIT}contract_lost_answers.py",
        "assert (record.attempts, record.epoch) == (attempts, lease.fencing_token)",
        "assert record.epoch == lease.fencing_token",
        f"{STORES} -k ResendIsAnotherAttempt",
    ),
    Mutation(
        "what should happen within a call happens after it",
        f"{KIT}contract_interleavings.py",
        "        with self.between_read_and_write(store, other):\n            told = call()\n",
        "        told = call()\n"
        "        with self.between_read_and_write(store, other):\n"
        "            pass\n",
        f"{STORES} -k sound_store",
    ),
    Mutation(
        "what is thought to be lost is not: the hook is not used",
        f"{KIT}contract_lost_answers.py",
        "        with self.lose_answer(store):\n            try:\n                return call()",
        "        if store:\n            try:\n                return call()",
        f"{STORES} -k WithoutAnAnswer",
    ),
    Mutation(
        "rules that a store cannot show stay tests",
        f"{KIT}store_contract.py",
        "                setattr(cls, name, None)  # pytest collects functions only\n",
        "",
        "tests/unit/contract/test_memory.py",
    ),
    Mutation(
        "a record of no state is read",
        "records.py",
        "if not isinstance(value, kinds) or naive:",
        'if name != "state" and (not isinstance(value, kinds) or naive):',
        f"{STORES} -k sound_store",
    ),
    # What projects use.
    Mutation(
        "a block keeps the mode of its alias, whatever its store can do",
        f"{KIT}overrides.py",
        'described.get("TRANSACTION") in ("single", "joined")',
        'described.get("TRANSACTION") == "joined"',
        OVERRIDES,
    ),
    Mutation(
        "a block within another builds the outer store anew",
        f"{KIT}overrides.py",
        '"BACKEND": _GIVEN, "OPTIONS": {"store": store}}\n        if not',
        "**self._description}\n        if not",
        f"{OVERRIDES} -k outer_block",
    ),
    Mutation(
        "the fixture leaves its store in place",
        f"{KIT}pytest_plugin.py",
        "    yield replaced.enable()\n    replaced.disable()",
        "    yield replaced.enable()",
        f"{OVERRIDES} -k puts_the_setting_back",
    ),
    Mutation(
        "an answer without a mark passes for a replay",
        f"{KIT}asserts.py",
        '    if again.headers.get(replay_header) != "true":',
        '    if again.headers.get(replay_header) == "false":',
        ASSERTION,
    ),
    Mutation(
        "header fields that a replay lacks are not missed",
        f"{KIT}asserts.py",
        "sorted(headers.keys() | replayed.keys())",
        "sorted(replayed.keys())",
        ASSERTION,
    ),
    Mutation(
        "a clock takes a naive time",
        f"{KIT}clock.py",
        "if start is not None and start.utcoffset() is None:",
        "if start is not None and start.year < 0:",
        f"{OVERRIDES} -k clock",
    ),
    Mutation(
        "a clock does not go back",
        f"{KIT}clock.py",
        "            self._now += duration\n",
        "            self._now += abs(duration)\n",
        f"{OVERRIDES} -k clock_moves",
    ),
    Mutation(
        "the sums of failures are left out",
        f"{KIT}pytest_plugin.py",
        "        if others[store]:\n",
        "        if passed[store] < 0:\n",
        PLUGIN,
    ),
    Mutation(
        "assertions in a part of the contract are not explained",
        f"{KIT}pytest_plugin.py",
        '    "base",\n',
        "",
        PLUGIN,
    ),
]
