"""Which jobs are wanted: what lists and replays by filter have in common."""

from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import ColumnElement, exists, select, text
from sqlalchemy.orm import aliased

from db.models import Job, JobInput, Status


@dataclass(frozen=True)
class JobFilter:
    """What all wanted jobs have in common; None, or no pair, asks for nothing. `tier` is the level."""

    status: Status | None = None
    tier: int | None = None
    model: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    since: datetime | None = None  # ended then or later
    until: datetime | None = None  # ended before
    is_replayed: bool | None = None  # whether a replay of it was made


ANY_JOB = JobFilter()


def matching(tenant: str, wanted: JobFilter) -> list[ColumnElement[bool]]:
    """The conditions on `Job`, and on the `JobInput` joined to it. The status is a literal: its index serves it."""
    conditions: list[ColumnElement[bool]] = [Job.tenant == tenant]
    if wanted.status is not None:
        conditions.append(Job.status == text(f"'{Status(wanted.status)}'"))
    if wanted.tier is not None:
        conditions.append(Job.tier == wanted.tier)
    if wanted.model is not None:
        conditions.append(Job.model == wanted.model)
    if wanted.metadata:
        conditions.append(JobInput.metadata_.contains(wanted.metadata))
    if wanted.since is not None:
        conditions.append(Job.ended_at >= wanted.since)
    if wanted.until is not None:
        conditions.append(Job.ended_at < wanted.until)
    if wanted.is_replayed is not None:
        conditions.append(has_replay() if wanted.is_replayed else ~has_replay())
    return conditions


def has_replay() -> ColumnElement[bool]:
    """Whether a replay of the job was made, and not deleted since."""
    replay = aliased(Job)
    return exists(select(replay.id).where(replay.replay_of == Job.id))
