"""The puller against both stores, pull by pull: what it takes, leaves, and puts back."""

from dataclasses import dataclass, field
from uuid import UUID

import pytest
import redis
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from db import jobs, queue, stream
from db.jobs import Ready
from db.models import Job
from db.settings import Settings
from db.stream import Append, Token
from tests.workers.held_jobs import WORKER_ID, insert_running, insert_worker, make_held, row_of
from workers.held import HeldJob, HeldJobs
from workers.puller import Puller


@dataclass
class FakeEngine:
    num_waiting: int = 0
    num_free_blocks: int = 64


@dataclass
class Loop:
    """Stands in for the engine loop: a model that is loaded."""

    engine: FakeEngine = field(default_factory=FakeEngine)

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

    def is_fresh(self) -> bool:
        return self.is_renewed


@dataclass
class World:
    """A puller whose pulls the test makes itself."""

    settings: Settings
    engine: Engine
    client: redis.Redis
    loop: Loop = field(default_factory=Loop)
    lease: Lease = field(default_factory=Lease)
    held_jobs: HeldJobs = field(default_factory=HeldJobs)
    delivered: list[HeldJob] = field(default_factory=list)

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
            on_failure=lambda error: None,
        )
        self.puller.set_connected(True)
        insert_worker(self.engine)

    def submit(self, num: int = 1, *, tier: int = 1, num_blocks: int = 2) -> list[UUID]:
        """Queued rows with their messages."""
        held_jobs = [make_held(attempt=0, tier=tier, num_blocks=num_blocks) for _ in range(num)]
        for held in held_jobs:
            insert_running(self.engine, held, status="queued", worker_id=None)
        queue.push(self.client, [Ready.of(row_of(self.engine, held)) for held in held_jobs])
        return [held.job_id for held in held_jobs]

    def depth(self) -> int:
        return sum(queue.depths(self.client, "m").values())

    def statuses(self, job_ids: list[UUID]) -> list[str]:
        with Session(self.engine) as session:
            return [session.get_one(Job, job_id).status for job_id in job_ids]

    def pull_all(self) -> list[UUID]:
        """Pull as often as there is reason to; what was delivered."""
        while self.puller.may_pull() and self.puller.pull():
            pass
        return [held.job_id for held in self.delivered]


@pytest.fixture
def world(settings: Settings, engine: Engine, redis_client: redis.Redis) -> World:
    return World(settings.model_copy(update={"model_name": "m", "max_num_seqs": 4}), engine, redis_client)


def test_no_more_is_taken_than_there_are_seats(world: World) -> None:
    job_ids = world.submit(6)
    assert world.pull_all() == job_ids[:4]
    assert world.statuses(job_ids) == ["running"] * 4 + ["queued"] * 2
    assert world.depth() == 2
    world.held_jobs.discard(world.delivered[0])
    assert world.pull_all() == job_ids[:5]


def test_two_workers_share_a_short_queue(world: World) -> None:
    job_ids = world.submit(2)
    world.lease.num_live = 2
    world.puller.pull()
    assert [held.job_id for held in world.delivered] == job_ids[:1]


def test_no_more_is_taken_than_there_are_blocks_for(world: World) -> None:
    world.loop.engine.num_free_blocks = 5
    job_ids = world.submit(4, num_blocks=2)
    world.puller.pull()
    assert [held.job_id for held in world.delivered] == job_ids[:2]


def test_one_job_that_does_not_fit_yet_is_held_and_nothing_is_taken_beside_it(world: World) -> None:
    world.loop.engine.num_free_blocks = 5
    [big] = world.submit(num_blocks=9)
    world.submit(2, num_blocks=1)
    world.puller.pull()
    assert [held.job_id for held in world.delivered] == [big]
    world.delivered[0].is_added = True
    world.loop.engine.num_waiting = 1
    assert not world.puller.may_pull()


