"""
Which rules have tests, and which are still to come: ``python -m tests.rules``.

A test carries its rules in its name (``test_R37_other_body_is_422``) or in the id of a parameter.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

__all__ = ["COVERED", "PARTS_TO_COME", "RULES", "count", "rules_in", "still_to_come"]

#: Numbers and first words, as shared/design has them.
RULES: dict[str, str] = {
    "R1": "missing but required",
    "R2": "missing and optional",
    "R3": "the key stands between the quotes",
    "R4": "bare characters are the same key",
    "R5": "escapes, and bytes that no string has",
    "R6": "parameters",
    "R7": "two field lines, or a comma",
    "R8": "empty is invalid, not missing",
    "R9": "1 to 255 characters",
    "R10": "key_validator",
    "R11": "case-sensitive and byte-exact",
    "R12": "safe methods pass",
    "R13": "unsafe methods are guarded",
    "R14": "after authentication, permissions and throttles",
    "R15": "404, 405, 406, 415 and parse errors",
    "R16": "echo_key",
    "R17": "decorator, mixin and middleware together",
    "R18": "every kind of view behaves alike",
    "R19": "two users, one key",
    "R20": "a refreshed token is the same scope",
    "R21": "no principal and no scope",
    "R22": "another's key looks like a new one",
    "R23": "one key on two endpoints",
    "R24": "the first: the view's own response",
    "R25": "again: equal, and marked",
    "R26": "n duplicates, one effect",
    "R27": "the replay is a snapshot",
    "R28": "201, 202, 204 and 3xx replay",
    "R29": "bodies are byte-equal",
    "R30": "kept header fields",
    "R31": "Cache-Control: no-store",
    "R32": "another Accept",
    "R33": "If-Match on a retry",
    "R34": "permission withdrawn in between",
    "R35": "the browsable API",
    "R36": "the first caller's response is untouched",
    "R37": "other body: 422",
    "R38": "mismatch beats in-progress",
    "R39": "422 and 409 tell nothing",
    "R40": "method, operation, path as sent, query",
    "R41": "another key is another operation",
    "R42": "JSON, exactly",
    "R43": "multipart and raw uploads",
    "R44": "form fields",
    "R45": "fingerprint_headers, fingerprint_exclude",
    "R46": "empty is not {}; chunked equals sized",
    "R47": "only keyed hashes are stored",
    "R48": "a view that changes request.data",
    "R49": "a second request while the first runs",
    "R50": "64 parallel requests, one run",
    "R51": "wait",
    "R52": "the winner fails, one waiter owns",
    "R53": "different keys never wait",
    "R54": "SERIALIZABLE and REPEATABLE READ",
    "R55": "keep: the default",
    "R56": "keep: presets and callables",
    "R57": "a kept success means committed work",
    "R58": "an unhandled exception passes on",
    "R59": "persisted before sent",
    "R60": "the completion cannot be written",
    "R61": "store down at the claim",
    "R62": "streams, files, large bodies",
    "R63": "client disconnect",
    "R64": "falsy results replay",
    "R65": "SIGKILL in the view",
    "R66": "stalled past the lease, taken over",
    "R67": "a late failure touches nothing",
    "R68": "proof: epoch and token",
    "R69": "renewal",
    "R70": "take-over needs the same fingerprint",
    "R71": "on_stale=refuse",
    "R72": "a clock that is 10 minutes off",
    "R73": "within retention: replay",
    "R74": "after it: a new run",
    "R75": "the sweep spares live leases",
    "R76": "swept between conflict and re-read",
    "R77": "Idempotency-Expires",
    "R78": "members of a problem",
    "R79": "no raw keys and payloads in logs",
    "R80": "hostile keys and bodies",
    "R81": "8 KB of path or query",
    "R82": "CORS",
    "R83": "ATOMIC_REQUESTS: the claim is visible",
    "R84": "inside TestCase",
    "R85": "a lost claim poisons no atomic()",
    "R86": "on_commit hooks",
    "R87": "database routers and replicas",
    "R88": "PgBouncer and pools",
    "R89": "plain HTML forms",
    "R90": "a key changes nothing about what a request leaves behind",
    "R91": "success of work that can only roll back is an error",
    "R92": "rolled-back work leaves no session and no messages",
    "R93": "nothing is parsed before authentication",
    "R94": "a completion that waits comes before the caller's hooks",
    "R95": "what a store gives back is input",
    "R96": "ATOMIC_REQUESTS around a guarded coroutine view",
    "R97": "a form's key without a session; a header's key without a principal",
    "C1": "tasks: the key",
    "C2": "tasks: the scope",
    "C3": "tasks: the fingerprint",
    "C4": "tasks: a duplicate returns the result",
    "C5": "tasks: serializers",
    "C6": "tasks: in progress",
    "C7": "tasks: retry, Ignore, Reject",
    "C8": "tasks: killed workers",
    "C9": "tasks: time limits",
    "C10": "tasks: revoked or expired",
    "C11": "tasks: work and record commit together",
    "C12": "tasks: eager mode",
    "C13": "tasks: pools and forks",
    "C14": "tasks: chains and groups",
    "C15": "tasks: current() and parents",
    "I1": "one unlapsed epoch",
    "I2": "epochs increase",
    "I3": "a completed result does not change",
    "I4": "a replay equals the answer",
    "I5": "at most one effect",
    "I6": "the fingerprint does not change",
    "I7": "nothing lands after its epoch",
    "I8": "some retry finishes",
    "I9": "the sweep removes only the expired",
    "I10": "no answer crosses a scope",
    "I11": "a mismatch never runs",
    "I12": "a lost claim leaves nothing behind",
    "I13": "COMPLETED only if committed",
}

#: What has been built, so that each has a test (tests/unit/project/test_rules.py).
COVERED = frozenset(rule for rule in RULES if rule.startswith(("R", "C")))

#: What of the covered rules has not been built yet.
PARTS_TO_COME: dict[str, str] = {
    "R60": "the signal",
    "R86": "signals",
}

_TESTS = Path(__file__).parent
_NUMBER = re.compile(r"(?<![A-Za-z0-9])[RCI][1-9][0-9]?(?![A-Za-z0-9])")


def count() -> Counter[str]:
    """Return how many tests of the suite carry each rule's number."""
    return Counter(
        rule for path in sorted(_TESTS.rglob("test_*.py")) for rule in rules_in(path.read_text())
    )


