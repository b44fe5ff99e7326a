"""Which token streams nobody has closed, and whose jobs have ended: found by walking Redis, a piece at a time."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import redis
from sqlalchemy import select
from sqlalchemy.orm import Session

from db.models import ENDED, Job
from db.stream import ENDED_SECONDS, PREFIX

NAMES = PREFIX + 32 * "[0-9a-f]"  # as `db.stream.key_of` makes them


@dataclass(frozen=True)
class Piece:
    """The unclosed streams among some of Redis's keys; the walk goes on at `cursor`, which is 0 at its end."""

    cursor: int
    job_ids: list[UUID]


def walk(client: redis.Redis, cursor: int, num_keys: int) -> Piece:
    """Look at about so many keys from `cursor` on; 0 begins. Any stream that is there all along is met."""
    answer: Any = client.scan(cursor, match=NAMES, count=num_keys, _type="stream")
    cursor, keys = answer  # the keys as bytes: our clients decode nothing
    pipeline = client.pipeline(transaction=False)
    for key in keys:
        pipeline.ttl(key)
    # Closing a stream shortens its life, which tells without reading it. -2: it has just expired.
    unclosed = [key for key, ttl in zip(keys, pipeline.execute(), strict=True) if ttl == -1 or ttl > ENDED_SECONDS]
    return Piece(cursor, [UUID(hex=key.decode().removeprefix(PREFIX)) for key in unclosed])


def ended(session: Session, job_ids: Collection[UUID]) -> dict[UUID, int]:
    """How many output tokens those of the jobs have that have ended."""
    statement = select(Job.id, Job.num_output_tokens).where(Job.id.in_(job_ids), Job.status.in_(ENDED))
    return {job_id: num_tokens or 0 for job_id, num_tokens in session.execute(statement)}
