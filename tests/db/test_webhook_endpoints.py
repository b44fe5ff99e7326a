"""Endpoints as their owners change them, and what that means for what is on its way."""

from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import UUID

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from db import jobs, webhook_endpoints, webhooks
from db.models import WebhookDelivery, WebhookEndpoint
from db.webhook_endpoints import MAX_ENDPOINTS, MAX_OLD_SECRETS, Changes, TooManyEndpoints, TooManySecrets
from db.webhooks import Due
from tests.db.rows import add_endpoint, add_job, end_of

ME = UUID(int=11)


@pytest.fixture
async def session(async_engine: AsyncEngine) -> AsyncIterator[AsyncSession]:
    async with AsyncSession(async_engine, expire_on_commit=False) as session:
        yield session


async def make(session: AsyncSession, url: str = "https://a.test/hook") -> WebhookEndpoint:
    return await webhook_endpoints.create(session, "t", name="n", url=url, event_types=["job.succeeded"])


async def lease(session: AsyncSession) -> list[Due]:
    return await session.run_sync(lambda s: webhooks.lease_due(s, limit=10, lease_seconds=60.0))


def add_event(session: Session) -> None:
    job = add_job(session)
    jobs.claim(session, ME, [job.id])
    jobs.finish(session, [end_of(job.id, ME)])


async def test_rotated_secret_signs_alone_unless_the_old_one_is_kept_for_a_day(session: AsyncSession) -> None:
    row = await make(session)
    first = row.secret
    await webhook_endpoints.rotate(session, "t", row.id, keeps_old=True)
    second = row.secret
    await webhook_endpoints.rotate(session, "t", row.id, keeps_old=True)
    await session.run_sync(add_event)
    [due] = await lease(session)
    assert due.secrets == [row.secret, second, first] and len(set(due.secrets)) == 3
    await webhook_endpoints.rotate(session, "t", row.id, keeps_old=False)
    await session.run_sync(add_event)
    [due] = await lease(session)
    assert due.secrets == [row.secret]


async def test_old_secret_stops_to_sign_when_its_day_is_over(
    session: AsyncSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook_endpoints, "OVERLAP", timedelta(0))
    row = await make(session)
    await webhook_endpoints.rotate(session, "t", row.id, keeps_old=True)
    await session.run_sync(add_event)
    [due] = await lease(session)
    assert due.secrets == [row.secret]
    await webhook_endpoints.rotate(session, "t", row.id, keeps_old=True)
    assert len(row.old_secrets) == 1  # the one before is not kept beyond its day


async def test_few_old_secrets_sign_at_once(session: AsyncSession) -> None:
    row = await make(session)
    for _ in range(MAX_OLD_SECRETS):
        await webhook_endpoints.rotate(session, "t", row.id, keeps_old=True)
    with pytest.raises(TooManySecrets):
        await webhook_endpoints.rotate(session, "t", row.id, keeps_old=True)


async def test_tenant_has_so_many_endpoints_at_most(session: AsyncSession) -> None:
    await session.run_sync(lambda s: add_endpoint(s))  # which signs per-job URLs and does not count
    for _ in range(MAX_ENDPOINTS):
        await make(session)
    with pytest.raises(TooManyEndpoints):
        await make(session)


async def test_what_is_on_its_way_follows_the_endpoint_to_its_new_url(session: AsyncSession) -> None:
    row = await make(session)
    await session.run_sync(add_event)
    await webhook_endpoints.change(session, "t", row.id, Changes(url="https://new.test/"))
    [due] = await lease(session)
    assert (due.url, due.host) == ("https://new.test/", "new.test")
    assert (await session.scalars(select(WebhookDelivery.url))).one() == "https://new.test/"


async def test_deliveries_to_a_deleted_endpoint_are_leased_to_be_ended_and_not_to_be_sent(
    session: AsyncSession,
) -> None:
    row = await make(session)
    await session.run_sync(add_event)
    assert await webhook_endpoints.delete(session, "other", row.id) is False
    assert await webhook_endpoints.delete(session, "t", row.id) is True
    [due] = await lease(session)
    assert (due.withheld, due.secrets) == ("the endpoint was deleted", [])


async def test_unchanged_update_does_not_advance_its_time(session: AsyncSession) -> None:
    row = await make(session)
    before = row.updated_at
    same = Changes(name="n", url="https://a.test/hook", event_types=["job.succeeded"])
    await webhook_endpoints.change(session, "t", row.id, same)
    assert row.updated_at == before
    await webhook_endpoints.change(session, "t", row.id, Changes(name="m"))
    assert row.updated_at > before


async def test_any_update_enables_what_failures_disabled_but_not_what_its_owner_did(session: AsyncSession) -> None:
    row = await make(session)
    row.disabled_at = row.failing_since = row.created_at
    row.disabled_reason = "every attempt has failed for 5 days"
    await session.flush()
    await webhook_endpoints.change(session, "t", row.id, Changes())
    assert (row.disabled_at, row.disabled_reason, row.failing_since) == (None, None, None)
    await webhook_endpoints.change(session, "t", row.id, Changes(is_disabled=True))
    await webhook_endpoints.change(session, "t", row.id, Changes(name="m"))
    assert row.disabled_at is not None and row.disabled_reason == "its owner disabled it"
    await webhook_endpoints.change(session, "t", row.id, Changes(is_disabled=False))
    assert row.disabled_at is None
