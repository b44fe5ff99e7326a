"""The figures of a run: throughput, time to the first token, time between tokens."""

from statistics import median

from tests.bench.speed.load import Run
from tests.bench.speed.trace import Trace
from tests.bench.speed.workloads import Mode

Figures = dict[str, float | None]


def measure(run: Run) -> Figures:
    """The figures of a workload by name, with the unit in each; None where nothing was seen."""
    good = [trace for trace in run.traces if trace.error is None and trace.stamps]
    num_output = sum(trace.num_output for trace in good)
    num_all = num_output + sum(len(trace.job.prompt) for trace in good)
    gaps = [gap for trace in good for gap in trace.gaps()]
    first = [trace.first_token_seconds for trace in good]
    figures: Figures = {
        "seconds": round(run.seconds, 3),
        "num_bad": sum(not trace.is_whole for trace in run.traces),
        "out_tokens_per_s": round(num_output / run.seconds, 1),
        "total_tokens_per_s": round(num_all / run.seconds, 1),
        "ttft_p50_ms": milliseconds(percentile(first, 50)),
        "ttft_p99_ms": milliseconds(percentile(first, 99)),
        "itl_p50_ms": milliseconds(percentile(gaps, 50)),
        "itl_p99_ms": milliseconds(percentile(gaps, 99)),
        "cached_tokens": sum(trace.num_cached for trace in good),
    }
    return figures | _beside(run, good) if run.workload.mode is Mode.BESIDE else figures


def _beside(run: Run, good: list[Trace]) -> Figures:
    """How the streams fared before and while the long prompt was computed."""
    assert run.long_at is not None
    streams = [trace for trace in good if not trace.job.is_long]
    long = next((trace for trace in good if trace.job.is_long), None)
    before = [gap for trace in streams for gap in trace.gaps(until=run.long_at)]
    # A stall that lasts as long as the prompt ends just after its first token.
    until = (long.stamps[0] if long else run.long_at) + 2 * (percentile(before, 99) or 0.0)
    during = [gap for trace in streams for gap in trace.gaps(since=run.long_at, until=until)]
    return {
        "itl_before_p50_ms": milliseconds(percentile(before, 50)),
        "itl_during_p50_ms": milliseconds(percentile(during, 50)),
        "itl_during_p99_ms": milliseconds(percentile(during, 99)),
        "itl_during_max_ms": milliseconds(max(during, default=None)),
        "long_ttft_ms": milliseconds(long.first_token_seconds if long else None),
    }


def percentile(values: list[float], percent: float) -> float | None:
    """The value that so many percent do not exceed, between two of them by proportion; None of none."""
    if not values:
        return None
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 2)


def medians(runs: list[dict[str, Figures]]) -> dict[str, Figures]:
    """Of the same workloads run with several seeds, figure by figure."""
    names = {workload: list(figures) for run in runs for workload, figures in run.items()}
    return {
        workload: {name: _median([run.get(workload, {}).get(name) for run in runs]) for name in figures}
        for workload, figures in names.items()
    }


def _median(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
