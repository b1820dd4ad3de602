"""Three scenes in which one payment is sent twice; they are played with each guard, and without."""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from http.client import HTTPException

from django.db.models import Sum

from example_project.demo import pauses
from example_project.demo.client import Answer, Client
from example_project.demo.output import Printer, money
from example_project.demo.server import Server
from example_project.shop.management.commands.seed import PASSWORDS
from example_project.shop.models import Account, Payment

PATH = "/api/payments/"
#: For how long the client that gives up waits for its answer.
PATIENCE = 0.5
#: What the scenes are called in the table at the end.
GIVES_UP = "the client gives up, and sends it again"
AT_ONCE = "two clients send it at once"
KILLED = "the process is killed after the charge, before the answer"
#: How often the payment of each scene was charged.
Counts = dict[str, int]
AMOUNTS = {GIVES_UP: 12_50, AT_ONCE: 7_00, KILLED: 20_00}


class WentWrong(Exception):
    """Something did not come out as the demo says."""


class Scene:
    """One payment of Alice's, its key, what came back, and how often it was charged."""

    def __init__(self, server: Server, out: Printer, amount: int) -> None:
        self.out = out
        self.key = str(uuid.uuid4())
        self.reference = f"scene-{self.key[:8]}"
        account = Account.objects.get(owner__username="alice", name="everyday")
        self.payload = {"account": account.pk, "amount": amount, "reference": self.reference}
        self._server = server

    def send(self, timeout: float = pauses.SECONDS) -> Answer:
        """Send the payment, and again while the answer is 409, when Retry-After says."""
        client = Client(self._server.port, "alice", PASSWORDS["alice"], timeout)
        deadline = time.monotonic() + pauses.SECONDS
        while (answer := client.post(PATH, self.payload, self.key)).status == 409:
            if time.monotonic() > deadline:
                raise WentWrong(f"{self.reference} got no answer: {answer}")
            self.out.says(f"{answer}")
            time.sleep(answer.retry_after)
        self.out.says(f"{answer}")
        return answer

    def send_and_lose(self, timeout: float = pauses.SECONDS) -> None:
        """Send the payment, and get no answer."""
        try:
            self.send(timeout)
        except (OSError, HTTPException) as error:
            self.out.says(f"no answer: {type(error).__name__}")
        else:
            raise WentWrong("There was an answer.")

    def charged(self, expected: int) -> int:
        """Count its payments in the database, and raise WentWrong unless they are as expected."""
        payments = Payment.objects.filter(reference=self.reference)
        count = payments.count()
        if count != expected:
            raise WentWrong(f"charged: expected {expected!r}, got {count!r}")
        total = money(payments.aggregate(total=Sum("amount", default=0))["total"])
        says = self.out.right if count == 1 else self.out.wrong
        says(f"payments in the database: {count}, together {total}")
        return count


def play(server: Server, out: Printer, expected: Counts, *, before: Mapping[str, Counts]) -> Counts:
    """Play the scenes, and compare; return how often each payment was charged."""
    counts = {}
    for name, times in expected.items():
        scene = Scene(server, out, AMOUNTS[name])
        out.headline(f"Alice pays {money(AMOUNTS[name])}, and {name}")
        SCENES[name](scene)
        counts[name] = scene.charged(times)
        if before:
            naive = (f"{found[name]} with {guard}" for guard, found in before.items())
            out.says(f"it was {', '.join(naive)}")
    return counts


def gives_up(scene: Scene) -> None:
    """The retry comes in while the server is still at the first one."""
    with ThreadPoolExecutor(1) as retry, pauses.pause(pauses.WRITTEN) as written:
        scene.send_and_lose(PATIENCE)
        written()
        with pauses.pause(pauses.ARRIVED) as arrived:
            answer = retry.submit(scene.send)
            arrived()
    answer.result()


def at_once(scene: Scene) -> None:
    """Both are in the server before either is paid."""
    with ThreadPoolExecutor(2) as clients:
        with pauses.pause(pauses.ARRIVED) as arrived:
            answers: list[Future[Answer]] = [clients.submit(scene.send) for _ in range(2)]
            for _ in answers:
                arrived()
        for answer in answers:
            answer.result()


def killed(scene: Scene) -> None:
    """The money is taken, and nobody has heard of it."""
    with ThreadPoolExecutor(1) as client:
        with pauses.pause(pauses.COMMITTED) as committed:
            lost = client.submit(scene.send_and_lose)
            pid = committed()
            os.kill(pid, signal.SIGKILL)
            scene.out.says(f"process {pid} killed")
        lost.result()
    scene.send()


SCENES: dict[str, Callable[[Scene], None]] = {
    GIVES_UP: gives_up,
    AT_ONCE: at_once,
    KILLED: killed,
}
#: How often each payment is charged: without the library, and in each mode of it.
EXPECTED: dict[str, Counts] = {
    "none": {GIVES_UP: 2, AT_ONCE: 2, KILLED: 2},
    "naive": {GIVES_UP: 2, AT_ONCE: 2, KILLED: 2},
    "single": {GIVES_UP: 1, AT_ONCE: 1, KILLED: 1},
    "joined": {GIVES_UP: 1, AT_ONCE: 1, KILLED: 1},
    # The payment commits before its record: who dies in between leaves a payment without one.
    "separate": {GIVES_UP: 1, AT_ONCE: 1, KILLED: 2},
}
