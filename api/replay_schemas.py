"""What goes in and out of the replays of ended jobs."""

from typing import Literal

from pydantic import BaseModel, Field

from api.fields import TIER_MEANING, Metadata, ModelName, Moment, Text, Tier
from api.generation_fields import MAX_RUN_SECONDS
from api.schemas import ErrorDetail
from api.time_limits import TimeLimits
from db.replays import Limits

MAX_PAGE = 100
EndedName = Literal["succeeded", "failed", "cancelled", "expired", "dead"]


class ReplayLimits(TimeLimits):
    """Limits in time of the new job. Those of the old one are not kept, except its `run_for`, which begins anew."""

    run_for: float | None = Field(
        None, gt=0, le=MAX_RUN_SECONDS, description="Seconds from its first start; not sent, it is that of the old job."
    )

    def limits(self) -> Limits:
        """The limits that were sent."""
        return Limits(self.start_by, self.finish_by, self.run_for)


class ReplayMany(ReplayLimits):
    """Which ended jobs to submit again: all that match every field, the oldest first, a page at a time."""

    status: EndedName = Field("dead", description="How they ended.")
    model: ModelName | None = Field(None, description="Only jobs of this model.")
    tier: Tier | None = Field(None, description="Only jobs of this tier. " + TIER_MEANING)
    metadata: Metadata = Field(default_factory=dict, description="Only jobs that carry all of these pairs.")
    since: Moment | None = Field(
        None, description="Only jobs that ended then or later.", examples=["2026-01-31T00:00:00Z"]
    )
    until: Moment | None = Field(None, description="Only jobs that ended before.", examples=["2026-02-01T00:00:00Z"])
    include_replayed: bool = Field(
        False, description="Also jobs that have been replayed: without it, calling twice does not run anything twice."
    )
    after: Text | None = Field(None, description="The `last_id` of the page before.")
    limit: int = Field(MAX_PAGE, ge=1, le=MAX_PAGE, description="Most jobs that one call replays.")


class Replay(BaseModel):
    """What became of one job."""

    job_id: str = Field(description="The ended job.", examples=["job_0193e4c2a1b47c3d8e5f60718293a4b5"])
    replay_id: str | None = Field(description="The job that repeats it; null when it was refused.")
    error: ErrorDetail | None = Field(description="Why it was refused: it no longer fits its model, for example.")


class ReplayList(BaseModel):
    """A page of replays, the oldest job first."""

    object: Literal["list"] = Field("list", description="Always `list`.")
    data: list[Replay] = Field(description="Old and new ids.")
    last_id: str | None = Field(description="The last job that this call looked at: the next page's `after`.")
    has_more: bool = Field(
        description="Whether to call again: more jobs match, or the queue is full now (the next call then says 429)."
    )
