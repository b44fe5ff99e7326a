"""What one round of the sweep repairs: rows without a message and messages without a row, limits, forgotten cancels."""

from datetime import UTC, datetime
from uuid import UUID

import pytest
import redis
from sqlalchemy import Engine, update
from sqlalchemy.orm import Session

from db import queue, stream
from db.models import Job, Status
from db.settings import Settings
from tests.db import rows
from tests.servers import Servers
from tests.workers.world import LEASE, MODEL, Sweeping
from workers import expiry as expiry_module
from workers import sweep as sweep_module
from workers.sweep import Sweep


@pytest.fixture
def world(engine: Engine, redis_client: redis.Redis, settings: Settings) -> Sweeping:
    return Sweeping(engine, redis_client, Sweep(engine, redis_client, settings))


# Rows without a message


def test_queue_is_rebuilt_in_order_after_redis_lost_all_its_data(
    world: Sweeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_module, "PAGE", 4)
    world.add_worker()
    now = world.now()
    job_ids = [world.add_job(ready_at=now - 100 + n) for n in range(11)]
    for job_id in job_ids:
        world.push(job_id)
    world.redis.flushall()
    assert world.round().num_restored == 11
    assert world.round().num_restored == 0
    assert world.pop_all() == job_ids


def test_rebuilt_queue_runs_nothing_twice(world: Sweeping) -> None:
    worker_id = world.add_worker()
    now = world.now()
    job_ids = [world.add_job(ready_at=now - 100 + n) for n in range(3)]
    world.claim(worker_id, job_ids[0])
    world.finish(worker_id, job_ids[0])
    world.claim(worker_id, job_ids[1])
    world.round()
    assert world.pop_all() == job_ids[2:]  # neither the ended nor the running one


def test_row_whose_message_was_lost_comes_before_what_is_younger(world: Sweeping) -> None:
    world.add_worker()
    now = world.now()
    older, lost, younger = (world.add_job(ready_at=now - age) for age in (30, 20, 10))
    world.push(younger)
    assert world.round().num_restored == 2
    assert world.pop_all() == [older, lost, younger]


def test_row_younger_than_the_margin_is_on_its_way_and_is_not_pushed_twice(world: Sweeping) -> None:
    world.add_worker()
    now = world.now()
    world.add_job(ready_at=now - 0.5)
    assert world.sweep.run(now).num_restored == 0
    in_flight, head = (world.add_job(ready_at=now - age, tier=2) for age in (101, 100))
    world.push(head)
    assert world.sweep.run(now).num_restored == 0
    assert world.pop_all() == [head]
    assert world.sweep.run(now).num_restored == 2
    assert world.pop_all() == [in_flight, head]  # popped, never claimed, and both still queued


def test_each_tier_is_repaired_in_its_own_list(world: Sweeping) -> None:
    world.add_worker()
    now = world.now()
    for tier in (0, 1, 2):
        world.add_job(ready_at=now - 50, tier=tier)
    assert world.round().num_restored == 3
    assert queue.depths(world.redis, MODEL) == {0: 1, 1: 1, 2: 1}


def test_parked_job_becomes_ready_when_its_keys_window_has_room(world: Sweeping, settings: Settings) -> None:
    now = world.now()
    sweep = Sweep(world.engine, world.redis, settings.model_copy(update={"key_window": 2}))
    ready = world.add_job(ready_at=now)
    parked = [world.add_job(ready_at=None) for _ in range(3)]
    other_key = world.add_job(ready_at=None, key_id=UUID(int=2))
    world.push(ready)
    assert sweep.run(world.now()).num_promoted == 2
    assert world.pop_all() == [ready, parked[0], other_key]
    assert sweep.run(world.now()).num_promoted == 0
    assert world.job(parked[1]).ready_at is None


# Messages without a row


def test_messages_of_expired_jobs_leave_their_list(world: Sweeping) -> None:
    world.add_worker()
    now = world.now()
    past = datetime.fromtimestamp(now - 1, UTC)
    job_ids = [world.add_job(ready_at=now - 10 + n, start_by=past if n % 2 else None) for n in range(5)]
    for job_id in job_ids:
        world.push(job_id)
    assert world.round().num_expired == 2
    assert world.pop_all() == job_ids[::2]


def test_messages_of_ended_jobs_that_nobody_pops_are_cleared_and_the_others_stay(world: Sweeping) -> None:
    world.add_worker(renewed_seconds_ago=LEASE + 1)  # the model's last worker is gone
    now = world.now()
    job_ids = [world.add_job(ready_at=now - 100 + n) for n in range(4)]
    for job_id in job_ids:
        world.push(job_id)
    with Session(world.engine) as session, session.begin():
        session.execute(update(Job).where(Job.id.in_(job_ids[1:3])).values(status=Status.CANCELLED))
    world.round()
    assert world.pop_all() == [job_ids[0], job_ids[3]]


def test_list_of_a_model_that_is_served_is_its_workers_business(world: Sweeping) -> None:
    world.add_worker()
    job_id = world.add_job(ready_at=world.now())
    for _ in range(2):
        world.push(job_id)
    world.round()
    assert world.pop_all() == [job_id, job_id]


# Limits and cancels


