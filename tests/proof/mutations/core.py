"""Changes of the engine, its attempts, leases and transactions."""

from __future__ import annotations

from tests.proof.mutations import Mutation

ENGINE = "tests/unit/core/test_engine.py"
ENDINGS = "tests/unit/core/test_endings.py"
COMMITS = f"{ENDINGS} -k what_the_lost_answer_of_a_COMMIT_means"

MUTATIONS = [
    Mutation(
        "a duplicate is told to come back in no less than a minute",
        "engine.py",
        "1), 30)\n",
        "60), 60)\n",
        "tests/unit/core/test_expiry.py -k R49",
    ),
    # The COMMIT, and what is heard of it.
    Mutation(
        "an interrupt after the COMMIT of joined is swallowed",
        "endings.py",
        "return None if committed and isinstance(raised, Exception) else raised",
        "return None if committed else raised",
        COMMITS,
    ),
    Mutation(
        "an interrupt after the COMMIT of single is swallowed",
        "endings.py",
        "(unknown)\n        return None if isinstance(raised, Exception) else raised",
        "(unknown)\n        return None",
        COMMITS,
    ),
    Mutation(
        "a lost answer to the COMMIT of a refusal in single is settled by a claim",
        "endings.py",
        '        if attempt.verdict != "keep" and isinstance(raised, StoreError):\n'
        "            return _unknown(raised)  # no record would tell\n",
        "",
        COMMITS,
    ),
    Mutation(
        "another's answer is replayed to another request after a lost COMMIT",
        "endings.py",
        "attempt.replay(self._replayable(attempt, claimed))",
        "attempt.replay(claimed)",
        COMMITS,
    ),
    Mutation(
        "another's answer is replayed to another request after a refused completion",
        "endings.py",
        "attempt.replay(self._replayable(attempt, record))",
        "attempt.replay(record)",
        f"{ENDINGS} -k R60_I11_a_completion_that_is_refused",
    ),
    Mutation(
        "joined believes that each COMMIT without an answer has succeeded",
        "endings.py",
        "committed = record.state is _STATES[attempt.verdict] and attempt.verdict != ending",
        "committed = record.state is _STATES[attempt.verdict]",
        COMMITS,
    ),
    Mutation(
        "joined takes another attempt's answer for its own",
        "endings.py",
        "if record is None or (record.epoch, record.token) != (lease.fencing_token, lease.token):",
        "if record is None:",
        COMMITS,
    ),
    Mutation(
        "a hook's own OperationalError is taken for a lost COMMIT",
        "stores/blocks.py",
        "if exc_type is None and not self.committed and is_connection_failure(error):",
        "if exc_type is None and is_connection_failure(error):",
        f"{ENDINGS} -k a_hooks_own_OperationalError",
    ),
    Mutation(
        "an error of an on_commit hook is settled as if the COMMIT had failed",
        "endings.py",
        'if attempt.committed or attempt.request.transaction != "single" or not attempt.concluded:',
        'if attempt.request.transaction != "single" or not attempt.concluded:',
        f"{ENGINE} -k a_hook_that_raises_leaves_the_result_kept",
    ),
    Mutation(
        "the block of single is still open while its on_commit hooks run",
        "stores/blocks.py",
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
        "engine.py",
        "await finish(self.endings.acomplete(attempt))",
        "await self.endings.acomplete(attempt)",
        f"{ENDINGS} -k told_to_the_end_although_cancelled",
    ),
    Mutation(
        "a cancellation cuts off the end of a failure",
        "engine.py",
        "error = await finish(ending)",
        "error = await ending",
        f"{ENDINGS} -k told_to_the_end_although_cancelled",
    ),
    Mutation(
        "a cancelled claim is not given back",
        "engine.py",
        'if isinstance(lease, Lease) and request.transaction != "single":',
        "if lease is None:",
        f"{ENDINGS} -k told_to_the_end_although_cancelled",
    ),
]
