"""The puller against both stores, pull by pull: what it takes, leaves, and puts back."""

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
from tests.workers.held_jobs import WORKER_ID, make_held, row_of
from tests.workers.puller_world import World
from workers.puller import Puller


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


def test_of_crashed_jobs_one_at_a_time_is_held_and_the_others_wait_unclaimed(world: World) -> None:
    first, second, third = world.submit(3, num_crashes=1)
    assert world.pull_all() == [first]
    assert world.statuses([second, third]) == ["queued", "queued"]
    world.held_jobs.discard(world.delivered[0])
    assert world.pull_all() == [first, second]
    assert [row_of(world.engine, make_held(id=job_id)).attempt for job_id in (first, second, third)] == [1, 1, 0]


def test_nothing_begins_beside_a_crashed_job_before_its_first_token(world: World) -> None:
    sound = world.submit(2)
    crashed = world.submit(num_crashes=1)
    assert world.pull_all() == crashed
    assert (world.statuses(sound), world.depth()) == (["queued", "queued"], 2)
    world.delivered[0].num_streamed = 1
    assert world.pull_all() == [*crashed, *sound]


def test_messages_of_crashed_jobs_go_back_when_the_puller_stops(world: World) -> None:
    _, second = world.submit(2, num_crashes=1)
    world.pull_all()
    assert world.depth() == 0
    world.puller.stop()
    world.puller.work()
    assert world.depth() == 1
    assert world.statuses([second]) == ["queued"]


def test_what_a_pull_claims_after_the_stop_is_handed_back_at_once(world: World) -> None:
    job_ids = world.submit(2)
    world.puller.stop()
    world.puller.pull()
    assert (world.delivered, world.depth()) == ([], 2)
    assert world.statuses(job_ids) == ["queued", "queued"]


def test_a_tier_that_is_turned_off_is_not_read(world: World) -> None:
    low, high = world.submit(tier=2), world.submit(tier=0)
    world.puller.turn(2, is_on=False)
    assert world.pull_all() == high
    world.puller.turn(2, is_on=True)
    assert world.pull_all() == high + low


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

    def fail(*_: object, **__: object) -> list[jobs.Claimed]:
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

    def fail(*_: object, **__: object) -> dict[UUID, stream.Opened]:
        raise redis.ConnectionError("Redis is away")

    with monkeypatch.context() as patch:
        patch.setattr(stream, "open_many", fail)
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
        hand_back=world.handed_back.extend,
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
