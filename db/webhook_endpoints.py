"""Webhook endpoints as their owners manage them. Each function is asked within a transaction of the caller's."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import Select, func, select, text, update
from sqlalchemy import delete as delete_from
from sqlalchemy.ext.asyncio import AsyncSession

from db.ids import new_id
from db.models import WebhookDelivery, WebhookEndpoint
from db.webhook_secret import new_secret
from db.webhook_url import lane_host

MAX_ENDPOINTS = 100  # of a tenant: each event may go to all of them
MAX_OLD_SECRETS = 4  # that sign beside the newest
OVERLAP = timedelta(hours=24)
PAUSED_REASON = "its owner disabled it"


class TooManyEndpoints(Exception):
    """The tenant has as many endpoints as it may have."""


class TooManySecrets(Exception):
    """One more old secret would be kept than may sign; `free_at` is when one of them ends."""

    def __init__(self, free_at: datetime) -> None:
        super().__init__(free_at)
        self.free_at = free_at


@dataclass(frozen=True)
class Changes:
    """What an update says; None leaves a field as it is."""

    name: str | None = None
    url: str | None = None
    event_types: list[str] | None = None
    is_disabled: bool | None = None  # None: as it is if its owner disabled it, else enabled


async def create(
    session: AsyncSession, tenant: str, *, name: str, url: str, event_types: Sequence[str]
) -> WebhookEndpoint:
    """Insert an endpoint with a secret of its own. Raises TooManyEndpoints."""
    count = select(func.count()).where(WebhookEndpoint.tenant == tenant, WebhookEndpoint.url.is_not(None))
    if (await session.scalar(count) or 0) >= MAX_ENDPOINTS:
        raise TooManyEndpoints
    now = await _now(session)
    row = WebhookEndpoint(
        id=new_id(),
        tenant=tenant,
        name=name,
        url=url,
        host=lane_host(url),
        secret=new_secret(),
        old_secrets=[],
        event_types=list(event_types),
        created_at=now,
        updated_at=now,
    )
    session.add(row)
    await session.flush()
    return row


async def get(
    session: AsyncSession, tenant: str, endpoint_id: UUID, *, for_update: bool = False
) -> WebhookEndpoint | None:
    """The tenant's endpoint; its row stays the caller's until the transaction ends with `for_update`."""
    statement = select(WebhookEndpoint).where(
        WebhookEndpoint.id == endpoint_id, WebhookEndpoint.tenant == tenant, WebhookEndpoint.url.is_not(None)
    )
    row: WebhookEndpoint | None = await session.scalar(statement.with_for_update() if for_update else statement)
    return row


async def page(session: AsyncSession, tenant: str, *, after: UUID | None, limit: int) -> list[WebhookEndpoint]:
    """The tenant's endpoints from after the endpoint `after` on, the newest first."""
    statement = select(WebhookEndpoint).where(WebhookEndpoint.tenant == tenant, WebhookEndpoint.url.is_not(None))
    if after is not None:
        statement = statement.where(WebhookEndpoint.id < after)
    return list(await session.scalars(statement.order_by(WebhookEndpoint.id.desc()).limit(limit)))


async def change(session: AsyncSession, tenant: str, endpoint_id: UUID, changes: Changes) -> WebhookEndpoint | None:
    """Change the endpoint; None when there is none.

    One that was disabled for its failures is enabled by every change that does not say otherwise. What is on its way
    to it goes to the new URL.
    """
    row = await get(session, tenant, endpoint_id, for_update=True)
    if row is None:
        return None
    now = await _now(session)
    row.name = row.name if changes.name is None else changes.name
    row.event_types = row.event_types if changes.event_types is None else changes.event_types
    is_moved = changes.url is not None and changes.url != row.url
    if changes.url is not None and is_moved:
        row.url, row.host, row.failing_since = changes.url, lane_host(changes.url), None
    _switch(row, changes.is_disabled, now)
    if session.is_modified(row):
        row.updated_at = now
    await session.flush()
    if is_moved:
        await _redirect(session, row)
    return row


async def delete(session: AsyncSession, tenant: str, endpoint_id: UUID) -> bool:
    """Delete the endpoint; False when there is none. What is on its way to it ends unsent when it is due."""
    deleted = await session.scalar(
        delete_from(WebhookEndpoint)
        .where(WebhookEndpoint.id == endpoint_id, WebhookEndpoint.tenant == tenant, WebhookEndpoint.url.is_not(None))
        .returning(WebhookEndpoint.id)
    )
    return deleted is not None


async def rotate(session: AsyncSession, tenant: str, endpoint_id: UUID, *, keeps_old: bool) -> WebhookEndpoint | None:
    """Draw a new secret; None when there is no such endpoint. Raises TooManySecrets.

    With `keeps_old` the old ones go on signing, each until its own time; without, none of them does.
    """
    row = await get(session, tenant, endpoint_id, for_update=True)
    if row is not None:
        await _rotate(session, row, keeps_old=keeps_old)
    return row


async def of_jobs(session: AsyncSession, tenant: str) -> WebhookEndpoint:
    """The row that signs what goes to the `webhook_url` of the tenant's jobs; it came with the tenant's first key."""
    return (await session.scalars(_of_jobs(tenant))).one()


async def rotate_of_jobs(session: AsyncSession, tenant: str, *, keeps_old: bool) -> WebhookEndpoint:
    """Draw a new secret there, as `rotate` does. Raises TooManySecrets."""
    row = (await session.scalars(_of_jobs(tenant).with_for_update())).one()
    await _rotate(session, row, keeps_old=keeps_old)
    return row


def _of_jobs(tenant: str) -> Select[tuple[WebhookEndpoint]]:
    return select(WebhookEndpoint).where(WebhookEndpoint.tenant == tenant, WebhookEndpoint.url.is_(None))


async def _rotate(session: AsyncSession, row: WebhookEndpoint, *, keeps_old: bool) -> None:
    now = await _now(session)
    old = [kept for kept in row.old_secrets if datetime.fromisoformat(kept["until"]) > now] if keeps_old else []
    if len(old) >= MAX_OLD_SECRETS:
        raise TooManySecrets(min(datetime.fromisoformat(kept["until"]) for kept in old))
    if keeps_old:
        old = [{"secret": row.secret, "until": (now + OVERLAP).isoformat()}, *old]
    row.secret, row.old_secrets, row.updated_at = new_secret(), old, now
    await session.flush()


def _switch(row: WebhookEndpoint, is_disabled: bool | None, now: datetime) -> None:
    """Disable or enable, as was said or as follows from saying nothing."""
    if is_disabled is None:
        is_disabled = row.disabled_reason == PAUSED_REASON
    if not is_disabled and row.disabled_at is not None:
        row.disabled_at = row.disabled_reason = row.failing_since = None
    elif is_disabled and row.disabled_at is None:
        row.disabled_at, row.disabled_reason = now, PAUSED_REASON


async def _redirect(session: AsyncSession, endpoint: WebhookEndpoint) -> None:
    await session.execute(
        update(WebhookDelivery)
        .where(WebhookDelivery.endpoint_id == endpoint.id, WebhookDelivery.status == text("'pending'"))
        .values(url=endpoint.url, host=endpoint.host)
        .execution_options(synchronize_session=False)
    )


async def _now(session: AsyncSession) -> datetime:
    now: datetime = (await session.execute(select(func.clock_timestamp()))).scalar_one()
    return now
