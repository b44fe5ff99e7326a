"""The mailbox between real threads: what is taken, when it counts as done, and how it ends."""

import threading
from collections.abc import Callable
from queue import Queue
from time import monotonic
from typing import Any

from tests.workers.held_jobs import make_held
from workers.held import HeldJob
from workers.mailbox import Mailbox

PATIENCE_SECONDS = 30  # after which a thread counts as hanging
FOREVER = threading.TIMEOUT_MAX


def begin(function: Callable[..., Any], *args: Any, **options: Any) -> "Queue[Any]":
    """Call the function on a thread of its own, and wait until it is at it. Its result comes by the queue."""
    result: Queue[Any] = Queue()
    has_begun = threading.Event()

    def call() -> None:
        has_begun.set()
        result.put(function(*args, **options))

    threading.Thread(target=call, daemon=True).start()
    assert has_begun.wait(PATIENCE_SECONDS)
    return result


def test_jobs_are_taken_together_each_once_in_the_order_in_which_they_first_came() -> None:
    mailbox, (a, b, c) = Mailbox(), [make_held() for _ in range(3)]
    mailbox.put([b, a])
    mailbox.put([c, b])
    assert mailbox.take() == [b, a, c]


def test_a_thread_that_waits_is_woken_by_the_first_job() -> None:
    mailbox, held = Mailbox(), make_held()
    taken = begin(mailbox.take)
    mailbox.put([])
    mailbox.put([held])
    assert taken.get(timeout=PATIENCE_SECONDS) == [held]


def test_a_job_that_was_taken_may_be_put_again() -> None:
    mailbox, held = Mailbox(), make_held()
    for _ in range(2):
        mailbox.put([held])
        assert mailbox.take() == [held]


def test_what_was_taken_is_done_when_the_thread_asks_for_more() -> None:
    mailbox, held = Mailbox(), make_held()
    assert mailbox.flush(0)
    mailbox.put([held])
    assert not mailbox.flush(0)
    mailbox.take()
    assert not mailbox.flush(0)
    flushed = begin(mailbox.flush, FOREVER)
    taken = begin(mailbox.take)
    assert flushed.get(timeout=PATIENCE_SECONDS)
    mailbox.close()
    assert taken.get(timeout=PATIENCE_SECONDS) == []


def test_what_was_put_back_is_not_done() -> None:
    mailbox, held = Mailbox(), make_held()
    mailbox.put([held])
    for _ in range(2):
        mailbox.put(mailbox.take())
        assert not mailbox.flush(0)


def test_a_closed_mailbox_gives_what_waits_and_then_nothing() -> None:
    mailbox, (early, late) = Mailbox(), [make_held() for _ in range(2)]
    mailbox.put([early])
    mailbox.close()
    mailbox.put([late])
    assert [mailbox.take(), mailbox.take()] == [[early, late], []]
    assert mailbox.flush(0)


def test_a_mailbox_closed_to_drop_gives_nothing_whatever_came_or_comes() -> None:
    mailbox = Mailbox()
    mailbox.put([make_held()])
    mailbox.close(drop=True)
    mailbox.put([make_held()])
    assert mailbox.take() == []
    assert mailbox.flush(0)


def later(held: HeldJob) -> float:
    return FOREVER


def test_jobs_are_taken_when_they_are_due_and_others_meanwhile() -> None:
    mailbox, (early, late) = Mailbox(), [make_held() for _ in range(2)]
    mailbox.put([late], due=later)
    mailbox.put([early])
    assert mailbox.take() == [early]
    at = monotonic() + 0.05
    mailbox.put([late], due=lambda held: at)
    assert mailbox.take() == [late], "the earliest time counts"
    assert monotonic() >= at


def test_a_job_that_is_due_stays_so_when_it_is_put_for_later() -> None:
    mailbox, held = Mailbox(), make_held()
    mailbox.put([held])
    mailbox.put([held], due=later)
    assert mailbox.take() == [held]


def test_a_thread_that_waits_for_what_is_due_is_woken_by_what_is_due_before() -> None:
    mailbox, (early, late) = Mailbox(), [make_held() for _ in range(2)]
    mailbox.put([late], due=later)
    taken = begin(mailbox.take)
    mailbox.put([early])
    assert taken.get(timeout=PATIENCE_SECONDS) == [early]


def test_to_who_flushes_everything_is_due() -> None:
    mailbox, held = Mailbox(), make_held()
    mailbox.put([held], due=later)
    taken = begin(mailbox.take)
    flushed = begin(mailbox.flush, FOREVER)
    assert taken.get(timeout=PATIENCE_SECONDS) == [held]
    begin(mailbox.take)
    assert flushed.get(timeout=PATIENCE_SECONDS)
    mailbox.close()


def test_a_closed_mailbox_gives_also_what_is_not_due() -> None:
    mailbox, held = Mailbox(), make_held()
    mailbox.put([held], due=later)
    mailbox.close()
    assert [mailbox.take(), mailbox.take()] == [[held], []]


def test_a_thread_that_waits_for_jobs_is_let_go_when_the_mailbox_closes() -> None:
    mailbox = Mailbox()
    taken = begin(mailbox.take)
    mailbox.close()
    assert taken.get(timeout=PATIENCE_SECONDS) == []


def test_a_pause_ends_when_the_mailbox_closes() -> None:
    mailbox = Mailbox()
    paused = begin(mailbox.pause, FOREVER)
    mailbox.close()
    assert paused.get(timeout=PATIENCE_SECONDS) is True


def test_no_job_that_comes_during_a_pause_ends_it() -> None:
    mailbox, held = Mailbox(), make_held()
    paused = begin(mailbox.pause, 0.1)
    while paused.empty():
        mailbox.put([held])
    assert paused.get() is False


def test_many_threads_put_and_every_job_is_taken_once_in_its_threads_order() -> None:
    mailbox, taken = Mailbox(), list[HeldJob]()
    heaps = [[make_held() for _ in range(200)] for _ in range(4)]

    def take_all() -> None:
        while jobs := mailbox.take():
            taken.extend(jobs)

    def put_singly(heap: list[HeldJob]) -> None:
        for held in heap:
            mailbox.put([held])

    taking = begin(take_all)
    putting = [begin(put_singly, heap) for heap in heaps]
    for each in putting:
        each.get(timeout=PATIENCE_SECONDS)
    assert mailbox.flush(PATIENCE_SECONDS)
    assert len(taken) == 800
    for heap in map(dict.fromkeys, heaps):
        assert [held for held in taken if held in heap] == list(heap)
    mailbox.close()
    taking.get(timeout=PATIENCE_SECONDS)
