"""The figures of a benchmark as a markdown table."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles


@dataclass(frozen=True)
class Figure:
    """One row: what was measured, what came out, how it was taken."""

    what: str
    value: str
    how: str


@dataclass
class Report:
    """Grows while the benchmark runs; each figure is printed as it comes."""

    heading: list[str]
    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, what: str, value: str, how: str) -> None:
        self.figures.append(Figure(what, value, how))
        print(f"{what}: {value}", flush=True)

    def markdown(self) -> str:
        rows = [f"| {figure.what} | {figure.value} | {figure.how} |" for figure in self.figures]
        heading = [f"- {line}" for line in self.heading]
        notes = ["", *self.notes] if self.notes else []
        return "\n".join([*heading, "", "| what | measured | how |", "|---|---|---|", *rows, *notes, ""])

    def write(self, path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        path.write_text(self.markdown())


def percentile(values: Sequence[float], percent: int) -> float:
    """The value that so many percent do not exceed."""
    return quantiles(values, n=100, method="inclusive")[percent - 1]


def milliseconds(values: Sequence[float]) -> str:
    """The median and the 99th percentile of seconds, as text in ms."""
    return f"p50 {percentile(values, 50) * 1000:.2f} ms, p99 {percentile(values, 99) * 1000:.2f} ms"
