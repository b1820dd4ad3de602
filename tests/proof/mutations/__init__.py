"""
Small changes that a careless refactoring could make, each with the test that finds it.

They stand in the text files beside this one, a paragraph each::

    http/scopes.py: tenant and user run together
    - tenant:{len(str(name))}:{name}
    + tenant:{name}
    ! tests/unit/http/test_requests.py -k tenant_and_user_do_not_run_together

The lines after ``-`` stand once in the file, below django_idempotency; those after ``+``, if any,
take their place. ``!`` has what pytest takes, with the leg before it if the test needs one
(``IDEMPOTENCY_TEST_LEG=mariadb``). ``#`` is a comment.

``python -m tests.proof.mutations`` makes each of them in a copy of the project, and runs that test.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.services import LEG_VARIABLE

__all__ = ["Mutation", "every_mutation"]


@dataclass(frozen=True)
class Mutation:
    """One change of the source: `old`, which stands once in the file, becomes `new`."""

    area: str
    #: Below django_idempotency/.
    file: str
    what: str
    old: str
    new: str
    #: What pytest takes.
    test: str
    #: The leg that the test needs; tests/unit needs none.
    leg: str = ""


def every_mutation() -> Iterator[Mutation]:
    """Yield the mutations of each text file beside this one."""
    for path in sorted(Path(__file__).parent.glob("*.txt")):
        for paragraph in path.read_text().split("\n\n"):
            lines = [line for line in paragraph.splitlines() if not line.startswith("#")]
            if lines:
                yield _parse(path.stem, lines)


def _parse(area: str, lines: list[str]) -> Mutation:
    file, _, what = lines[0].partition(": ")
    marked: dict[str, list[str]] = {"-": [], "+": [], "!": []}
    for line in lines[1:]:
        marked[line[0]].append(line[2:])
    [test] = marked["!"]
    leg = ""
    if test.startswith(f"{LEG_VARIABLE}="):
        leg, _, test = test.removeprefix(f"{LEG_VARIABLE}=").partition(" ")
    return Mutation(area, file, what, "\n".join(marked["-"]), "\n".join(marked["+"]), test, leg)
