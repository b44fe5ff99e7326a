"""What GET /metrics tells: counters of this API process, and the queue as Postgres has it at the scrape."""

from collections.abc import Iterable, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import Scope

from api.engine_metrics import EngineMetrics
from db.job_queries import Depth
from db.models import Worker
from db.settings import TIERS

UNROUTED = "(none)"  # one label for all paths that lead nowhere, or scanners would make a series each
REQUEST_SECONDS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 30, 120)


class Metrics:
    """The process's metrics. A registry of its own, so that two apps in one process do not collide."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        of_request = ["method", "route"]
        self._requests = self._counter("http_requests", "Replies sent.", [*of_request, "status"])
        self._seconds = Histogram(
            "headrace_http_request_seconds",
            "Time from request to the end of the reply; event streams last as long as they are read.",
            of_request,
            buckets=REQUEST_SECONDS,
            registry=self.registry,
        )
        self.submitted = self._counter("jobs_submitted", "Jobs accepted.", ["model", "tier"])
        self.refused = self._counter("jobs_refused", "Submits refused because a queue was full.", ["model", "tier"])
        self.open_streams = self._gauge("open_streams", "Readers of token streams.", [])
        self._queued = self._gauge("jobs_queued", "Jobs ready and waiting for a seat.", ["model", "tier"])
        self._parked = self._gauge("jobs_parked", "Jobs waiting for earlier ones of their key.", ["model", "tier"])
        self._tokens = self._gauge(
            "tokens_queued", "Tokens, of prompts and max_tokens, of waiting jobs.", ["model", "tier"]
        )
        self._running = self._gauge("jobs_running", "Jobs held by a worker.", ["model", "tier"])
        self._workers = self._gauge("workers", "Engine workers with a live lease.", ["model"])
        self._engines = EngineMetrics()
        self.registry.register(self._engines)

    def observe_request(self, scope: Scope, status: int, seconds: float) -> None:
        """Count one request; status 0 is a client that left before the reply began."""
        route: Any = scope.get("route")
        path = getattr(route, "path", UNROUTED)
        self._requests.labels(scope["method"], path, str(status)).inc()
        self._seconds.labels(scope["method"], path).observe(seconds)

    def render(self, depths: Iterable[Depth], live_workers: Sequence[Worker]) -> bytes:
        """The text format of Prometheus."""
        for gauge in (self._queued, self._parked, self._tokens, self._running, self._workers):
            gauge.clear()
        for depth in depths:
            labels = (depth.model, TIERS[depth.tier])
            self._queued.labels(*labels).set(depth.ready)
            self._parked.labels(*labels).set(depth.parked)
            self._tokens.labels(*labels).set(depth.num_tokens)
            self._running.labels(*labels).set(depth.running)
        for worker in live_workers:
            self._workers.labels(worker.model).inc()
        self._engines.workers = live_workers
        return generate_latest(self.registry)

    def _counter(self, name: str, meaning: str, labels: list[str]) -> Counter:
        return Counter(f"headrace_{name}", meaning, labels, registry=self.registry)

    def _gauge(self, name: str, meaning: str, labels: list[str]) -> Gauge:
        return Gauge(f"headrace_{name}", meaning, labels, registry=self.registry)
