"""The figures of all targets on one shape as tables: as they are, their spread, and their share of the ceiling."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.bench.speed.ceiling import Bounds, Ceiling
from tests.bench.speed.metrics import Figures, medians
from tests.bench.speed.outcome import Outcome
from tests.bench.speed.shapes import Shape
from tests.bench.speed.targets import Target
from tests.bench.speed.workloads import make_suite

PROCESS = "process"  # the name under which memory and start stand beside the workloads
NOISY_PERCENT = 25.0  # of one core, taken by others: beyond it a figure is measured again


@dataclass(frozen=True)
class Column:
    """A figure of a workload."""

    heading: str
    workload: str
    figure: str
    is_rate: bool = False  # more is better


COLUMNS = (
    Column("W1 out tok/s", "W1", "out_tokens_per_s", is_rate=True),
    Column("W1 total tok/s", "W1", "total_tokens_per_s", is_rate=True),
    Column("W2 TTFT ms", "W2", "ttft_p50_ms"),
    Column("W2 ITL p50", "W2", "itl_p50_ms"),
    Column("W2 ITL p99", "W2", "itl_p99_ms"),
    Column("W3 TTFT p50", "W3", "ttft_p50_ms"),
    Column("W3 ITL p50", "W3", "itl_p50_ms"),
    Column("W3 ITL p99", "W3", "itl_p99_ms"),
    Column("W4 cold tok/s", "W4 cold", "total_tokens_per_s", is_rate=True),
    Column("W4 warm tok/s", "W4 warm", "total_tokens_per_s", is_rate=True),
    Column("W5 ITL before", "W5", "itl_before_p50_ms"),
    Column("W5 ITL p99 during", "W5", "itl_during_p99_ms"),
    Column("W5 long TTFT", "W5", "long_ttft_ms"),
    Column("peak MB", PROCESS, "peak_megabytes"),
    Column("start s", PROCESS, "startup_seconds"),
)


@dataclass(frozen=True)
class Row:
    """What came of a target, with one outcome for each seed."""

    target: Target
    outcomes: Sequence[Outcome]

    @property
    def runs(self) -> list[dict[str, Figures]]:
        """Figures by workload of each seed, with memory and start among them."""
        return [
            each.figures | {PROCESS: {"peak_megabytes": each.peak_megabytes, "startup_seconds": each.startup_seconds}}
            for each in self.outcomes
            if each.error is None
        ]

    @property
    def figures(self) -> dict[str, Figures]:
        """The medians over the seeds."""
        return medians(self.runs)

    @property
    def noise_percent(self) -> float:
        """The most that others took of the processor during a workload."""
        taken = [figures.get("foreign_cpu_percent") for run in self.runs for figures in run.values()]
        return max((each for each in taken if each is not None), default=0.0)

    @property
    def num_bad(self) -> int:
        """Jobs that failed, or wrote less than they were asked for."""
        return sum(int(figures.get("num_bad") or 0) for run in self.runs for figures in run.values())


def absolute(rows: Iterable[Row]) -> str:
    """Medians; a target that could not be measured says why."""
    lines = []
    for row in rows:
        if not row.runs:
            lines.append([row.target.name, f"not measured: {_reason(row)}", *[""] * len(COLUMNS)])
            continue
        name = f"{row.target.name} ({row.num_bad} bad)" if row.num_bad else row.target.name
        noise = f"{row.noise_percent:.0f}{' (noisy)' if row.noise_percent > NOISY_PERCENT else ''}"
        lines.append([name, *(number(value_of(row, column)) for column in COLUMNS), noise])
    return markdown(["", *(column.heading for column in COLUMNS), "noise CPU %"], lines)


def ratios(rows: Iterable[Row], base: Row) -> str:
    """How many times better than `base` each is; below 1 it is worse."""
    lines = []
    for row in rows:
        if row.runs:
            found = [ratio(value_of(row, column), value_of(base, column), column) for column in COLUMNS]
            lines.append([row.target.name, *map(number, found)])
    return markdown(["", *(column.heading for column in COLUMNS)], lines)


def spread(rows: Iterable[Row]) -> str:
    """The range over the seeds as a share of the median."""
    lines = []
    for row in rows:
        if len(row.runs) > 1:
            lines.append([row.target.name, *(_range(row, column) for column in COLUMNS)])
    return markdown(["", *(column.heading for column in COLUMNS)], lines)


def shares(rows: Iterable[Row], shape: Shape, ceiling: Ceiling, seed: str) -> str:
    """How close each comes to what the machine allows for its kind of weights."""
    suite = make_suite(seed, ("W1", "W2", "W4"))
    columns = [column for column in COLUMNS if column.workload in ("W1", "W2", "W4 cold", "W4 warm")]
    lines = []
    for row in rows:
        if not row.runs:
            continue
        bounds = Bounds(shape, row.target.weights, ceiling)
        best = {workload.name: bounds.figures(workload) for workload in suite}
        lines.append([row.target.name, *(_share(row, column, best) for column in columns)])
    return markdown(["", *(column.heading for column in columns)], lines)


def value_of(row: Row, column: Column) -> float | None:
    return row.figures.get(column.workload, {}).get(column.figure)


def ratio(ours: float | None, theirs: float | None, column: Column) -> float | None:
    """How many times better ours is."""
    if not ours or not theirs:
        return None
    return ours / theirs if column.is_rate else theirs / ours


def number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def markdown(heading: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [heading, ["---"] * len(heading), *lines]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def _share(row: Row, column: Column, best: dict[str, dict[str, float]]) -> str:
    bound = best[column.workload].get(column.figure)
    share = ratio(value_of(row, column), bound, column)
    return "-" if share is None else f"{share:.0%} of {number(bound)}"


def _range(row: Row, column: Column) -> str:
    values = [run.get(column.workload, {}).get(column.figure) for run in row.runs]
    known = [value for value in values if value is not None]
    middle = value_of(row, column)
    return f"{(max(known) - min(known)) / middle:.0%}" if known and middle else "-"


def _reason(row: Row) -> str:
    return next((each.error for each in row.outcomes if each.error), "it was left out").replace("|", "/")
