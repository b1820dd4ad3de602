"""
Defective stores: each breaks one rule, and the contract has to notice it by the right one.

They stand in mutants.txt: in the operation that is named first, what stands after ``-`` becomes
what stands after ``+``; without a ``-``, this is the operation of a subclass.
"""

from __future__ import annotations

import inspect
import json
import re
import time
from contextlib import contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import indent

from django_idempotency.claims import ClaimAgain, placeholder
from django_idempotency.exceptions import StoreError
from django_idempotency.stores import exclusive, memory
from django_idempotency.stores.memory import MemoryStore

HERE = Path(__file__).parent
PAGE = HERE.parents[2] / "docs" / "contributing" / "mutants.md"
#: All rules that notice a mutant; written and checked by tests/proof/test_mutants.py.
NOTICED = json.loads((HERE.parents[1] / "proof" / "mutants.json").read_text())
#: What the defects need; a gap is for another thread to come in between.
NAMES = {"__name__": __name__, "ClaimAgain": ClaimAgain, "placeholder": placeholder, "time": time}
NAMES |= {"GAP": 0.002, "StoreError": StoreError, "nullcontext": nullcontext}
_IMPORTS = re.compile(r"^from (__future__|django_idempotency\.stores\.exclusive) .*\n", re.M)
_SOURCE = "".join(_IMPORTS.sub("", inspect.getsource(module)) for module in (exclusive, memory))
_NUMBERS = re.compile(r"((?:[RIS]\d+_)+)")
_HEAD = """# Mutants of a store

A contract that every store passes proves nothing unless it fails those that are wrong. So here are
{number} stores, each a memory store with one defect. The contract notices every one of them, by the
rule that is meant for it; the last column says how many other rules notice it, too. And each rule
that a single process can show notices some defect. The rules about several processes have defects
of [the store of the guide](../howto/writing-a-store.md) for that.

A rule's test is its text with underscores: "I2: epoch grows with each claim" is
`test_I2_epoch_grows_with_each_claim`. The page is generated from the defects. What it says is
proved by these tests:
`tests/unit/contract/test_mutants.py::test_mutant_is_noticed_by_the_rule_that_is_meant`,
`tests/proof/test_mutants.py::test_mutant_is_noticed_by_exactly_its_rules`,
`tests/unit/contract/test_mutants.py::test_every_rule_notices_something`,
`tests/acceptance/contract/test_file_store.py::test_defect_is_noticed_by_its_rule_about_processes`.
"""


def sound(base):
    """
    Return a memory store that can lose answers, and be changed before a write and in secret.

    Its transactions are for one thread at a time.
    """

    def written(name):
        def write(self, *arguments, **more):
            self.between()
            try:
                return getattr(super(Sound, self), name)(*arguments, **more)
            finally:
                if self.losing:
                    self.losing = False
                    raise StoreError("The answer is lost.")

        return write

    class Sound(base):
        #: Whether the next write is done, and its answer lost; what happens before it.
        losing, callback = False, None
        supports_join = True
        claim, complete, fail, release = map(written, ("claim", "complete", "fail", "release"))
        note, renew, resolve = map(written, ("note", "renew", "resolve"))
        erase, sweep = map(written, ("erase", "sweep"))

        def between(self):
            callback, self.callback = self.callback, None
            if callback is not None:
                callback()

        @contextmanager
        def atomic(self, *, committed=None):
            before = dict(self._records)
            try:
                yield
            except BaseException:
                self._records.clear()
                self._records.update(before)
                raise

        def damage(self, record_id):
            damaged = copy(self._records[record_id])
            object.__setattr__(damaged, "state", "NO STATE")  # which no Record lets in
            self.put_back(damaged)

        def put_back(self, record):
            with self._mutex:
                self._records[record.record_id] = record

        def drop(self, record_ids):
            return sum(self._records.pop(x, None) is not None for x in record_ids)

        def change(self, record_id, **changes):
            self.put_back(replace(self._records[record_id], **changes))

    return Sound


@dataclass(frozen=True)
class Mutant:
    """One defect; `rule` has to notice it, in a contract with these attributes."""

    section: str
    operation: str
    what: str
    old: str
    new: str
    rule: str
    contract: dict[str, float]

    def __str__(self):
        return re.sub(r"\W+", "_", self.what).strip("_")

    def store_class(self):
        """Build the store with the defect."""
        source, body = _SOURCE, "pass"
        if self.old:
            start = rf"def {self.operation}\(.*?(?=\n *(?:@|def |class |async )|\Z)"
            [part] = [x for x in re.findall(start, source, re.S) if x.count(self.old) == 1]
            source = source.replace(part, part.replace(self.old, self.new))
        else:
            kept = getattr(MemoryStore, self.operation)
            kind = "async def" if inspect.iscoroutinefunction(kept) else "def"
            body = f"{kind} {self.operation}{inspect.signature(kept)}:\n{indent(self.new, '    ')}"
        names = dict(NAMES)
        exec(source, names)
        names["Sound"] = sound(names["MemoryStore"])
        exec(f"class Defective(Sound):\n{indent(body, '    ')}", names)
        return names["Defective"]


def _mutants():
    section = ""
    for paragraph in (HERE / "mutants.txt").read_text().split("\n\n"):
        marked = {"-": [], "+": [], "!": [], "#": []}
        lines = paragraph.splitlines()
        for line in lines:
            marked.get(line[0], []).append(line[2:])
        section = "".join(marked["#"]) or section
        operation, _, what = lines[len(marked["#"])].partition(": ")
        rule, *contract = marked["!"][0].split()
        contract = {name: float(value) for name, value in (x.split("=") for x in contract)}
        old, new = "\n".join(marked["-"]), "\n".join(marked["+"])
        yield Mutant(section, operation, what, old, new, rule, contract)


#: All of them, in the order of the table in docs/contributing/mutants.md.
MUTANTS = list(_mutants())


def page():
    """Return docs/contributing/mutants.md."""
    parts, section = [_HEAD.format(number=len(MUTANTS)).rstrip()], ""
    for mutant in MUTANTS:
        if mutant.section != section:
            section = mutant.section
            parts += ["", f"## {section}", ""]
            parts += ["| the defect | the rule that notices | others |", "|---|---|---|"]
        others = len(NOTICED[str(mutant)]) - 1 or ""
        parts.append(f"| {mutant.what} | {_words(mutant.rule)} | {others} |")
    return "\n".join(parts) + "\n"


def _words(rule):
    """Return the name of a rule to be read: its numbers, and what it says."""
    words = rule.removeprefix("test_")
    if match := _NUMBERS.match(words):
        numbers = match[1].rstrip("_").replace("_", ", ")
        return f"{numbers}: {words[match.end() :].replace('_', ' ')}"
    return words.replace("_", " ")


if __name__ == "__main__":
    PAGE.write_text(page())
