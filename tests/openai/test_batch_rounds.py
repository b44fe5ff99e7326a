"""What a round of the batches looks at, and what comes of one that knows less than has happened since it began."""

from datetime import timedelta

import pytest
from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from api.batches.steps import advance, finish
from db import batches, jobs
from db.batches import Open
from db.ids import parse_id, public_id
from db.models import Batch, BatchLine, Job
from tests.openai.batch_world import BatchWorld, request


async def opens(world: BatchWorld) -> list[Open]:
    async with world.services.autocommit() as session:
        return await batches.open_batches(session)


async def looked_at(world: BatchWorld) -> list[str]:
    """The ids of the batches that a round would advance."""
    return [public_id("batch_", each.batch.id) for each in await opens(world)]


async def test_what_is_to_end_is_looked_at_before_what_is_older(sdk, world, monkeypatch) -> None:
    _, _, due, cancelled = [await world.create([request("a")]) for _ in range(4)]
    await sdk.batches.cancel(cancelled)
    with Session(world.engine) as session, session.begin():
        is_it = Batch.id == parse_id("batch_", due)
        session.execute(update(Batch).where(is_it).values(expires_at=func.clock_timestamp()))
    monkeypatch.setattr("db.batches.MOST_OPEN", 2)
    assert sorted(await looked_at(world)) == sorted([due, cancelled])


async def test_the_many_batches_of_one_tenant_keep_no_other_from_being_looked_at(sdk, world, keys, monkeypatch) -> None:
    first, *_ = [await world.create([request("a")]) for _ in range(3)]
    other = BatchWorld(world.services, world.engine, sdk.with_options(api_key=keys[1]), world.worker)
    theirs = await other.create([request("a")])
    monkeypatch.setattr("db.batches.MOST_OPEN", 2)
    assert await looked_at(world) == [first, theirs]


@pytest.mark.parametrize("is_due", [True, False])
async def test_a_line_that_the_window_ended_says_so_and_one_that_ended_by_its_own_limit_says_that(
    sdk, world, is_due
) -> None:
    """Also when the round that finds their jobs expired began before the window's end, and knows nothing of it."""
    batch_id = await world.begin([request("the window's"), request("its own")])
    with Session(world.engine) as session, session.begin():
        passed = func.clock_timestamp() - timedelta(minutes=1)
        (due,) = session.scalars(update(Batch).values(expires_at=passed).returning(Batch.expires_at))
        session.execute(update(Job).values(finish_by=due))
        own = select(BatchLine.job_id).where(BatchLine.custom_id == "its own").scalar_subquery()
        session.execute(update(Job).where(Job.id == own).values(start_by=due))
    with Session(world.engine) as session, session.begin():  # as the sweep does
        assert len(jobs.expire_due(session, jobs.due(session, has_run=False, after=None, limit=10))) == 2
    [seen] = await opens(world)
    await advance(world.services, Open(seen.batch, is_due))
    batch = await sdk.batches.retrieve(batch_id)
    assert (batch.status, batch.request_counts.failed) == ("expired", 2)
    written = await world.content(batch.error_file_id)
    errors = {line["custom_id"]: line["error"] or line["response"]["body"]["error"] for line in written}
    codes = {custom_id: error["code"] for custom_id, error in errors.items()}
    assert codes == {"the window's": "batch_expired", "its own": "start_by_passed"}


async def test_a_writer_that_was_frozen_leaves_the_file_of_a_batch_that_has_ended_since(
    sdk, world, monkeypatch
) -> None:
    batch_id = await world.begin([request(str(i)) for i in range(3)])
    world.run_jobs()
    with monkeypatch.context() as patch:
        patch.setattr("db.batches.end", _die)
        await world.rounds()
    async with world.services.sessions() as session:
        known = await batches.finalize(session, parse_id("batch_", batch_id))
    batch = await world.run_to_end(batch_id)
    with Session(world.engine) as session, session.begin():  # as the retention does
        session.execute(delete(BatchLine))

    async def finalize(*_: object) -> Batch | None:
        return known

    monkeypatch.setattr("db.batches.finalize", finalize)
    with pytest.raises(OSError, match="0 lines left of 3"):
        await finish(world.services, known)
    assert len(await world.content(batch.output_file_id)) == 3


async def _die(*_: object) -> None:
    raise OSError("killed")
