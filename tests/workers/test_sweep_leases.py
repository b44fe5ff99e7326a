"""When the sweep judges leases, and what becomes of the jobs of workers that it finds lost."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
import redis
from sqlalchemy import Engine, update
from sqlalchemy.orm import Session

from db import jobs, stream
from db.models import Job, Status, Worker
from db.settings import Settings
from tests.workers.world import LEASE, Sweeping
from workers import sweep as sweep_module
from workers.sweep import Report, Sweep


@pytest.fixture
def world(engine: Engine, redis_client: redis.Redis, settings: Settings) -> Sweeping:
    return Sweeping(engine, redis_client, Sweep(engine, redis_client, settings))


def test_job_of_a_lost_worker_is_queued_again_in_its_old_place(world: Sweeping) -> None:
    world.warm_up()
    now = world.now()
    worker_id = world.add_worker(renewed_seconds_ago=LEASE + 1)
    lost, waiting = (world.add_job(ready_at=now - age) for age in (100, 50))
    world.claim(worker_id, lost)
    world.deliver(worker_id, lost, 0)
    world.push(waiting)
    assert world.round().num_requeued == 1
    job = world.job(lost)
    assert (job.status, job.attempt, job.crashes, job.worker_id) == (Status.QUEUED, 1, 1, None)
    assert world.pop_all() == [lost, waiting]


def test_long_job_of_a_live_worker_is_left_alone_however_old_it_is(world: Sweeping) -> None:
    world.warm_up()
    worker_id = world.add_worker(renewed_seconds_ago=LEASE - 5)
    job_id = world.add_job(ready_at=world.now() - 86_400)
    world.claim(worker_id, job_id)
    with Session(world.engine) as session, session.begin():
        session.execute(update(Job).values(started_at=datetime.now(UTC) - timedelta(days=1)))
    assert world.round().num_requeued == 0
    assert world.job(job_id).status == Status.RUNNING
    assert world.pop_all() == []


def test_no_lease_is_judged_before_rounds_were_unbroken_for_one_lease(world: Sweeping) -> None:
    now = world.now()
    world.add_job(ready_at=now)
    judging = [world.sweep.run(now + seconds).is_judging for seconds in range(0, 36, 5)]
    assert judging == [False] * 6 + [True] * 2


def test_outage_that_the_sweep_saw_gives_every_worker_a_lease_to_renew(world: Sweeping) -> None:
    world.warm_up()
    worker_id = world.add_worker(renewed_seconds_ago=LEASE + 1)
    job_id = world.add_job(ready_at=world.now())
    world.claim(worker_id, job_id)
    world.sweep.forget()
    assert not world.round().is_judging
    assert world.job(job_id).status == Status.RUNNING


@pytest.mark.parametrize("jump", [11.0, 3600.0, -5.0])
def test_gap_between_rounds_or_a_jump_of_the_clock_begins_the_count_anew(world: Sweeping, jump: float) -> None:
    world.warm_up()
    now = world.now()
    assert world.sweep.run(now).is_judging
    later = now + jump
    assert not world.sweep.run(later).is_judging
    assert [world.sweep.run(later + seconds).is_judging for seconds in (10, 20, 30)] == [False, False, True]


def test_gap_longer_than_the_lease_divided_is_no_gap_when_rounds_are_that_rare(
    engine: Engine, redis_client: redis.Redis, settings: Settings
) -> None:
    sweep = Sweep(engine, redis_client, settings.model_copy(update={"sweep_seconds": 20.0}))
    assert [sweep.run(seconds).is_judging for seconds in (0.0, 20.0, 40.0)] == [False, False, True]


def rounds(sweep: Sweep, *, answers_after: tuple[float, ...], count: int = 8) -> list[bool]:
    """Whether each of the rounds judged, when Postgres takes so long for its answers in each; 5 s lie between them."""
    clock, judged = 1000.0, []
    delays: list[float] = []

    def ask() -> float:
        nonlocal clock
        clock += delays.pop(0) if delays else 0.0
        return clock

    for _ in range(count):
        delays[:] = answers_after
        judged.append(sweep.run(clock, ask).is_judging)
        clock += 5.0
    return judged


def test_rounds_that_take_long_are_no_gap_while_postgres_answers(world: Sweeping) -> None:
    assert rounds(world.sweep, answers_after=(6.0, 6.0, 6.0, 6.0), count=4) == [False, False, True, True]


def test_silence_within_a_round_is_a_gap(world: Sweeping) -> None:
    assert not any(rounds(world.sweep, answers_after=(6.0, 11.0)))


def test_worker_that_lost_its_lease_writes_no_result_and_no_event_when_it_wakes(world: Sweeping) -> None:
    world.warm_up()
    frozen = world.add_worker(renewed_seconds_ago=LEASE + 1)
    job_id = world.add_job(ready_at=world.now() - 60)
    world.claim(frozen, job_id)
    world.round()
    assert world.finish(frozen, job_id) == set()
    assert world.job(job_id).status == Status.QUEUED
    assert world.events(job_id) == []
    successor = world.add_worker()
    world.claim(successor, job_id)
    assert world.finish(frozen, job_id) == set()
    assert world.finish(successor, job_id, attempt=2) == {job_id}
    assert world.events(job_id) == ["job.succeeded"]


def test_job_that_was_marked_lost_by_a_round_that_was_cut_off_is_taken_in_the_next(world: Sweeping) -> None:
    world.warm_up()
    worker_id = world.add_worker()
    job_id = world.add_job(ready_at=world.now() - 60)
    world.claim(worker_id, job_id)
    with Session(world.engine) as session, session.begin():
        session.execute(update(Worker).values(status="lost"))
    assert world.round().num_requeued == 1
    assert world.pop_all() == [job_id]


def test_every_job_of_a_lost_worker_is_visited_among_many_healthy_ones(
    world: Sweeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_module, "PAGE", 2)
    world.warm_up()
    healthy, lost = world.add_worker(), world.add_worker(renewed_seconds_ago=LEASE + 1)
    now = world.now()
    long_ones = [world.add_job(ready_at=now - 1000 + n) for n in range(5)]
    overdue = [world.add_job(ready_at=now - 100 + n) for n in range(5)]
    world.claim(healthy, *long_ones)
    world.claim(lost, *overdue)
    assert world.round().num_requeued == 5
    assert world.pop_all() == overdue


def crash(world: Sweeping, job_id: UUID, *, attempt: int, num_tokens: int) -> Report:
    """One more worker claims the job, delivers so many tokens, and is lost."""
    worker_id = world.add_worker()
    world.claim(worker_id, job_id)
    world.deliver(worker_id, job_id, num_tokens, attempt=attempt)
    with Session(world.engine) as session, session.begin():
        session.execute(update(Worker).where(Worker.id == worker_id).values(status="lost"))
    return world.round()


def test_third_crash_without_a_new_token_is_dead_with_its_reason_and_what_it_delivered(world: Sweeping) -> None:
    world.warm_up()
    job_id = world.add_job(ready_at=world.now() - 60)
    # The first run gets somewhere, so its loss is charged to nobody; the three that follow stop where it did.
    reports = [crash(world, job_id, attempt=1, num_tokens=2)]
    reports += [crash(world, job_id, attempt=attempt, num_tokens=0) for attempt in (2, 3, 4)]
    assert [(report.num_requeued, report.num_dead) for report in reports] == [(1, 0), (1, 0), (1, 0), (0, 1)]
    job = world.job(job_id)
    assert (job.status, job.crashes, job.error_code, job.num_output_tokens) == (Status.DEAD, 3, "crashed", 2)
    assert job.error_message is not None and "3 workers were lost" in job.error_message
    assert world.events(job_id) == ["job.dead"]
    assert world.round().num_dead == 0
    successor = world.add_worker()
    with Session(world.engine) as session, session.begin():
        assert jobs.claim(session, successor, [job_id]) == []
    with pytest.raises(stream.StreamEnded):
        stream.open(world.redis, job_id, 5, successor)


def test_crashes_that_each_got_further_are_not_charged(world: Sweeping) -> None:
    world.warm_up()
    job_id = world.add_job(ready_at=world.now() - 60)
    for attempt in range(1, 6):
        assert crash(world, job_id, attempt=attempt, num_tokens=1).num_requeued == 1
    assert world.job(job_id).crashes == 0