def rules_in(source: str) -> Iterator[str]:
    """Yield the rules of each test in `source`, a rule once per test."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() if node.name.startswith("test"):
                ids = [text for decorator in node.decorator_list for text in _ids(decorator)]
                yield from sorted(set(_NUMBER.findall(" ".join([node.name, *ids]))))


def _ids(decorator: ast.expr) -> Iterator[str]:
    """Yield the texts of ``id=…`` and ``ids=[…]`` in a decorator."""
    for node in ast.walk(decorator):
        if isinstance(node, ast.keyword) and node.arg in ("id", "ids"):
            for text in ast.walk(node.value):
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    yield text.value


def still_to_come() -> list[str]:
    """Return the rules that are not built, or not whole."""
    return [rule for rule in RULES if rule not in COVERED and not rule.startswith("I")]


def main() -> None:
    """Print the rules with the number of their tests, and what is still to come."""
    from tests.acceptance.contract_http.rules import NOT_FROM_OUTSIDE, shown  # which imports RULES

    found, on_servers = count(), shown()
    coming = still_to_come()
    print("Rules and their tests:")
    for rule in RULES:
        if rule not in coming:
            part = f"  (to come: {PARTS_TO_COME[rule]})" if rule in PARTS_TO_COME else ""
            servers = [name for name, seen in on_servers.get(rule, {}).items() if seen]
            where = f"  [{', '.join(servers)}]" if servers else ""
            where = "  [not seen from outside]" if rule in NOT_FROM_OUTSIDE else where
            print(f"  {rule:4}{found[rule]:4}  {RULES[rule]}{part}{where}")
    if coming:
        print("Still to come:")
    for rule in coming:
        begun = f"  (begun: {found[rule]} tests)" if found[rule] else ""
        print(f"  {rule:8}  {RULES[rule]}{begun}")
    missing = [rule for rule in RULES if rule in COVERED and not found[rule]]
    print(f"{len(COVERED) - len(missing)} of {len(COVERED)} rules that are built have tests.")
    if missing:
        print(f"Without a test: {', '.join(missing)}.")


if __name__ == "__main__":
    main()
