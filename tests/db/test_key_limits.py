"""A key's own limits and those of the settings, and which of its jobs count as unfinished."""

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from db.key_limits import KeyLimits, limits_of, num_unfinished
from db.keys import create_key, key_row
from db.models import Status
from tests.db.rows import KEY, add_job


@pytest.mark.parametrize(
    ("own", "default", "holds"), [(None, None, None), (None, 5, 5), (9, 5, 9), (9, None, 9), (0, 5, 0)]
)
def test_a_keys_own_limit_goes_before_the_settings_and_nought_is_any_number(
    session: Session, settings, own: int | None, default: int | None, holds: int | None
) -> None:
    limits = KeyLimits(requests_per_minute=own)
    row = key_row(session, create_key(session, tenant="t", name="n", scopes=["*"], limits=limits))
    found = limits_of(row, settings.model_copy(update={"requests_per_minute": default}))
    assert found == KeyLimits(requests_per_minute=holds)
    assert found.has_rates == bool(holds)


async def test_jobs_that_wait_stand_behind_or_run_are_counted_but_no_lines_of_batches_and_no_others(
    async_engine: AsyncEngine,
) -> None:
    async with AsyncSession(async_engine) as session:
        await session.run_sync(add_job)
        await session.run_sync(lambda sync: add_job(sync, parked=True))
        await session.run_sync(lambda sync: add_job(sync, status=Status.RUNNING))
        for status in (Status.SUCCEEDED, Status.FAILED, Status.CANCELLED, Status.EXPIRED, Status.DEAD):
            await session.run_sync(lambda sync, status=status: add_job(sync, status=status))
        for fields in ({}, {"parked": True}, {"status": Status.RUNNING}):
            await session.run_sync(lambda sync, fields=fields: add_job(sync, batch_id=KEY, **fields))
        assert await num_unfinished(session, KEY, most=10) == 3
        assert await num_unfinished(session, KEY, most=1) >= 1
