"""The story goes on in a worker: messages that come twice, retries, killed workers."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from celery.result import AsyncResult

from example_project.demo import apps, pauses
from example_project.demo.story import ORDERS, Story
from example_project.demo.tasks_worker import Worker
from example_project.shop.tasks import capture_payment

CROWD = 10
PURCHASES = "/api/purchases/"
SECONDS = 60.0


class TaskStory(Story):
    """The story of the API, and then that of the tasks."""

    def __init__(self, *arguments: Any, worker: Worker, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.worker = worker

    def play(self) -> None:
        super().play()
        for step in (
            self.capture,
            self.message_again,
            self.many_messages,
            self.mail_server_down,
            self.process_of_the_worker_killed,
            self.whole_worker_killed,
            self.steps,
            self.books,
        ):
            step()

    def capture(self) -> None:
        self.out.headline("12 A worker takes the money of an order, and sends a receipt")
        self.task = self._send("captured", 4_00)
        self.payment = self._result(self.task)
        self._is_done_once("captured", 4_00)

    def message_again(self) -> None:
        self.out.headline("13 The broker delivers the same message again")
        again = self._send("captured", 4_00, task_id=self.task.id)
        self._is("the task gives the same payment", self._result(again), self.payment)
        self._is_done_once("captured")

    def many_messages(self) -> None:
        self.out.headline(f"14 {CROWD} messages at once ask for the payment of one order")
        tasks = [self._send("asked-often", 5_00) for _ in range(CROWD)]
        results = Counter(int(task.get(timeout=SECONDS)) for task in tasks)
        for payment, count in results.items():
            self.out.says(f"{count:>2} x payment {payment}")
        self._is("payments that they tell of", len(results), 1)
        self._is_done_once("asked-often", 5_00)

    def mail_server_down(self) -> None:
        self.out.headline("15 The mail server is down, so the receipt is tried again")
        self.worker.refuse_mails(2)
        self._result(self._send("mail-down", 6_00))
        self._is_done_once("mail-down", 6_00)
        self._is("mails that it was to refuse, and has not", self.worker.refusals_left(), 0)

    def process_of_the_worker_killed(self) -> None:
        self.out.headline("16 A process of the worker is killed in the middle of a payment")
        task = self._send_and_meet("worker-process", 7_00, self._kill)
        self._result(task)
        self._is_done_once("worker-process", 7_00)

    def whole_worker_killed(self) -> None:
        self.out.headline("17 The whole worker is killed in the middle of a payment")
        task = self._send_and_meet("whole-worker", 8_00, self._kill_worker)
        self._is("payments in the books", self._payments("whole-worker"), 0)
        self.worker.launch()
        self.worker.wait()
        self.out.says("the worker is back; the broker will deliver the message again")
        self._result(task)
        self._is_done_once("whole-worker", 8_00)

    def steps(self) -> None:
        self.out.headline("18 A checkout in steps is killed between the charge and the mark")
        key, note = self._key(), f"in-steps-{self.run}"
        asked = {"product": "tea", "quantity": 2, "note": note, "card": "4242424242424242"}
        pid = self._kill_in_the_middle(PURCHASES, asked, key, pauses.MARKED)
        self.out.says(f"process {pid} killed: the card is charged, the order not marked as paid")
        orders = self.staff.get(ORDERS + note).json["results"]
        self._is("orders, whose step has committed", len(orders), 1)
        self._is("it is not paid", orders[0]["paid"] == 0, True)
        answer = self._tell(self.alice.post(PURCHASES, asked, key), key)
        deadline = time.monotonic() + self.lease + pauses.SECONDS
        while answer.status == 409 and time.monotonic() < deadline:
            time.sleep(answer.retry_after)
            answer = self._tell(self.alice.post(PURCHASES, asked, key), key)
        self._is("the retry finishes it", (answer.status, answer.replayed), (201, False))
        orders = self.staff.get(ORDERS + note).json["results"]
        self._is("orders", len(orders), 1)
        self._is("it is the one that was charged", answer.json["id"], orders[0]["id"])
        self._is("it is paid", orders[0]["paid"] == orders[0]["total"] == 16_00, True)
        self._is("calls that the gateway got", len(apps.card_company(orders[0]["id"])), 1)
        self._is("receipts sent", self._mails(note), 1)
        again = self._tell(self.alice.post(PURCHASES, asked, key), key)
        self._is("a later retry is a replay", again.replayed, True)

    def receipt_lost(self) -> None:
        """What is to happen after a commit can be lost with its process: no step of the story."""
        self.out.headline(
            "A process of the worker is killed after the commit, before its hook sends the receipt"
        )
        twice = self.transaction == "separate"
        self._result(self._send_and_meet("hook", 2_00, self._kill_committed, pauses.COMMITTED))
        self.out.says("Another payment after it:")
        self._result(self._send("after-hook", 1_00))
        self._is_done_once("after-hook", 1_00)  # what was sent before this has arrived by now
        self.out.says("The payment whose process was killed:")
        payments, receipts = self._payments("hook"), self.worker.mails(f" hook-{self.run}")
        self._is_so("payments in the books", payments, 2 if twice else 1)
        self._is_so("receipts sent", receipts, 1 if twice else 0)
        self.out.says(
            "Let the work write a row for what must go out: an outbox, as docs/discussion/"
        )
        self.out.says("commits.md has it.")

    # What the steps are made of.

    def _send(self, name: str, amount: int, **options: Any) -> AsyncResult:
        account, reference = self.ids[self.everyday], f"{name}-{self.run}"
        return capture_payment.apply_async((account, amount, reference), **options)

    def _result(self, task: AsyncResult) -> int:
        payment = int(task.get(timeout=SECONDS))
        self.out.says(f"task {task.id[:8]}  ->  {task.state}: payment {payment}")
        return payment

    def _send_and_meet(
        self, name: str, amount: int, meet: Callable[[int], None], point: str = pauses.WRITTEN
    ) -> AsyncResult:
        """Send a message, and do something about the process that has come to that point."""
        with pauses.pause(point) as stopped:
            task = self._send(name, amount)
            meet(stopped())
        return task

    def _kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        self.out.says(f"process {pid} killed: the row is written, the transaction not committed")

    def _kill_committed(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        self.out.says(
            f"process {pid} killed: the payment is committed, its receipt not yet asked for"
        )

    def _kill_worker(self, pid: int) -> None:
        self.worker.crash()
        self.out.says("all processes of the worker killed, one of them half-way")

    def _is_done_once(self, name: str, amount: int = 0) -> None:
        self.expected[self.everyday] -= amount
        self._is("payments in the books", self._payments(name), 1)
        self._is("receipts sent", self._mails(f"{name}-{self.run}"), 1)

    def _mails(self, about: str) -> int:
        """Return how many mails were sent about that, once there is one."""
        deadline = time.monotonic() + SECONDS
        while not self.worker.mails(about) and time.monotonic() < deadline:
            time.sleep(0.05)
        return self.worker.mails(about)
