"""A puller whose pulls the test makes itself, between real stores and an engine that stands still."""

from dataclasses import dataclass, field
from time import time
from typing import Any
from uuid import UUID

import redis
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from db import queue
from db.jobs import Ready
from db.models import Job
from db.settings import Settings
from tests.workers.held_jobs import WORKER_ID, insert_running, insert_worker, make_held, row_of
from workers.held import HeldJob, HeldJobs
from workers.puller import Puller


@dataclass
class FakeConfig:
    block_size: int = 16
    num_high_watermark_blocks: int = 1


@dataclass
class FakeEngine:
    num_free_blocks: int = 64
    giving_way: dict[int, int] = field(default_factory=dict)  # blocks that would be given up for a job of each tier
    config: FakeConfig = field(default_factory=FakeConfig)

    def num_blocks_for(self, tier: int) -> int:
        return self.giving_way.get(tier, 0)


@dataclass
class Loop:
    """Stands in for the engine loop: a model that is loaded, and what it was told to end."""

    engine: FakeEngine = field(default_factory=FakeEngine)
    waiting: tuple[HeldJob, ...] = ()
    starved: tuple[HeldJob, ...] = ()
    expired: list[HeldJob] = field(default_factory=list)

    def expire(self, held: HeldJob) -> None:
        self.expired.append(held)

    @property
    def model(self) -> "Loop":
        return self


@dataclass
class Lease:
    """Stands in for the lease: renewed, on a clock without an offset."""

    worker_id: UUID = WORKER_ID
    clock_offset: float = 0.0
    num_live: int = 1
    is_renewed: bool = True

    def now(self) -> float:
        return time() + self.clock_offset

    def is_fresh(self) -> bool:
        return self.is_renewed


@dataclass
class World:
    """A puller whose pulls the test makes itself."""

    settings: Settings
    engine: Engine
    client: redis.Redis
    is_registered: bool = False  # by the test, under an id of its own
    loop: Loop = field(default_factory=Loop)
    lease: Lease = field(default_factory=Lease)
    held_jobs: HeldJobs = field(default_factory=HeldJobs)
    delivered: list[HeldJob] = field(default_factory=list)
    handed_back: list[HeldJob] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.puller = Puller(
            self.settings,
            self.engine,
            self.client,
            held_jobs=self.held_jobs,
            loop=self.loop,  # type: ignore[arg-type]
            lease=self.lease,  # type: ignore[arg-type]
            deliver=self.delivered.extend,
            push_front=lambda readies: queue.push_front(self.client, readies),
            hand_back=self.handed_back.extend,
            on_failure=lambda error: None,
        )
        self.puller.set_connected(True)
        if not self.is_registered:
            insert_worker(self.engine)

    def submit(self, num: int = 1, *, num_crashes: int = 0, num_prompt_tokens: int = 3, **fields: Any) -> list[UUID]:
        """Queued rows with their messages."""
        prompt = {"prompt_token_ids": [5] * num_prompt_tokens}
        held_jobs = [make_held(attempt=0, **prompt, **fields) for _ in range(num)]
        for held in held_jobs:
            insert_running(self.engine, held, status="queued", worker_id=None, crashes=num_crashes)
        queue.push(self.client, [Ready.of(row_of(self.engine, held)) for held in held_jobs])
        return [held.job_id for held in held_jobs]

    def depth(self) -> int:
        return sum(queue.depths(self.client, "m").values())

    def statuses(self, job_ids: list[UUID]) -> list[str]:
        with Session(self.engine) as session:
            return [session.get_one(Job, job_id).status for job_id in job_ids]

    def pull_all(self) -> list[UUID]:
        """Pull as often as there is reason to; what was delivered."""
        while self.puller.round():
            pass
        return [held.job_id for held in self.delivered]

    def begin(self, held: HeldJob, *, num_blocks: int) -> None:
        """The engine has taken a delivered job up."""
        held.is_added = True
        self.loop.engine.num_free_blocks -= num_blocks
