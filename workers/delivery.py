"""When a webhook is tried again, and when that ends."""

import random
from dataclasses import dataclass
from typing import Literal

from workers.webhooks import Reply

MINUTE, HOUR = 60.0, 3600.0
# Seconds between one attempt and the next: about three days in all.
SCHEDULE = (
    5.0,
    5 * MINUTE,
    30 * MINUTE,
    2 * HOUR,
    5 * HOUR,
    10 * HOUR,
    14 * HOUR,
    20 * HOUR,
    24 * HOUR,
)
JITTER = 0.1  # of the delay, both ways: what failed together does not come back together
THROTTLED = (429, 502, 503, 504)  # answers that ask for fewer, and whose Retry-After counts
GONE = 410  # the endpoint wants no more of this


Outcome = Literal["delivered", "retry", "failed"]  # what one attempt means for its delivery


@dataclass(frozen=True)
class Verdict:
    """What becomes of a delivery after an attempt."""

    outcome: Outcome
    retry_in_seconds: float | None = None  # set exactly when the outcome is "retry"
    is_gone: bool = False  # the endpoint wants no other delivery either


def judge(reply: Reply, *, number: int, is_test: bool = False, jitter: float | None = None) -> Verdict:
    """The verdict on attempt `number` (from 1). A test is never repeated.

    A redirect is retried like any other failure: its reason is on record, and the owner may repair the endpoint.
    `jitter` in [-1, 1] replaces the random one.
    """
    if reply.error is None:
        return Verdict("delivered")
    if reply.is_refused or reply.status_code == GONE or number > len(SCHEDULE) or is_test:
        return Verdict("failed", is_gone=reply.status_code == GONE)
    delay = SCHEDULE[number - 1] * (1 + JITTER * (random.uniform(-1, 1) if jitter is None else jitter))
    if reply.status_code in THROTTLED and reply.retry_after_seconds is not None:
        # Never sooner than the schedule, never later than its longest step.
        delay = max(delay, min(reply.retry_after_seconds, SCHEDULE[-1]))
    return Verdict("retry", delay)
