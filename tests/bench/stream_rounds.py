"""What the rounds of the stream benchmark come to: latencies without and beside idle clients, and what those cost."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from uuid import UUID

from tests.bench.counters import Counts
from tests.bench.report import Report, percentile

FIRST_TOKEN = 2  # number of the event of token 0


@dataclass(frozen=True)
class Round:
    """A stretch of time, with so many idle clients, and what was used and asked meanwhile."""

    num_idle: int
    began_at: float  # time.monotonic()
    ended_at: float
    processor_seconds: dict[str, float]
    counts: Counts

    @property
    def seconds(self) -> float:
        return self.ended_at - self.began_at


@dataclass
class Arrivals:
    """When each token of each job reached its client."""

    times: list[tuple[UUID, int, float]] = field(default_factory=list)

    def add(self, job_id: UUID, number: int, at: float) -> None:
        if number >= FIRST_TOKEN:
            self.times.append((job_id, number - FIRST_TOKEN, at))

    def latencies(self, appended_at: dict[UUID, dict[int, float]], began_at: float, ended_at: float) -> list[float]:
        """Seconds from a token's being sent to Redis to its client's having it, of those that came meanwhile."""
        came = [each for each in self.times if began_at <= each[2] < ended_at]
        return [at - appended_at[job_id][index] for job_id, index, at in came]


def add_figures(report: Report, rounds: Sequence[Round], latencies: Sequence[Sequence[float]]) -> None:
    """The table; each of a round's figures is the median of its kind's rounds."""
    kinds = {
        "no idle client": [i for i, each in enumerate(rounds) if not each.num_idle],
        f"{max(each.num_idle for each in rounds):,} idle clients": [
            i for i, each in enumerate(rounds) if each.num_idle
        ],
    }
    num_tokens, seconds = sum(map(len, latencies)), sum(each.seconds for each in rounds)
    how = f"append in the worker -> client, {num_tokens / seconds:,.0f} tokens/s; median of {len(rounds) // 2} rounds"
    for name, places in kinds.items():
        p50, p99 = (median(percentile(latencies[i], percent) for i in places) * 1000 for percent in (50, 99))
        report.add(f"token latency, {name}", f"p50 {p50:.2f} ms, p99 {p99:.2f} ms", how)
    alone, beside = kinds.values()
    for percent in (50, 99):
        report.add(f"p{percent}, beside to without", *_ratio(latencies, alone, beside, percent))
    for name, places in kinds.items():
        report.add(f"cost per second, {name}", _cost([rounds[i] for i in places]), "processor time; all that was asked")
    report.notes += _round_table(rounds, latencies)


def _ratio(
    latencies: Sequence[Sequence[float]], alone: Sequence[int], beside: Sequence[int], percent: int
) -> tuple[str, str]:
    values = [percentile(each, percent) for each in latencies]
    ratio = median(values[i] for i in beside) / median(values[i] for i in alone)
    pairs = sorted(values[b] / values[a] for a, b in zip(alone, beside, strict=True))
    return f"{ratio:.2f}x", f"of the medians above; of rounds next to each other {pairs[0]:.2f}x to {pairs[-1]:.2f}x"


def _cost(rounds: Sequence[Round]) -> str:
    seconds = sum(each.seconds for each in rounds)
    api = sum(each.processor_seconds["API"] for each in rounds) / seconds * 1000
    statements = sum(each.counts.statements.total() for each in rounds) / seconds
    commands = sum(each.counts.commands.total() for each in rounds) / seconds
    return f"API {api:.0f} ms; {statements:.1f} Postgres statements; {commands:,.0f} Redis commands"


def _round_table(rounds: Sequence[Round], latencies: Sequence[Sequence[float]]) -> list[str]:
    rows = [
        f"| {each.num_idle:,} | {' | '.join(f'{percentile(values, p) * 1000:.2f}' for p in (50, 90, 99))} | "
        f"{max(values) * 1000:.1f} | {' | '.join(f'{spent:.2f}' for spent in each.processor_seconds.values())} |"
        for each, values in zip(rounds, latencies, strict=True)
    ]
    names = " | ".join(rounds[0].processor_seconds)
    head = f"| idle clients | p50 ms | p90 ms | p99 ms | longest ms | {names} |"
    return ["Round by round, with the seconds of processor time of each process:", "", head, "|---" * 10 + "|", *rows]
