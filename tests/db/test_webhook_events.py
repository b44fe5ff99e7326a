"""What is told of an end: its type, its body, and to whom."""

import json
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from db import jobs
from db.events import write_batch_event
from db.ids import new_id
from db.models import Batch, Job, Status, WebhookDelivery, WebhookEvent
from tests.db.rows import add_endpoint, add_job, end_of, in_seconds

ME = UUID(int=11)


def ended_response(session: Session, **end: Any) -> Job:
    job = add_job(session, kind="response", webhook_url="https://own.test/")
    jobs.claim(session, ME, [job.id])
    jobs.finish(session, [end_of(job.id, ME, **end)])
    return job


def add_batch(session: Session, status: str) -> UUID:
    batch_id = new_id()
    session.add(
        Batch(
            id=batch_id,
            tenant="t",
            key_id=UUID(int=1),
            endpoint="/v1/completions",
            input_file_id=new_id(),
            output_file_id=new_id(),
            error_file_id=new_id(),
            output_expires_after=3600,
            completion_window="24h",
            status=status,
            metadata_={},
            expires_at=in_seconds(3600),
        )
    )
    session.flush()
    return batch_id


@pytest.mark.parametrize(
    ("status", "finish_reason", "event_type"),
    [
        (Status.SUCCEEDED, "stop", "response.completed"),
        (Status.SUCCEEDED, "length", "response.incomplete"),
        (Status.FAILED, None, "response.failed"),
        (Status.CANCELLED, None, "response.cancelled"),
        (Status.EXPIRED, None, "response.failed"),
        (Status.DEAD, None, "response.failed"),
    ],
)
def test_end_of_a_response_is_told_in_openais_words_and_thinly(
    session: Session, status: Status, finish_reason: str | None, event_type: str
) -> None:
    job = ended_response(session, status=status, finish_reason=finish_reason)
    event = session.scalars(select(WebhookEvent)).one()
    body = json.loads(event.body)
    assert event.type == event_type
    assert body == {
        "id": f"evt_{event.id.hex}",
        "object": "event",
        "type": event_type,
        "created_at": body["created_at"],
        "data": {"id": f"resp_{job.id.hex}"},
    }
    assert isinstance(body["created_at"], int)


def test_response_goes_to_its_own_url_and_to_the_endpoints_that_name_its_type(session: Session) -> None:
    signer = add_endpoint(session)
    wanting = add_endpoint(session, url="https://a.test/", event_types=["response.completed"])
    add_endpoint(session, url="https://b.test/", event_types=["response.failed", "job.succeeded"])
    ended_response(session)
    assert set(session.scalars(select(WebhookDelivery.endpoint_id))) == {signer.id, wanting.id}


@pytest.mark.parametrize("status", ["completed", "failed", "expired", "cancelled"])
def test_batch_that_ended_is_told_to_the_endpoints_that_name_its_type(session: Session, status: str) -> None:
    add_endpoint(session)
    wanting = add_endpoint(session, url="https://a.test/", event_types=[f"batch.{status}"])
    add_endpoint(session, url="https://b.test/", event_types=["response.completed"])
    batch_id = add_batch(session, status)
    write_batch_event(session, batch_id)
    event = session.scalars(select(WebhookEvent)).one()
    body = json.loads(event.body)
    assert (event.type, event.job_id, body["type"]) == (f"batch.{status}", None, f"batch.{status}")
    assert body["data"] == {"id": f"batch_{batch_id.hex}"}
    assert list(session.scalars(select(WebhookDelivery.endpoint_id))) == [wanting.id]


def test_delivery_has_an_id_of_its_events_time(session: Session) -> None:
    add_endpoint(session)
    add_endpoint(session, url="https://a.test/")
    ended_response(session)
    rows = session.execute(select(WebhookDelivery.id, WebhookDelivery.event_id)).all()
    assert len({delivery_id for delivery_id, _ in rows}) == 2
    for delivery_id, event_id in rows:
        assert delivery_id.int >> 64 == event_id.int >> 64 and delivery_id != event_id
        assert delivery_id.version == 7
