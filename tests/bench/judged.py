"""What clients were told of a start, beside the start that came: errors, and how often the interval held."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from uuid import UUID

from tests.bench.polls import Poll
from tests.bench.report import percentile

LONG_WAIT = 5.0  # seconds; relative errors are those of longer waits
HEADER = (
    *("answers", "number", "wait, median s", "error, median s", "absolute, median s", "absolute, p90 s"),
    *(f"absolute by wait, over {LONG_WAIT:.0f} s, median", "within the interval", "its width by wait, median"),
    *("no estimate", "place, median absolute error"),
)


@dataclass(frozen=True)
class Judged:
    """An answer while a job waited, and what became of the job."""

    poll: Poll
    started_at: float
    place: int  # of the job among those that started after the answer, 1 for the first

    @property
    def wait(self) -> float:
        """What was left of it."""
        return self.started_at - self.poll.at


def judge(polls: Sequence[Poll], started_at: Mapping[UUID, float]) -> list[Judged]:
    """Each answer that came before its job's start; `started_at` are the starts of all jobs."""
    starts = sorted(started_at.values())

    def place(poll: Poll) -> int:
        return 1 + bisect_left(starts, started_at[poll.job_id]) - bisect_left(starts, poll.at)

    waiting = [poll for poll in polls if poll.at < started_at[poll.job_id]]
    return [Judged(poll, started_at[poll.job_id], place(poll)) for poll in waiting]


def row(name: str, judged: Sequence[Judged]) -> str:
    """The figures of these answers, as a line of the table under `HEADER`."""
    told = [(each, each.poll.times) for each in judged if each.poll.times is not None]
    if len(told) < 2:
        return f"| {name} | {len(judged)} |" + " |" * (len(HEADER) - 2)
    errors = [times[1] - each.started_at for each, times in told]
    sizes = [abs(error) for error in errors]
    of_wait = [size / each.wait for size, (each, _) in zip(sizes, told, strict=True) if each.wait > LONG_WAIT]
    widths = [(times[2] - times[0]) / each.wait for each, times in told if each.wait > LONG_WAIT]
    num_within = sum(times[0] <= each.started_at <= times[2] for each, times in told)
    figures = (
        *(name, f"{len(judged):,}", f"{median(each.wait for each in judged):.1f}"),
        *(f"{median(errors):+.1f}", f"{median(sizes):.1f}", f"{percentile(sizes, 90):.1f}"),
        f"{median(of_wait):.0%}" if of_wait else "",
        f"{num_within / len(told):.0%}",
        f"{median(widths):.0%}" if widths else "",
        f"{1 - len(told) / len(judged):.0%}",
        f"{median(abs(each.poll.position - each.place) for each in judged):.0f}",
    )
    return f"| {' | '.join(figures)} |"