@pytest.mark.parametrize("what", ["lease", "connection", "seats"])
def test_nothing_is_taken_without(world: World, what: str) -> None:
    world.submit()
    if what == "lease":
        world.lease.is_renewed = False
    if what == "connection":
        world.puller.set_connected(False)
    if what == "seats":
        world.held_jobs.expect(make_held().job_id for _ in range(4))
    assert world.pull_all() == []
    assert world.depth() == 1


def test_a_message_whose_job_is_gone_or_taken_is_dropped(world: World) -> None:
    [gone, taken, there] = world.submit(3)
    with Session(world.engine) as session:
        session.get_one(Job, gone).status = "cancelled"
        session.get_one(Job, taken).status = "running"
        session.commit()
    assert world.pull_all() == [there]
    assert (world.depth(), len(world.held_jobs)) == (0, 1)


def test_a_second_message_of_a_job_is_harmless(world: World) -> None:
    [job_id] = world.submit()
    with Session(world.engine) as session:
        queue.push(world.client, [Ready.of(session.get_one(Job, job_id))])
    assert world.pull_all() == [job_id]
    assert len(world.held_jobs) == 1


def test_what_an_earlier_attempt_delivered_comes_with_the_job(world: World) -> None:
    [job_id] = world.submit()
    stream.open(world.client, job_id, 0, WORKER_ID)
    stream.append_many(world.client, [Append(job_id, 0, WORKER_ID, 0, [Token(3, "x"), Token(4, "y")])])
    world.pull_all()
    [held] = world.delivered
    assert ([token.text for token in held.tokens], held.num_streamed) == (["x", "y"], 2)


def test_messages_go_back_to_the_front_when_the_claim_fails(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    job_ids = world.submit(2)

    def fail(*_: object) -> list[jobs.Claimed]:
        raise OperationalError("SELECT", {}, Exception("Postgres is away"))

    with monkeypatch.context() as patch:
        patch.setattr(jobs, "claim", fail)
        with pytest.raises(OperationalError):
            world.puller.pull()
    assert (world.depth(), len(world.held_jobs)) == (2, 0)
    assert world.pull_all() == job_ids


def test_claimed_jobs_are_released_when_their_streams_cannot_be_opened(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_ids = world.submit(2)

    def fail(*_: object) -> stream.Opened:
        raise redis.ConnectionError("Redis is away")

    with monkeypatch.context() as patch:
        patch.setattr(stream, "open", fail)
        with pytest.raises(redis.ConnectionError):
            world.puller.pull()
    assert world.statuses(job_ids) == ["queued", "queued"]
    assert len(world.held_jobs) == 0
    assert world.pull_all() == job_ids


def test_a_job_whose_stream_is_closed_is_left_to_the_sweep(world: World) -> None:
    [forgotten, there] = world.submit(2)
    stream.open(world.client, forgotten, 1, WORKER_ID)
    stream.end(world.client, forgotten, 0)
    assert world.pull_all() == [there]
    assert world.statuses([forgotten]) == ["queued"]
    assert world.depth() == 0


def test_parked_jobs_of_a_key_move_up_as_its_earlier_ones_start(world: World) -> None:
    world.puller = Puller(
        world.settings.model_copy(update={"key_window": 1, "max_num_seqs": 1}),
        world.engine,
        world.client,
        held_jobs=world.held_jobs,
        loop=world.loop,  # type: ignore[arg-type]
        lease=world.lease,  # type: ignore[arg-type]
        deliver=world.delivered.extend,
        push_front=lambda readies: None,
        on_failure=lambda error: None,
    )
    [first, parked] = world.submit(2)
    with Session(world.engine) as session:
        session.get_one(Job, parked).ready_at = None
        session.commit()
    world.client.delete(queue.queue_name("m", 1))
    with Session(world.engine) as session:
        queue.push(world.client, [Ready.of(session.get_one(Job, first))])
    world.puller.pull()
    assert [held.job_id for held in world.delivered] == [first]
    assert world.depth() == 1
    with Session(world.engine) as session:
        assert session.get_one(Job, parked).ready_at is not None
