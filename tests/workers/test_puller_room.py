"""What the puller takes when blocks or seats are short: never more than one job that does not fit yet."""

from time import monotonic
from uuid import UUID

import pytest
import redis
from sqlalchemy import Engine

from db import stream
from db.sampling import Sampling
from db.settings import Settings
from tests.workers.held_jobs import make_held
from tests.workers.puller_world import World


@pytest.fixture
def world(settings: Settings, engine: Engine, redis_client: redis.Redis) -> World:
    return World(settings.model_copy(update={"model_name": "m", "max_num_seqs": 4}), engine, redis_client)


def test_no_more_is_taken_than_there_are_blocks_for(world: World) -> None:
    world.loop.engine.num_free_blocks = 5
    job_ids = world.submit(4, num_blocks=2)
    world.puller.pull()
    assert [held.job_id for held in world.delivered] == job_ids[:2]


def test_one_job_that_does_not_fit_is_held_and_given_to_nobody_until_it_does(world: World) -> None:
    world.loop.engine.num_free_blocks = 10
    running, big, other = world.submit(num_blocks=8), *world.submit(2, num_blocks=60, num_prompt_tokens=160)
    assert world.pull_all() == running
    assert world.statuses([big, other]) == ["running", "queued"]
    assert stream.standings(world.client, [big])[big].is_waiting
    world.begin(world.delivered[0], num_blocks=8)
    world.loop.engine.num_free_blocks = 11  # ten for its prompt, and the margin
    assert world.pull_all() == [*running, big]
    assert not stream.standings(world.client, [big])[big].is_waiting


def test_beside_the_one_that_waits_only_what_goes_before_it_may_use_its_blocks(world: World) -> None:
    [running] = world.submit(num_blocks=60)
    world.pull_all()
    world.begin(world.delivered[0], num_blocks=60)
    [waiting] = world.submit(tier=1, num_blocks=30, num_prompt_tokens=480)
    world.pull_all()
    better, worse = world.submit(tier=0, num_blocks=3), world.submit(tier=2, num_blocks=1)
    assert world.pull_all() == [running, *better]
    assert world.statuses([waiting, *worse]) == ["running", "queued"]


def test_sequences_that_gave_way_in_the_engine_are_left_their_blocks(world: World) -> None:
    world.loop.waiting = (make_held(tier=1, num_blocks=60, ready_at=1.0),)
    assert world.pull_all() == []
    small, big = world.submit(num_blocks=4), world.submit(num_blocks=5)
    assert world.pull_all() == small
    assert world.statuses(big) == ["queued"]


def test_a_job_whose_limit_passes_while_it_waits_for_blocks_expires(world: World) -> None:
    world.loop.engine.num_free_blocks = 1
    running, [waiting] = world.submit(num_blocks=1), world.submit(num_blocks=60, num_prompt_tokens=160)
    world.pull_all()
    held = world.held_jobs.get(waiting)
    assert held is not None
    held.deadline = monotonic() - 1
    world.puller.round()
    assert (world.loop.expired, [job.job_id for job in world.delivered]) == ([held], running)


def test_a_crashed_job_that_waits_for_blocks_holds_nobody_up(world: World) -> None:
    [running] = world.submit(num_blocks=60)
    world.pull_all()
    world.begin(world.delivered[0], num_blocks=60)
    world.submit(num_blocks=30, num_prompt_tokens=480, num_crashes=1)
    world.pull_all()
    better = world.submit(tier=0, num_blocks=3)
    assert world.pull_all() == [running, *better]


def fill_seats(world: World) -> list[UUID]:
    """Low jobs in all seats, with the engine."""
    world.submit(world.settings.max_num_seqs, tier=2)
    running = world.pull_all()
    assert len(running) == world.settings.max_num_seqs
    for held in world.delivered:
        world.begin(held, num_blocks=2)
    return running


def test_with_all_seats_taken_a_better_job_is_taken_one_at_a_time(world: World) -> None:
    running = fill_seats(world)
    [first, second] = world.submit(2, tier=0)
    world.submit(1, tier=1)
    world.loop.engine.giving_way = {0: 4}
    assert world.pull_all() == [*running, first]
    world.begin(world.delivered[-1], num_blocks=2)
    assert world.pull_all() == [*running, first, second]


def test_with_all_seats_taken_nothing_is_taken_for_which_nobody_would_give_way(world: World) -> None:
    running = fill_seats(world)
    world.submit(1, tier=0)
    assert world.pull_all() == running
    assert world.depth() == 1


def test_a_job_that_waits_too_long_after_it_gave_way_is_handed_back(world: World) -> None:
    world.submit(1)
    world.pull_all()
    [held] = world.delivered
    stranger = make_held()
    world.loop.starved = (held, stranger)  # the latter has left meanwhile
    world.puller.round()
    assert world.handed_back == [held]


def test_a_job_takes_a_seat_for_each_of_its_outputs(world: World) -> None:
    group, singles = world.submit(sampling=Sampling(n=3)), world.submit(2)
    assert world.pull_all() == [*group, singles[0]]
    assert world.statuses(singles) == ["running", "queued"]
    assert world.depth() == 1, "what was popped without a seat is back in its list"
    world.held_jobs.discard(world.delivered[0])
    assert world.pull_all() == [*group, *singles]


def test_one_job_that_is_short_of_seats_is_taken_and_nothing_beside_it(world: World) -> None:
    running = world.submit(2)
    assert world.pull_all() == running
    search, *left = [*world.submit(sampling=Sampling(num_beams=4)), *world.submit(2, sampling=Sampling(n=2))]
    assert world.pull_all() == [*running, search]
    assert world.statuses(left) == ["queued"] * 2
    for held in world.delivered[:2]:
        world.held_jobs.discard(held)
    assert world.pull_all() == [*running, search], "now it has its seats, and there are no others"


def test_a_job_that_waits_for_blocks_waits_for_its_seats_too(world: World) -> None:
    world.loop.engine.num_free_blocks = 3
    running = world.submit(2, num_blocks=1)
    [group] = world.submit(sampling=Sampling(n=3), num_blocks=30)
    assert world.pull_all() == running
    assert world.statuses([group]) == ["running"]
    for held in world.delivered:
        world.begin(held, num_blocks=1)
    world.loop.engine.num_free_blocks = 64
    assert world.pull_all() == running
    world.held_jobs.discard(world.delivered[0])
    assert world.pull_all() == [*running, group]