def test_queued_job_past_its_limit_ends_as_expired_with_an_event(world: Sweeping) -> None:
    now = world.now()
    past, ahead = (datetime.fromtimestamp(now + seconds, UTC) for seconds in (-1, 60))
    late = [
        world.add_job(ready_at=now - 10, start_by=past),
        world.add_job(ready_at=None, finish_by=past),
    ]
    early = world.add_job(ready_at=now - 10, start_by=ahead)
    assert world.round().num_expired == 2
    assert [world.job(job_id).status for job_id in late] == [Status.EXPIRED] * 2
    assert [world.events(job_id) for job_id in late] == [["job.expired"]] * 2
    assert world.job(early).status == Status.QUEUED


def test_every_overdue_row_is_ended_however_many_pages_there_are(
    world: Sweeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry_module, "PAGE", 2)
    now = world.now()
    past, ahead = (datetime.fromtimestamp(now + seconds, UTC) for seconds in (-1, 60))
    for n in range(10):
        world.add_job(ready_at=now - 10, finish_by=past if n % 2 else ahead, attempt=n % 3)
    assert world.round().num_expired == 5


def test_cancel_of_a_job_whose_worker_was_lost_keeps_what_was_delivered(world: Sweeping) -> None:
    world.warm_up()
    worker_id = world.add_worker(renewed_seconds_ago=LEASE + 1)
    job_id = world.add_job(ready_at=world.now() - 60)
    world.claim(worker_id, job_id)
    world.deliver(worker_id, job_id, 3)
    with Session(world.engine) as session, session.begin():
        session.execute(update(Job).values(cancel_requested_at=datetime.now(UTC)))
    assert world.round().num_expired == 1
    job = world.job(job_id)
    assert (job.status, job.num_output_tokens) == (Status.CANCELLED, 3)
    assert world.events(job_id) == ["job.cancelled"]
    assert stream.standings(world.redis, [job_id])[job_id].num_tokens == 3
    with pytest.raises(stream.StreamEnded):
        stream.open(world.redis, job_id, 2, worker_id)


# What cannot be done keeps nothing else from being done


def overdue(world: Sweeping, **fields: object) -> UUID:
    return world.add_job(ready_at=world.now() - 10, finish_by=datetime.fromtimestamp(world.now() - 1, UTC), **fields)


def test_job_that_cannot_be_ended_keeps_no_other_and_no_later_step_from_being_done(
    world: Sweeping, caplog: pytest.LogCaptureFixture
) -> None:
    world.add_worker()
    bad, good, never_ran = overdue(world, attempt=1), overdue(world, attempt=1), overdue(world)
    without_message, parked = world.add_job(ready_at=world.now() - 10), world.add_job(ready_at=None)
    world.redis.set(stream.key_of(bad), "no stream")
    for _ in range(3):
        world.round()
    assert [world.job(job_id).status for job_id in (bad, good, never_ran)] == ["queued", "expired", "expired"]
    assert world.job(parked).ready_at is not None
    assert without_message in world.pop_all()
    failures = [record for record in caplog.records if record.message == "an overdue job cannot be ended"]
    assert [vars(record)["item"] for record in failures] == [str(bad)]


def test_model_whose_list_is_broken_keeps_no_other_from_being_repaired(world: Sweeping) -> None:
    world.add_worker()
    with Session(world.engine) as session, session.begin():
        rows.add_worker(session, model="a")  # before "m"
    world.redis.set(queue.queue_name("a", 1), "no list")
    job_id = world.add_job(ready_at=world.now() - 10)
    assert world.round().num_restored == 1
    assert world.pop_all() == [job_id]


def test_redis_that_takes_no_writes_is_nobodys_fault_and_said_once(
    world: Sweeping, caplog: pytest.LogCaptureFixture
) -> None:
    world.add_worker()
    with Session(world.engine) as session, session.begin():
        rows.add_worker(session, model="a")
    job_id = world.add_job(ready_at=world.now() - 10)
    world.redis.replicaof("127.0.0.1", "1")  # of a master that is not there; a full disk refuses alike
    try:
        for _ in range(2):
            assert world.round().num_restored == 0
    finally:
        world.redis.replicaof("NO", "ONE")
    failures = [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
    assert [(record.levelname, vars(record).get("step")) for record in failures] == [("WARNING", "lost messages")]
    assert failures[0].exc_info is None
    assert world.round().num_restored == 1
    assert world.pop_all() == [job_id]


def test_while_redis_is_away_jobs_that_never_ran_expire_and_parked_ones_move_up(
    world: Sweeping, servers: Servers
) -> None:
    world.add_worker()
    never_ran, ran, parked = overdue(world), overdue(world, attempt=1), world.add_job(ready_at=None)
    servers.valkey.kill()
    try:
        world.round()
        assert [world.job(job_id).status for job_id in (never_ran, ran)] == ["expired", "queued"]
        assert world.job(parked).ready_at is not None
    finally:
        servers.valkey.start()
    assert world.round().num_expired == 1
    assert world.job(ran).status == "expired"


def test_while_redis_is_away_a_lost_workers_job_is_neither_charged_nor_given_away(
    world: Sweeping, servers: Servers
) -> None:
    world.warm_up()
    worker_id = world.add_worker(renewed_seconds_ago=LEASE + 1)
    job_id = world.add_job(ready_at=world.now() - 60)
    world.claim(worker_id, job_id)
    servers.valkey.kill()
    try:
        assert world.round().num_requeued == 0
    finally:
        servers.valkey.start()
    assert (world.job(job_id).status, world.job(job_id).crashes) == ("running", 0)
    assert world.round().num_requeued == 1
