"""The published bound on waiting, held to the real pop script on a clock that the test moves.

A job of level L competes as high after THRESHOLD + L / BOOST, and then starts within 4 * (jobs ahead of it + 1) pops,
`ahead` being what waits at that moment and became ready before it.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from uuid import UUID

import pytest
import redis
from sqlalchemy import Engine, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from db import jobs, queue
from db.ids import new_id
from db.order import LIFTED_EVERY
from db.queue import Ready
from tests.db.rows import new_job

THRESHOLD, BOOST = 30.0, 0.5  # seconds, levels per second: the defaults
HIGH, NORMAL, LOW = 0, 1, 2
START = 1_000_000.0


@dataclass
class Simulation:
    """A queue, workers that each take `seats` jobs at a time, and a clock that moves by one pop's time at each job."""

    client: redis.Redis
    pops_per_second: float
    num_workers: int = 1
    seats: int = 1
    now: float = START
    waiting: dict[int, Ready] = field(default_factory=dict)  # by number
    started: dict[int, float] = field(default_factory=dict)  # when, by number, in order
    num_pops: dict[int, int] = field(default_factory=dict)  # by worker
    numbers: Iterator[int] = field(default_factory=count)

    def push(self, tier: int, num_jobs: int = 1, *, wait: float = 0.0) -> list[int]:
        """Jobs that became ready `wait` seconds ago, a microsecond apart."""
        readies = [Ready(UUID(int=next(self.numbers)), "m", tier, self.now - wait, 1) for _ in range(num_jobs)]
        queue.push(self.client, readies)
        self.waiting |= {ready.job_id.int: ready for ready in readies}
        return [ready.job_id.int for ready in readies]

    def pop(self) -> list[int]:
        """One worker's turn."""
        worker = len(self.started) // self.seats % self.num_workers
        num_before = self.num_pops.get(worker, 0)
        popped = queue.pop(
            self.client,
            model="m",
            now=self.now,
            policy="aging",
            threshold=THRESHOLD,
            boost=BOOST,
            seats=self.seats,
            blocks=10**9,
            live_workers=1,
            pops=num_before,
        )
        numbers = [message.job_id.int for message in popped.messages]
        self.num_pops[worker] = num_before + len(numbers)
        for number in numbers:
            del self.waiting[number]
            self.started[number] = self.now
        self.now += max(1, len(numbers)) / self.pops_per_second
        return numbers

    def num_older(self, than: Ready) -> int:
        return sum(ready.ready_at < than.ready_at for ready in self.waiting.values())


def lifted_at(ready: Ready) -> float:
    """From when on the job competes as high."""
    return ready.ready_at + THRESHOLD + ready.tier / BOOST


@pytest.fixture
def simulate(redis_client: redis.Redis) -> Callable[..., Simulation]:
    return lambda **options: Simulation(redis_client, **options)


def run_flood(queue_: Simulation, *, seconds: float, arrivals: dict[int, float]) -> dict[int, tuple[Ready, int, float]]:
    """Let jobs of each tier arrive at so many a second; for each job that ever competed as high: itself, how many
    were ahead of it then, and when that was."""
    lifted: dict[int, tuple[Ready, int, float]] = {}
    due = dict.fromkeys(arrivals, queue_.now)
    end = queue_.now + seconds
    while queue_.now < end:
        for tier, per_second in arrivals.items():
            while due[tier] <= queue_.now:
                queue_.push(tier)
                due[tier] += 1 / per_second
        for number, ready in queue_.waiting.items():
            if number not in lifted and lifted_at(ready) <= queue_.now:
                lifted[number] = (ready, queue_.num_older(ready), queue_.now)
        queue_.pop()
    return lifted


@pytest.mark.parametrize(("num_workers", "seats"), [(1, 1), (3, 1), (1, 8), (2, 4)])
def test_low_and_normal_jobs_under_a_flood_of_high_ones_start_within_the_bound(
    simulate: Callable[..., Simulation], num_workers: int, seats: int
) -> None:
    queue_ = simulate(pops_per_second=10, num_workers=num_workers, seats=seats)
    lifted = run_flood(queue_, seconds=150, arrivals={HIGH: 12, NORMAL: 0.5, LOW: 1})
    assert {ready.tier for ready, *_ in lifted.values()} == {HIGH, NORMAL, LOW}
    # Each worker counts its own turns, and takes what it may in one go.
    slack = LIFTED_EVERY * num_workers + seats
    for number, (ready, num_ahead, since) in lifted.items():
        bound = since + (LIFTED_EVERY * num_ahead + slack) / queue_.pops_per_second
        start = queue_.started.get(number, queue_.now)
        assert start <= bound, f"{ready} waited {start - since:.1f} s with {num_ahead} ahead"
    assert sum(ready.tier == LOW and number in queue_.started for number, (ready, *_) in lifted.items()) > 50


