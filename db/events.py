"""Webhook events: what is written when something ends, for the tasks worker to deliver. All of it is SQL.

A job ends in one statement, and this is the part of it that tells: it never waits for a second round trip.
"""

from collections.abc import Collection
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.orm import Session

from db.event_types import TYPE_OF_JOB
from db.ids import new_id
from db.settings import TIERS

# Events as they are sent, far below 20 kB. A job's own says all but its text, which the receiver can fetch.
HEAD = """
    'id', 'evt_' || replace(event_id::text, '-', ''),
    'object', 'event',
    'type', event_type,
    'created_at', floor(extract(epoch FROM ended_at))::bigint
"""
THIN_BODY = f"json_build_object({HEAD}, 'data', json_build_object('id', 'resp_' || replace(id::text, '-', '')))"
JOB_BODY = f"""
    json_build_object({HEAD},
        'data', json_build_object(
            'id', 'job_' || replace(id::text, '-', ''),
            'object', 'job',
            'model', model,
            'status', status,
            'tier', (ARRAY[{", ".join(f"'{name}'" for name in TIERS)}])[tier + 1],
            'created_at', created_at,
            'started_at', started_at,
            'ended_at', ended_at,
            'attempt', attempt,
            'finish_reason', finish_reason,
            'usage', json_build_object(
                'prompt_tokens', num_prompt_tokens,
                'completion_tokens', coalesce(num_output_tokens, 0),
                'total_tokens', num_prompt_tokens + coalesce(num_output_tokens, 0),
                'cached_tokens', coalesce(num_cached_tokens, 0)
            ),
            'error', CASE WHEN error_code IS NOT NULL
                THEN json_build_object('code', error_code, 'message', error_message) END,
            'metadata', metadata
        )
    )
"""
BODY = f"CASE WHEN kind = 'response' THEN {THIN_BODY} ELSE {JOB_BODY} END"
# A delivery's id: the time of its event, so that ids are in order and age with it, and randomness of its own.
DELIVERY_ID = "(left({event_id}::text, 18) || substr(gen_random_uuid()::text, 19))::uuid"
# Parts of a WITH that has `ended`, rows of `jobs` as they ended: one event for each, and a delivery of it for each
# endpoint that wants it. One with a URL gets the tenant's events of its types; the one without signs a job's own
# `webhook_url`. A line of a batch tells nobody, unless it names a `webhook_url` itself. There is a new id for each
# row, as not every PostgreSQL makes ids that are in order.
EVENTS = f"""
    numbered AS (
        SELECT ended.*, {TYPE_OF_JOB} AS event_type, webhook_url, webhook_host, metadata, row_number() OVER () AS number
        FROM ended JOIN job_inputs ON job_id = id
        WHERE job_id = ANY(CAST(:job_id AS uuid[])) AND (batch_id IS NULL OR webhook_url IS NOT NULL)
    ), told AS (
        SELECT * FROM numbered JOIN unnest(CAST(:event_ids AS uuid[])) WITH ORDINALITY AS new(event_id, number)
        USING (number)
    ), event AS (
        INSERT INTO webhook_events (id, tenant, job_id, type, body)
        SELECT event_id, tenant, id, event_type, convert_to({BODY}::text, 'UTF8') FROM told
    ), delivery AS (
        INSERT INTO webhook_deliveries (id, event_id, endpoint_id, job_id, url, tenant, host)
        SELECT
            {DELIVERY_ID.format(event_id="event_id")}, event_id, endpoint.id, told.id,
            coalesce(endpoint.url, webhook_url), told.tenant,
            coalesce(CASE WHEN endpoint.url IS NULL THEN webhook_host ELSE endpoint.host END, '')
        FROM told JOIN webhook_endpoints AS endpoint USING (tenant)
        WHERE endpoint.disabled_at IS NULL AND coalesce(endpoint.url, webhook_url) IS NOT NULL
          AND (cardinality(event_types) = 0 OR event_type = ANY(event_types))
    )
"""
WRITE = text(f"WITH ended AS (SELECT * FROM jobs WHERE id = ANY(CAST(:job_id AS uuid[]))), {EVENTS} SELECT 1")
WRITE_BATCH = text(f"""
    WITH told AS (
        SELECT CAST(:event_id AS uuid) AS event_id, id, tenant, 'batch.' || status AS event_type,
            statement_timestamp() AS ended_at
        FROM batches WHERE id = :batch_id
    ), event AS (
        INSERT INTO webhook_events (id, tenant, job_id, type, body)
        SELECT event_id, tenant, NULL, event_type, convert_to(json_build_object(
            {HEAD}, 'data', json_build_object('id', 'batch_' || replace(id::text, '-', ''))
        )::text, 'UTF8') FROM told
    )
    INSERT INTO webhook_deliveries (id, event_id, endpoint_id, job_id, url, tenant, host)
    SELECT {DELIVERY_ID.format(event_id="event_id")}, event_id, endpoint.id, NULL, endpoint.url, told.tenant,
        coalesce(endpoint.host, '')
    FROM told JOIN webhook_endpoints AS endpoint USING (tenant)
    WHERE endpoint.disabled_at IS NULL AND endpoint.url IS NOT NULL
      AND (cardinality(event_types) = 0 OR event_type = ANY(event_types))
""")


def event_ids(job_ids: Collection[UUID]) -> list[UUID]:
    """What `EVENTS` needs beside `job_id`."""
    return [new_id() for _ in job_ids]


def write_events(session: Session, job_ids: Collection[UUID]) -> None:
    """Insert the events, and their deliveries, of jobs that have just ended."""
    session.execute(WRITE, {"job_id": list(job_ids), "event_ids": event_ids(job_ids)})


def write_batch_event(session: Session, batch_id: UUID) -> None:
    """Insert the event of a batch that has just ended: its status, which the row has by now, is the event's type."""
    session.execute(WRITE_BATCH, {"batch_id": batch_id, "event_id": new_id()})
