"""Webhook events: what is written when a job ends, for the tasks worker to deliver."""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import insert, select, text
from sqlalchemy.orm import Session

from db.ids import new_id, public_id
from db.models import Job, JobInput, WebhookDelivery, WebhookEndpoint
from db.settings import TIERS
from db.webhook_url import lane_host

INSERT_EVENTS = text("""
    INSERT INTO webhook_events (id, tenant, job_id, type, body)
    SELECT * FROM unnest(
        CAST(:id AS uuid[]), CAST(:tenant AS text[]), CAST(:job_id AS uuid[]), CAST(:type AS text[]),
        CAST(:body AS bytea[])
    )
""")


def write_events(session: Session, jobs: Sequence[Job]) -> None:
    """Insert one event for each of these ended jobs, and one delivery of it for each endpoint that wants it.

    An endpoint with a URL gets the tenant's events of its types; the one without signs a job's own `webhook_url`.
    """
    if not jobs:
        return
    columns = (JobInput.job_id, JobInput.webhook_url, JobInput.metadata_.label("metadata"))
    inputs = {
        row.job_id: row for row in session.execute(select(*columns).where(JobInput.job_id.in_([j.id for j in jobs])))
    }
    endpoints = session.scalars(
        select(WebhookEndpoint).where(
            WebhookEndpoint.tenant.in_({job.tenant for job in jobs}), WebhookEndpoint.disabled_at.is_(None)
        )
    ).all()
    events: dict[str, list[Any]] = {name: [] for name in ("id", "tenant", "job_id", "type", "body")}
    deliveries = []
    for job in jobs:
        event_id, row = new_id(), inputs[job.id]
        event_type = f"job.{job.status}"
        values = (event_id, job.tenant, job.id, event_type, _body(event_id, event_type, job, row.metadata))
        for column, value in zip(events.values(), values, strict=True):
            column.append(value)
        for endpoint in endpoints:
            url = row.webhook_url if endpoint.url is None else endpoint.url
            if endpoint.tenant == job.tenant and url is not None and _wants(endpoint, event_type):
                deliveries.append(_delivery(event_id, endpoint, job.id, url))
    session.execute(INSERT_EVENTS, events)
    if deliveries:
        session.execute(insert(WebhookDelivery), deliveries)


def _wants(endpoint: WebhookEndpoint, event_type: str) -> bool:
    return not endpoint.event_types or event_type in endpoint.event_types


def _delivery(event_id: UUID, endpoint: WebhookEndpoint, job_id: UUID, url: str) -> dict[str, Any]:
    return {
        "id": new_id(),
        "event_id": event_id,
        "endpoint_id": endpoint.id,
        "job_id": job_id,
        "url": url,
        "tenant": endpoint.tenant,
        "host": lane_host(url),
    }


def _body(event_id: UUID, event_type: str, job: Job, metadata: dict[str, Any]) -> bytes:
    """The event as it is sent, far below 20 kB: the job without its text, which the receiver can fetch."""
    error = None if job.error_code is None else {"code": job.error_code, "message": job.error_message}
    num_output_tokens = job.num_output_tokens or 0
    data = {
        "id": public_id("job_", job.id),
        "object": "job",
        "model": job.model,
        "status": job.status,
        "tier": TIERS[job.tier],
        "created_at": _rfc3339(job.created_at),
        "started_at": _rfc3339(job.started_at),
        "ended_at": _rfc3339(job.ended_at),
        "attempt": job.attempt,
        "finish_reason": job.finish_reason,
        "usage": {
            "prompt_tokens": job.num_prompt_tokens,
            "completion_tokens": num_output_tokens,
            "total_tokens": job.num_prompt_tokens + num_output_tokens,
            "cached_tokens": job.num_cached_tokens or 0,
        },
        "error": error,
        "metadata": metadata,
    }
    assert job.ended_at is not None, "events are written for ended jobs"
    event = {
        "id": public_id("evt_", event_id),
        "object": "event",
        "type": event_type,
        "created_at": int(job.ended_at.timestamp()),
        "data": data,
    }
    return json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode()


def _rfc3339(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat()
