"""Jobs: submitted once, parked beyond their key's window, made ready in order, cancelled, deleted."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Select, delete, func, select
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from db import jobs
from db.ids import new_id
from db.jobs import IdempotencyMismatch, JobNotEnded, Ready
from db.models import IdempotencyKey, Job, JobInput, JobOutput, Status, WebhookEvent
from db.stream import Token
from tests.db.rows import KEY, add_job, new_job, now, tokens


@pytest.fixture
async def async_session(async_engine: AsyncEngine) -> AsyncIterator[AsyncSession]:
    async with AsyncSession(async_engine, expire_on_commit=False) as session:
        yield session


async def test_submit_answers_what_the_queue_message_says(async_session: AsyncSession) -> None:
    created = await jobs.create(async_session, new_job(tier=2, num_blocks=5), key_window=64)
    assert created.is_new and created.ready is not None
    assert created.job.status == Status.QUEUED and created.job.attempt == 0 and created.job.num_prompt_tokens == 3
    assert (created.ready.job_id, created.ready.model, created.ready.tier) == (created.job.id, "m", 2)
    assert created.ready.num_blocks == 5
    assert created.job.ready_at is not None and created.ready.ready_at == created.job.ready_at.timestamp()


async def test_seed_is_drawn_when_none_is_given_and_kept_when_one_is(async_session: AsyncSession) -> None:
    drawn = [(await jobs.create(async_session, new_job(), key_window=64)).job.seed for _ in range(3)]
    assert len(set(drawn)) == 3 and all(0 <= seed < 2**63 for seed in drawn)
    assert (await jobs.create(async_session, new_job(seed=-5), key_window=64)).job.seed == -5


async def test_repeated_submit_returns_the_job_of_the_first(async_session: AsyncSession) -> None:
    new = new_job(idempotency_key="k", body_digest=b"same")
    first = await jobs.create(async_session, new, key_window=64)
    again = await jobs.create(async_session, new, key_window=64)
    assert again.job.id == first.job.id
    assert not again.is_new and again.ready is None
    assert await async_session.scalar(select(func.count()).select_from(Job)) == 1


async def test_same_idempotency_key_with_another_body_is_refused(async_session: AsyncSession) -> None:
    await jobs.create(async_session, new_job(idempotency_key="k", body_digest=b"one"), key_window=64)
    with pytest.raises(IdempotencyMismatch, match="another body"):
        await jobs.create(async_session, new_job(idempotency_key="k", body_digest=b"two"), key_window=64)


async def test_idempotency_keys_of_two_tenants_do_not_meet(async_session: AsyncSession) -> None:
    first = await jobs.create(async_session, new_job(idempotency_key="k", body_digest=b"one"), key_window=64)
    other = await jobs.create(
        async_session, new_job(tenant="u", idempotency_key="k", body_digest=b"two"), key_window=64
    )
    assert other.is_new and other.job.id != first.job.id


async def test_of_many_copies_at_once_one_makes_the_job(async_engine: AsyncEngine) -> None:
    async def submit() -> jobs.Created:
        async with AsyncSession(async_engine, expire_on_commit=False) as session, session.begin():
            return await jobs.create(session, new_job(idempotency_key="k", body_digest=b"b"), key_window=64)

    created = await asyncio.gather(*(submit() for _ in range(8)))
    assert sum(each.is_new for each in created) == 1
    assert len({each.job.id for each in created}) == 1


async def test_jobs_beyond_their_keys_window_are_parked(async_session: AsyncSession) -> None:
    created = [await jobs.create(async_session, new_job(), key_window=2) for _ in range(4)]
    assert [each.ready is not None for each in created] == [True, True, False, False]
    other_key = await jobs.create(async_session, new_job(key_id=UUID(int=2)), key_window=2)
    other_tier = await jobs.create(async_session, new_job(tier=0), key_window=2)
    assert other_key.ready is not None and other_tier.ready is not None


async def test_job_is_parked_behind_parked_ones_even_when_the_window_has_room(async_session: AsyncSession) -> None:
    await async_session.run_sync(lambda session: add_job(session, parked=True))
    assert (await jobs.create(async_session, new_job(), key_window=2)).ready is None


def test_parked_jobs_become_ready_oldest_first_as_far_as_the_window_allows(session: Session) -> None:
    add_job(session)
    parked = [add_job(session, parked=True).id for _ in range(4)]
    ready = jobs.promote(session, [KEY], key_window=3)
    assert [each.job_id for each in ready] == parked[:2]
    assert ready[0].ready_at < ready[1].ready_at
    assert jobs.promote(session, [KEY], key_window=3) == []
    assert [each.job_id for each in jobs.promote(session, None, key_window=10)] == parked[2:]


async def test_a_keys_many_jobs_do_not_bury_anothers_one(async_session: AsyncSession) -> None:
    crowd = [await jobs.create(async_session, new_job(), key_window=2) for _ in range(9)]
    alone = await jobs.create(async_session, new_job(key_id=UUID(int=2)), key_window=2)
    order = [each.ready for each in (*crowd, alone) if each.ready is not None]
    for _ in range(3):  # the head starts, and the crowd's next one moves up behind whoever is ready by then
        await async_session.run_sync(jobs.claim, new_id(), [order.pop(0).job_id])
        order += await async_session.run_sync(lambda session: jobs.promote(session, [KEY], key_window=2))
        assert order == sorted(order, key=lambda ready: ready.ready_at)
        if all(ready.job_id != alone.job.id for ready in order):
            return
    pytest.fail("three jobs of the crowd went first")


def test_each_key_and_tier_has_a_window_of_its_own(session: Session) -> None:
    one, two = UUID(int=1), UUID(int=2)
    for key_id, tier in ((one, 1), (one, 1), (one, 2), (two, 1)):
        add_job(session, parked=True, key_id=key_id, tier=tier)
    ready = jobs.promote(session, None, key_window=1)
    assert sorted(each.tier for each in ready) == [1, 1, 2]
    assert jobs.promote(session, [UUID(int=3)], key_window=9) == []


def test_unqueued_pages_go_from_the_newest_back_and_stay_in_order(session: Session) -> None:
    ids = [add_job(session, age=50 - index).id for index in range(5)]
    add_job(session, parked=True)
    add_job(session, tier=2)
    page = jobs.unqueued(session, "m", 1, older_than=None, limit=2)
    assert [each.job_id for each in page] == ids[3:]
    page = jobs.unqueued(session, "m", 1, older_than=page[0].ready_at, limit=2)
    assert [each.job_id for each in page] == ids[1:3]
    page = jobs.unqueued(session, "m", 1, older_than=page[0].ready_at, limit=2)
    assert [each.job_id for each in page] == ids[:1]


async def _add(session: AsyncSession, **fields: object) -> UUID:
    return await session.run_sync(lambda sync: add_job(sync, **fields).id)


async def test_cancel_of_a_job_that_never_ran_ends_it_with_an_event(async_session: AsyncSession) -> None:
    job_id = await _add(async_session)
    result = await jobs.request_cancel(async_session, "t", job_id)
    assert result is not None and result.ended and result.job.status == Status.CANCELLED
    assert result.unqueue == Ready.of(result.job)
    assert await async_session.scalar(select(WebhookEvent.type)) == "job.cancelled"


async def test_cancel_of_a_running_job_names_its_worker_and_is_seen_by_it(async_session: AsyncSession) -> None:
    worker_id = new_id()
    job_id = await _add(async_session)
    await async_session.run_sync(jobs.claim, worker_id, [job_id])
    result = await jobs.request_cancel(async_session, "t", job_id)
    assert result is not None and not result.ended and result.worker_id == worker_id
    assert [held.is_cancelled for held in await async_session.run_sync(jobs.held, worker_id)] == [True]


async def test_cancel_twice_and_cancel_of_an_ended_job_change_nothing(async_session: AsyncSession) -> None:
    job_id = await _add(async_session)
    first = await jobs.request_cancel(async_session, "t", job_id)
    again = await jobs.request_cancel(async_session, "t", job_id)
    assert first is not None and again is not None
    assert again.ended and again.job.ended_at == first.job.ended_at
    assert await async_session.scalar(select(func.count()).select_from(WebhookEvent)) == 1


async def test_cancelled_job_that_was_handed_back_is_not_claimed_again_and_ends(async_session: AsyncSession) -> None:
    worker_id = new_id()
    job_id = await _add(async_session)
    await async_session.run_sync(jobs.claim, worker_id, [job_id])
    await async_session.run_sync(jobs.release, worker_id, [(job_id, 1)])
    result = await jobs.request_cancel(async_session, "t", job_id)
    assert result is not None and not result.ended and result.worker_id is None  # it may have delivered tokens
    assert await async_session.run_sync(jobs.claim, worker_id, [job_id]) == []
    ended = await async_session.run_sync(lambda sync: jobs.expire_due(sync, [job_id], read_tokens=lambda _: tokens(2)))
    assert [each.job_id for each in ended] == [job_id]
    job = await async_session.get_one(Job, job_id)
    assert (job.status, job.num_output_tokens, job.error_code) == (Status.CANCELLED, 2, None)


async def test_another_tenants_job_cannot_be_cancelled_or_deleted(async_session: AsyncSession) -> None:
    job_id = await _add(async_session)
    assert await jobs.request_cancel(async_session, "u", job_id) is None
    assert await jobs.delete(async_session, "u", job_id) is False


async def test_key_whose_job_was_deleted_in_between_or_went_with_its_day_is_as_good_as_new(
    async_engine: AsyncEngine, async_session: AsyncSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = new_job(idempotency_key="k", body_digest=b"b")
    first = await jobs.create(async_session, new, key_window=64)
    await async_session.commit()
    tables = iter((IdempotencyKey, Job))
    ask = AsyncSession.scalar

    async def scalar(self: AsyncSession, statement: Any, *args: Any, **kwargs: Any) -> Any:
        """Somebody deletes a row and commits just before it is read."""
        table = next(tables, None) if isinstance(statement, Select) else None
        if table is not None:
            async with AsyncSession(async_engine) as other, other.begin():
                await other.execute(delete(table))
        return await ask(self, statement, *args, **kwargs)

    monkeypatch.setattr(AsyncSession, "scalar", scalar)
    second = await jobs.create(async_session, new, key_window=64)
    await async_session.commit()
    assert second.is_new and second.job.id != first.job.id
    tables = iter((None, Job))
    third = await jobs.create(async_session, new_job(idempotency_key="k", body_digest=b"other"), key_window=64)
    assert third.is_new
    assert await async_session.scalar(select(IdempotencyKey.job_id)) == third.job.id


async def end_now(session: AsyncSession, job_id: UUID, delivered: list[Token] | None) -> Job | None:
    async def read_tokens(job: Job) -> list[Token] | None:
        return delivered

    return await jobs.end_now(session, job_id, status=Status.CANCELLED, read_tokens=read_tokens)


async def test_job_ended_without_its_worker_keeps_what_was_delivered(async_session: AsyncSession) -> None:
    worker_id = new_id()
    job_id = await _add(async_session)
    await async_session.run_sync(jobs.claim, worker_id, [job_id])
    assert await end_now(async_session, job_id, None) is None  # its worker may have more than can be told now
    job = await end_now(async_session, job_id, tokens(3))
    assert job is not None and job.num_output_tokens == 3
    output = (await async_session.scalars(select(JobOutput))).one()
    assert (output.text, output.token_ids, output.text_offsets) == ("abc", [100, 101, 102], [1, 2, 3])
    assert output.logprobs is None
    assert await end_now(async_session, job_id, []) is None


async def test_only_an_ended_job_can_be_deleted_and_then_nothing_of_it_is_left(async_session: AsyncSession) -> None:
    new = new_job(idempotency_key="k", body_digest=b"b")
    job_id = (await jobs.create(async_session, new, key_window=64)).job.id
    with pytest.raises(JobNotEnded, match="queued"):
        await jobs.delete(async_session, "t", job_id)
    await end_now(async_session, job_id, tokens(1))
    assert await jobs.delete(async_session, "t", job_id) is True
    for table in (Job, JobInput, JobOutput, IdempotencyKey):
        assert await async_session.scalar(select(func.count()).select_from(table)) == 0
    assert (await jobs.create(async_session, new, key_window=64)).is_new


async def test_job_without_a_day_of_its_own_is_accepted(async_session: AsyncSession) -> None:
    def count_in_default(sync: Session) -> int:
        from sqlalchemy import text

        add_job(sync, id=new_id(now(sync).timestamp() + 400 * 24 * 3600))
        return sync.execute(text("SELECT count(*) FROM jobs_default")).scalar_one()

    assert await async_session.run_sync(count_in_default) == 1
