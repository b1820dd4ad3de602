"""Changes of the engine, its attempts, leases and transactions."""

from __future__ import annotations

from tests.proof.mutations import Mutation

ENGINE = "tests/unit/core/test_engine.py"
ENDINGS = "tests/unit/core/test_endings.py"
COMMITS = f"{ENDINGS} -k what_the_lost_answer_of_a_COMMIT_means"

MUTATIONS = [
    Mutation(
        "a duplicate is told to come back in no less than a minute",
        "engine/__init__.py",
        "1), 30)\n",
        "60), 60)\n",
        "tests/unit/core/test_expiry.py -k R49",
    ),
    # The COMMIT, and what is heard of it.
    Mutation(
        "an interrupt after the COMMIT of joined is swallowed",
        "engine/endings.py",
        "return None if committed and isinstance(raised, Exception) else raised",
        "return None if committed else raised",
        COMMITS,
    ),
    Mutation(
        "an interrupt after the COMMIT of single is swallowed",
        "engine/endings.py",
        "(unknown)\n        return None if isinstance(raised, Exception) else raised",
        "(unknown)\n        return None",
        COMMITS,
    ),
    Mutation(
        "a lost answer to the COMMIT of a refusal in single is settled by a claim",
        "engine/endings.py",
        '        if attempt.verdict != "keep" and isinstance(raised, StoreError):\n'
        "            return _unknown(raised)  # no record would tell\n",
        "",
        COMMITS,
    ),
    Mutation(
        "another's answer is replayed to another request after a lost COMMIT",
        "engine/endings.py",
        "attempt.replay(self._replayable(attempt, claimed))",
        "attempt.replay(claimed)",
        COMMITS,
    ),
    Mutation(
        "another's answer is replayed to another request after a refused completion",
        "engine/endings.py",
        "attempt.replay(self._replayable(attempt, record))",
        "attempt.replay(record)",
        f"{ENDINGS} -k R60_I11_a_completion_that_is_refused",
    ),
    Mutation(
        "joined believes that each COMMIT without an answer has succeeded",
        "engine/endings.py",
        "committed = record.state is _STATES[attempt.verdict] and attempt.verdict != ending",
        "committed = record.state is _STATES[attempt.verdict]",
        COMMITS,
    ),
    Mutation(
        "joined takes another attempt's answer for its own",
        "engine/endings.py",
        "if record is None or (record.epoch, record.token) != (lease.fencing_token, lease.token):",
        "if record is None:",
        COMMITS,
    ),
    Mutation(
        "a hook's own OperationalError is taken for a lost COMMIT",
        "stores/database/atomic.py",
        "if exc_type is None and not self.committed and is_connection_failure(error):",
        "if exc_type is None and is_connection_failure(error):",
        f"{ENDINGS} -k a_hooks_own_OperationalError",
    ),
    Mutation(
        "an error of an on_commit hook is settled as if the COMMIT had failed",
        "engine/endings.py",
        "        if attempt.committed:  # an on_commit hook raised\n            return raised\n",
        "",
        f"{ENGINE} -k a_hook_that_raises_leaves_the_result_kept",
    ),
    Mutation(
        "the block of single is still open while its on_commit hooks run",
        "stores/database/atomic.py",
        """        if self.outer is None:
            self._open.pop(connection, None)
        else:
            self._open[connection] = self.outer
        try:
            self._atomic.__exit__(exc_type, exc_value, traceback)
""",
        """        try:
            self._atomic.__exit__(exc_type, exc_value, traceback)
            if self.outer is None:
                self._open.pop(connection, None)
            else:
                self._open[connection] = self.outer
""",
        f"{ENDINGS} -k the_same_key_from_an_on_commit_hook",
    ),
    # Cancellation, where the store's client is truly asynchronous.
    Mutation(
        "a cancellation cuts off the completion",
        "engine/__init__.py",
        "await finish(self.endings.acomplete(attempt))",
        "await self.endings.acomplete(attempt)",
        f"{ENDINGS} -k told_to_the_end_although_cancelled",
    ),
    Mutation(
        "a cancellation cuts off the end of a failure",
        "engine/__init__.py",
        "error = await finish(ending)",
        "error = await ending",
        f"{ENDINGS} -k told_to_the_end_although_cancelled",
    ),
    Mutation(
        "a cancelled claim is not given back",
        "engine/__init__.py",
        'if isinstance(lease, Lease) and request.transaction != "single":',
        "if lease is None:",
        f"{ENDINGS} -k told_to_the_end_although_cancelled",
    ),
    # The main path: who runs, and who is answered.
    Mutation(
        "the second duplicate of a falsy result runs again",
        "engine/__init__.py",
        "            if not attempt.replayed:\n"
        "                attempt.complete(work(attempt.lease))",
        "            if not (attempt.replayed and attempt.result):\n"
        "                attempt.complete(work(attempt.lease))",
        f"{ENGINE} -k R64",
    ),
    Mutation(
        "a mismatch is replayed",
        "engine/__init__.py",
        "    if decision is Decision.MISMATCH:\n        raise FingerprintMismatch\n",
        "    if decision is Decision.MISMATCH:\n        return record\n",
        f"{ENGINE} -k R37_another_payload",
    ),
    Mutation(
        "the scope is no part of the record id",
        "api.py",
        "record_id=keys.record_id(_KIND, scope, key)",
        "record_id=keys.record_id(_KIND, _KIND, key)",
        f"{ENGINE} -k R11_R19_R41",
    ),
    Mutation(
        "the operation is no part of the fingerprint",
        "api.py",
        "(operation.encode(), asked),",
        "(asked,),",
        f"{ENGINE} -k R37_another_payload",
    ),
    Mutation(
        "a coroutine's completion is written before its transaction",
        "engine/__init__.py",
        "                                async with to_the_end(self._awork(attempt)):\n",
        "                                async with nullcontext():\n",
        f"{ENGINE} -k R57_R58_an_error_of_the_database",
    ),
    Mutation(
        "work and record of single are not one transaction for coroutines",
        "engine/__init__.py",
        "                        await transaction.enter_async_context(block)\n",
        "",
        f"{ENGINE} -k R58_an_error_passes_on",
    ),
    Mutation(
        "work of joined commits by itself",
        "engine/__init__.py",
        '            case "joined":\n                return self._joined(attempt)\n',
        "",
        f"{ENGINE} -k R58_an_error_passes_on",
    ),
    Mutation(
        "an error's text is kept with its type",
        "engine/endings.py",
        '    return f"{type(error).__module__}.{type(error).__qualname__}"',
        '    return f"{type(error).__module__}.{type(error).__qualname__}: {error}"',
        f"{ENGINE} -k R58_an_error_passes_on",
    ),
    Mutation(
        "failed work releases its record",
        "engine/endings.py",
        '        attempt.ending = "failed"\n        return _error_text(raised), raised',
        '        attempt.ending = "released"\n        return None, raised',
        f"{ENGINE} -k R58_R70_a_failed_record",
    ),
    Mutation(
        "a result that cannot be stored is no error in joined either",
        "api.py",
        'unstorable_ok=mode == "separate"',
        'unstorable_ok=mode != "single"',
        f"{ENGINE} -k R62_raises_before_the_commit",
    ),
    Mutation(
        "a block left without complete() is failed",
        "engine/__init__.py",
        'raise Unkept("release")',
        'raise Unkept("fail")',
        f"{ENGINE} -k left_without_complete",
    ),
    Mutation(
        "an attempt is entered twice",
        "api.py",
        "arguments: tuple[Any, ...] = self._arguments.pop()",
        "arguments: tuple[Any, ...] = self._arguments[-1]",
        f"{ENGINE} -k one_object_is_entered_once",
    ),
    Mutation(
        "a store's error at the completion rolls back work that stands",
        "engine/endings.py",
        'if superseded or attempt.request.transaction != "separate":\n            raise error',
        "if error:\n            raise error",
        f"{ENDINGS} -k R60_at_the_completion",
    ),
    Mutation(
        "a late completion overwrites another's answer",
        "stores/exclusive.py",
        "if record and record.state is State.IN_PROGRESS and _is_mine(record, lease):",
        "if record:",
        f"{ENDINGS} -k R66_I2",
    ),
    Mutation(
        "a claim that lost a race is not tried again",
        "engine/__init__.py",
        "        for _ in range(CLAIM_TRIES):\n            with suppress(ClaimAgain), ExitStack()",
        "        for _ in range(1):\n            with suppress(ClaimAgain), ExitStack()",
        f"{ENDINGS} -k R54_R76",
    ),
    Mutation(
        "an ending that failed is tried again by a claim of single",
        "engine/endings.py",
        '        if attempt.request.transaction != "single" or not attempt.concluded:\n'
        "            return raised  # by an ending that failed otherwise: no second one is tried\n",
        "",
        f"{ENDINGS} -k not_tried_again",
    ),
    # Leases.
    Mutation(
        "an interrupt leaves the lease with the keeper",
        "engine/__init__.py",
        "        except BaseException:\n            self.keeper.remove(attempt.lease)\n",
        "        except Exception:\n            self.keeper.remove(attempt.lease)\n",
        "tests/unit/core/test_renewal.py -k however_the_work_ends",
    ),
    Mutation(
        "the keeper renews a lease whose completion will not come",
        "engine/renewal.py",
        "if kept.wanted is not None and not kept.wanted():\n                del",
        "if kept.wanted is None and kept.until < now:\n                del",
        "tests/unit/core/test_renewal.py -k callers_transaction_ends",
    ),
    Mutation(
        "max_duration bounds no renewal",
        "engine/renewal.py",
        "            elif kept.until <= now:",
        "            elif kept.until <= 0:",
        "tests/unit/core/test_renewal.py -k max_duration_bounds",
    ),
    Mutation(
        "the store that fails ends the keeper's thread",
        "engine/renewal.py",
        'logger.exception("Leases could not be renewed; the next try is in a third of one.")\n'
        "                continue",
        "raise",
        "tests/unit/core/test_renewal.py -k a_store_that_fails",
    ),
    # Transactions.
    Mutation(
        "a swallowed error of a raw cursor is seen nowhere",
        "stores/database/atomic.py",
        '    if connection.vendor == "sqlite" and not getattr(driver, "in_transaction", True):\n'
        "        return True\n",
        "",
        "tests/unit/core/test_work_rolled_back.py -k can_only_be_rolled_back",
    ),
    Mutation(
        "a swallowed error of a raw cursor is not seen in the caller's transaction",
        "engine/transactions.py",
        "if is_doomed(connection) and not is_lost(connection)",
        "if connection.needs_rollback and not is_lost(connection)",
        "tests/unit/core/test_work_rolled_back.py -k dooms_a_transaction_of_the_callers",
    ),
    Mutation(
        "what only PostgreSQL's driver knows of a transaction is not asked",
        "stores/database/atomic.py",
        '(info, "transaction_status", 0) == _IN_ERROR',
        '(info, "transaction_status", 0) == -1',
        "tests/integration/core/test_postgresql.py -k R91",
        "postgres18",
    ),
    Mutation(
        "a wish to roll back in an inner block counts for the whole",
        "stores/database/atomic.py",
        "            if within == 0 or not any(connection.savepoint_ids[-within:]):\n"
        "                self.wished = rollback",
        "            self.wished = rollback or within > 0",
        "tests/unit/core/test_work_rolled_back.py -k can_only_be_rolled_back",
    ),
    Mutation(
        "a store that cannot join completes before the caller's commit",
        "engine/endings.py",
        "        if attempt.operation.caller is not None:\n"
        "            attempt.operation.caller.after_commit",
        "        if attempt.operation.caller is None:\n"
        "            attempt.operation.caller.after_commit",
        "tests/unit/core/test_transactions.py -k I13_inside_one_it_completes_after_the_commit",
    ),
    Mutation(
        "the first of two commits is enough",
        "engine/transactions.py",
        "            if not self._uncommitted:\n                complete()",
        "            complete()",
        "tests/unit/core/test_transactions.py -k every_open_transaction_must_commit",
    ),
    Mutation(
        "the completion comes after the caller's hooks",
        "engine/transactions.py",
        "connection.run_on_commit.insert(_first_place(connection), entry)",
        "connection.run_on_commit.append(entry)",
        "tests/unit/core/test_transactions.py -k R94_the_completion_comes_before",
    ),
    Mutation(
        "separate may be chosen in a caller's transaction",
        "engine/transactions.py",
        "    if within or _open_by_caller():\n        if chosen is not None:",
        '    if within or _open_by_caller():\n        if chosen == "joined":',
        "tests/unit/core/test_transactions.py -k a_mode_that_commits_by_itself",
    ),
    Mutation(
        "the blocks of a TestCase count as the caller's",
        "engine/transactions.py",
        '    return bool(getattr(block, "_from_testcase", False))',
        "    return False",
        "tests/unit/core/test_transactions.py -k R84",
    ),
    Mutation(
        "coroutines share one connection for their transactions",
        "engine/__init__.py",
        "        if not own:\n            yield\n            return\n",
        "        if own or not own:\n            yield\n            return\n",
        "tests/integration/core/test_coroutines.py -k I5",
        "postgres18",
    ),
    Mutation(
        "an attempt mixes its statements into another one's transaction",
        "stores/database/atomic.py",
        "        if self.is_foreign(connection):\n            raise self.open_error()\n",
        "",
        "tests/unit/core/test_cancellation.py -k second_attempt_is_refused",
    ),
    # What is compared, kept and deleted.
    Mutation(
        "a template's values run together",
        "arguments.py",
        '_SIGN = re.compile(r"[^0-9A-Za-z%]")',
        '_SIGN = re.compile(r"[^0-9A-Za-z%#]")',
        "tests/unit/core/test_idempotent_function.py -k C1",
    ),
    Mutation(
        "a key's case is folded",
        "keys.py",
        'scope.encode(errors="surrogatepass"), key.encode())',
        'scope.encode(errors="surrogatepass"), key.lower().encode())',
        f"{ENGINE} -k R11_R19_R41",
    ),
    Mutation(
        "a record under a secret that is gone is a mismatch",
        "engine/attempt.py",
        "        elif self.operation.fingerprint.lacks_key_of(stored):",
        "        elif not stored:",
        "tests/unit/core/test_fingerprint_versions.py -k it_counts_as_equal",
    ),
    Mutation(
        "a bomb is inflated",
        "codecs.py",
        "stream.decompress(payload, max_bytes + 1)",
        "stream.decompress(payload)",
        "tests/unit/core/test_codecs.py -k a_bomb_is_not_inflated",
    ),
    Mutation(
        "records can be deleted in the admin",
        "admin.py",
        '"""A deleted record would let its work run again."""\n        return False',
        '"""A deleted record would let its work run again."""\n        return True',
        "tests/unit/core/test_admin.py -k ReadOnly",
    ),
    Mutation(
        "the rest of the sweep counts as work",
        "sweep.py",
        "        if turns and now + rest >= ends:\n            break\n",
        "",
        "tests/unit/core/test_sweep.py -k a_rest_that_would_pass_the_end",
    ),
    Mutation(
        "a store that is down takes the others' time",
        "sweep.py",
        "            ends += time.monotonic() - began\n",
        "",
        "tests/unit/core/test_sweep.py -k takes_none_of_the_others_time",
    ),
]
