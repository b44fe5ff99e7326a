"""What engine workers say of themselves, as metrics of GET /metrics: one series per worker."""

from collections.abc import Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from db.models import Worker

LABELS = ("model", "worker")
GAUGES = {
    "running": "Sequences in the batch.",
    "waiting": "Sequences without a place in it.",
    "free_seats": "Places in the batch that are free.",
    "free_blocks": "KV blocks that are free or hold what may be evicted.",
    "cached_blocks": "KV blocks that can be found by their content.",
}
COUNTERS = {
    "steps": "Steps computed.",
    "preemptions_recompute": "Sequences that gave way and are computed again.",
    "preemptions_swap": "Sequences that gave way and were copied to host memory.",
    "recomputed_tokens": "Tokens given up by preemption.",
    "swapped_out_bytes": "KV bytes copied to host memory.",
    "swapped_in_bytes": "KV bytes copied back.",
    "move_seconds": "Time that steps waited for copies.",
    "lookup_tokens": "Tokens that the prefix cache was asked for.",
    "hit_tokens": "Tokens found in the prefix cache instead of computed.",
    "host_hit_tokens": "Of these, found in host memory.",
    "disk_hit_tokens": "Of these, found on disk.",
    "evictions": "KV blocks whose content made room for another.",
}


class EngineMetrics(Collector):
    """The last that each live worker wrote to its row: at most one renewal of its lease old."""

    def __init__(self) -> None:
        self.workers: Sequence[Worker] = ()  # written before each scrape

    def collect(self) -> Iterable[Metric]:
        for name, meaning in GAUGES.items():
            yield self._fill(GaugeMetricFamily(f"headrace_engine_{name}", meaning, labels=LABELS), name)
        for name, meaning in COUNTERS.items():
            yield self._fill(CounterMetricFamily(f"headrace_engine_{name}", meaning, labels=LABELS), name)

    def _fill(self, family: GaugeMetricFamily | CounterMetricFamily, name: str) -> Metric:
        for worker in self.workers:
            value = (worker.stats or {}).get(name)
            if value is not None:
                family.add_metric((worker.model, worker.name), value)
        return family
