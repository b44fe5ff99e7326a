"""What a client saw of one job."""

from dataclasses import dataclass, field
from itertools import pairwise

from tests.bench.speed.workloads import Job


@dataclass
class Trace:
    """Grows while the job runs. Times are of `time.perf_counter`, in seconds."""

    job: Job
    started_at: float = 0.0
    stamps: list[float] = field(default_factory=list)  # when each piece with tokens came
    counts: list[int] = field(default_factory=list)  # how many tokens were in it
    num_cached: int = 0  # tokens of the prompt that were not computed again, as the server says
    error: str | None = None

    @property
    def num_output(self) -> int:
        return sum(self.counts)

    @property
    def first_token_seconds(self) -> float:
        return self.stamps[0] - self.started_at

    @property
    def is_whole(self) -> bool:
        """Whether it wrote all it was asked for."""
        return self.error is None and self.num_output == self.job.max_tokens

    def add(self, at: float, num_tokens: int = 1) -> None:
        self.stamps.append(at)
        self.counts.append(num_tokens)

    def gaps(self, *, since: float = float("-inf"), until: float = float("inf")) -> list[float]:
        """Seconds between tokens whose later one came in that time; a piece of k tokens is k gaps of a kth."""
        gaps: list[float] = []
        for (earlier, later), num_tokens in zip(pairwise(self.stamps), self.counts[1:], strict=True):
            if since <= later <= until:
                gaps.extend([(later - earlier) / num_tokens] * num_tokens)
        return gaps