def test_the_high_tier_waits_for_its_share_of_the_pops_under_a_backlog_of_20_000_aged_low_jobs(
    simulate: Callable[..., Simulation],
) -> None:
    queue_ = simulate(pops_per_second=10)
    queue_.push(LOW, 20_000, wait=3600)
    ahead: dict[int, int] = {}  # of each high job, how many high ones waited before it
    arrived: dict[int, float] = {}
    for number_of_pop in range(1200):
        for _ in range((0, 1, 1, 3, 0, 1, 0, 0)[number_of_pop % 8]):  # 6 in 8 pops: all that the tier's share allows
            num_high = sum(number not in queue_.started for number in arrived)
            [number] = queue_.push(HIGH)
            ahead[number], arrived[number] = num_high, queue_.now
        queue_.pop()
    waited = {number: queue_.started[number] - since for number, since in arrived.items() if number in queue_.started}
    assert len(waited) >= len(arrived) - 3
    for number, seconds in waited.items():
        num_pops = -(-LIFTED_EVERY * (ahead[number] + 1) // (LIFTED_EVERY - 1))  # 3 in 4 are the tier's
        assert seconds * queue_.pops_per_second <= num_pops + 1e-6
    num_low = len(queue_.started) - len(waited)
    assert num_low >= 1200 // LIFTED_EVERY  # and nothing idles


@dataclass
class Tenants:
    """Jobs of two keys in both stores, and a worker that takes four at a time."""

    engine: Engine
    client: redis.Redis
    async_engine: AsyncEngine
    worker_id: UUID = field(default_factory=new_id)

    def submit(self, key: int, num_jobs: int) -> list[UUID]:
        return asyncio.run(self._submit(key, num_jobs))

    async def _submit(self, key: int, num_jobs: int) -> list[UUID]:
        new = new_job(key_id=UUID(int=key))
        async with AsyncSession(self.async_engine, expire_on_commit=False) as session, session.begin():
            created = [await jobs.create(session, new, key_window=KEY_WINDOW) for _ in range(num_jobs)]
        queue.push(self.client, [each.ready for each in created if each.ready is not None])
        await self.async_engine.dispose()  # its connections are of this event loop
        return [each.job.id for each in created]

    def start(self, num_jobs: int = 4) -> list[UUID]:
        """As the puller does: pop, claim, and let parked jobs move up."""
        with Session(self.engine) as session:
            now = session.scalars(text("SELECT extract(epoch FROM clock_timestamp())")).one()
            popped = queue.pop(
                self.client,
                model="m",
                now=float(now),
                policy="aging",
                threshold=THRESHOLD,
                boost=BOOST,
                seats=num_jobs,
                blocks=10**9,
                live_workers=1,
                pops=0,
            )
            claimed = jobs.claim(session, self.worker_id, [message.job_id for message in popped.messages])
            session.commit()
            readies = jobs.promote(session, {job.key_id for job in claimed}, key_window=KEY_WINDOW)
            session.commit()
        queue.push(self.client, readies)
        return [message.job_id for message in popped.messages]


KEY_WINDOW = 64


def test_a_keys_thousand_jobs_let_at_most_its_window_start_before_anothers_one(
    engine: Engine, redis_client: redis.Redis, async_engine: AsyncEngine
) -> None:
    tenants = Tenants(engine, redis_client, async_engine)
    crowd = tenants.submit(1, 1000)
    for _ in range(2):  # at once, and after some of the thousand have run
        [alone] = tenants.submit(2, 1)
        starts: list[UUID] = []
        while alone not in starts:
            starts += tenants.start()
        assert starts.index(alone) <= KEY_WINDOW
    order = [each for _ in range(300) for each in tenants.start()]
    parked = sorted(crowd[KEY_WINDOW:])  # ids are as fine as a millisecond
    assert order == parked[-len(order) :], "the thousand keep their own order, and each starts once"
