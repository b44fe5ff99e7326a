"""How fast a model's jobs start, and what that means for one that waits."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy.ext.asyncio import AsyncSession

from api.schemas import Estimate
from db import job_queries, workers
from db.settings import Settings

WINDOW_SECONDS = 60.0
DEFAULT_RETRY_SECONDS = 10.0  # nothing has started lately, so nothing can be computed
MAX_RETRY_SECONDS = 120.0  # the OpenAI clients do not retry at all when told to wait longer


@dataclass(frozen=True)
class Pace:
    """One model's, as last measured."""

    starts_per_second: float  # over the last minute
    num_running: int
    num_seats: int  # of workers that are ready

    def start_in(self, position: int) -> float | None:
        """Seconds until the job at `position` (1 is next) starts; None when nothing tells."""
        if position <= self.num_seats - self.num_running:
            return 0.0
        if self.starts_per_second > 0:
            return position / self.starts_per_second
        return None

    def retry_seconds(self, num_ahead: int) -> float:
        """Seconds until a full queue has started `num_ahead` jobs and so has room for as many."""
        if self.starts_per_second <= 0:
            return DEFAULT_RETRY_SECONDS
        return min(MAX_RETRY_SECONDS, max(1.0, num_ahead / self.starts_per_second))


async def measure(session: AsyncSession, model: str, settings: Settings) -> Pace:
    """The pace of `model` now."""
    starts = await job_queries.start_rate(session, model, window_seconds=WINDOW_SECONDS)
    depths = await job_queries.queue_depths(session)
    live = await workers.live(session, settings.lease_seconds)
    return Pace(
        starts_per_second=starts,
        num_running=sum(depth.running for depth in depths if depth.model == model),
        num_seats=sum(worker.max_num_seqs for worker in live if worker.model == model and worker.status == "ready"),
    )


def estimate(pace: Pace, position: int) -> Estimate | None:
    """What a client is told about the start of its job."""
    seconds = pace.start_in(position)
    if seconds is None:
        return None
    start_at = datetime.now(UTC) + timedelta(seconds=seconds)
    return Estimate(start_in_seconds=round(seconds, 1), start_at=start_at)
