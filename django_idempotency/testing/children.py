"""Processes that use a store: the program that runs in them, and the side that tells it what to do.

Words go to its standard input, a line each, and one line comes back for each.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING

from django_idempotency.exceptions import LeaseLost
from django_idempotency.leases import Lease
from django_idempotency.stores.base import BaseStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from django_idempotency.testing.contract_base import ContractBase

_HOUR = timedelta(hours=1)


class Child:
    """A process with a store of its own on the records of a contract."""

    def __init__(self, contract: ContractBase, *, skewed: bool = False) -> None:
        """Start it; `skewed` on a host whose clock can be set, by the word ``skew``."""
        self.skewed = skewed
        self.environment = contract.child_environment()
        self._patience = contract.patience
        cls = type(contract)
        assert "<" not in cls.__qualname__, (
            f"{cls.__qualname__} cannot be imported by another process: define it at the top level "
            f"of its module"
        )
        program = f"{__package__}.skewed" if skewed else __name__
        self.process = subprocess.Popen(
            [sys.executable, "-m", program, f"{cls.__module__}:{cls.__qualname__}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                **self.environment,
            },
            text=True,
        )

    def tell(self, *words: str) -> None:
        """Send a line."""
        assert self.process.stdin is not None
        print(*words, file=self.process.stdin, flush=True)

    def answer(self) -> list[str]:
        """Return the words of the next line; fail if none comes."""
        assert self.process.stdout is not None
        watch = threading.Timer(self._patience, self.process.kill)
        watch.start()
        line = self.process.stdout.readline()
        watch.cancel()
        watch.join()
        assert line, "the child process has ended, or was silent; see its standard error"
        return line.split()

    def ask(self, *words: str) -> list[str]:
        """Send a line, and return the words of the answer."""
        self.tell(*words)
        return self.answer()

    def close(self) -> None:
        """Kill it."""
        self.process.kill()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()
        self.process.wait()


class Children:
    """The processes of a contract, which one rule after the other uses; a context manager."""

    def __init__(self) -> None:
        self._children: list[Child] = []

    def get(self, contract: ContractBase, number: int, *, skewed: bool = False) -> list[Child]:
        """Return so many living processes, each with its store; start those that are missing."""
        environment = contract.child_environment()
        found = [
            child
            for child in self._children
            if (child.skewed, child.environment) == (skewed, environment)
            and child.process.poll() is None
        ]
        started = [Child(contract, skewed=skewed) for _ in range(number - len(found))]
        self._children += started
        for child in started:
            assert child.answer() == ["ready"]
        return [*found, *started][:number]

    def __enter__(self) -> Children:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for child in self._children:
            child.close()


def main(name: str, skew: Callable[[float], None] | None = None) -> None:
    """Do with the store of a contract, and with the clock, what standard input says."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed is no answer
    if os.environ.get("DJANGO_SETTINGS_MODULE"):
        import django

        django.setup()
    module, _, qualname = name.partition(":")
    contract_class: type[ContractBase] = getattr(import_module(module), qualname)
    contract_class.setup_child()
    contract = contract_class()
    store = contract.make_store()
    print("ready", file=answers, flush=True)
    leases: dict[str, Lease] = {}
    for line in sys.stdin:
        match line.split():
            case ["skew", seconds] if skew is not None:
                skew(float(seconds))
                answer = "done"
            case words:
                answer = _done(contract, store, leases, words)
        print(answer, file=answers, flush=True)


def _done(
    contract: ContractBase, store: BaseStore, leases: dict[str, Lease], words: list[str]
) -> str:
    match words:
        case ["claim", key, seconds]:
            claimed = store.claim(contract.asked(key, lease=timedelta(seconds=float(seconds))))
            if not isinstance(claimed, Lease):
                return f"refused {claimed.state} {(claimed.result or b'').hex()}"
            leases[key] = claimed
            return f"won {claimed.fencing_token}"
        case ["complete", key]:
            try:
                store.complete(leases[key], b"child", retention=_HOUR)
            except LeaseLost:
                return "lost"
        case ["fail", key]:
            store.fail(leases[key], "child")
        case ["release", key]:
            store.release(leases[key])
        case ["renew", key]:
            return "held" if store.renew([leases[key]], _HOUR) else "lost"
        case _:
            return "what?"
    return "done"


if __name__ == "__main__":
    main(sys.argv[1])
