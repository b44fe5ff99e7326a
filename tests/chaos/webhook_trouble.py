"""`python -m tests.chaos.webhook_trouble`: 1,000 events to 20 endpoints, 12 of them in trouble of six kinds.

A calm run first, then one in trouble, through a real tasks worker. It prints how late the events came to the 8 healthy
endpoints in both. Then all endpoints are healed and enabled, what was missed is replayed, and each endpoint must have
taken each event exactly once.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import Engine, delete, select, text
from sqlalchemy.orm import Session

from db import jobs, migrate, webhook_replays
from db.broker import make_app, tasks_worker_argv
from db.ids import public_id
from db.models import WebhookEndpoint, WebhookEvent
from db.session import make_engine
from db.settings import Settings
from tests.bench.machine import describe
from tests.chaos.endpoints import Endpoint, Trouble, endpoints
from tests.db.rows import add_endpoint, add_job, add_worker, end_of
from tests.servers import environment, run_servers

NUM_HEALTHY, NUM_OF_EACH = 8, 2
TROUBLES = [Trouble.NONE] * NUM_HEALTHY + [trouble for trouble in Trouble if trouble != Trouble.NONE] * NUM_OF_EACH
SLOW_SECONDS = 8.0
QUIET_SECONDS = 600.0
MOST_DELAY_SECONDS = 5.0  # that the trouble of others may cost an event

PENDING = text("SELECT count(*) FROM webhook_deliveries WHERE status = 'pending'")
# Of endpoints in no trouble: a machine that is short of time can cost an attempt, and then a repeat.
UNEXPECTED = text("""
    SELECT error, count(*) FROM webhook_attempts a JOIN webhook_deliveries d ON d.id = delivery_id
    WHERE error IS NOT NULL AND url = ANY(:urls) AND started_at >= :since GROUP BY error
""")
# What waits for its next attempt, which may be hours away. What is being sent is left alone.
HURRY = text("""
    UPDATE webhook_deliveries SET due_at = clock_timestamp()
    WHERE status = 'pending' AND due_at > clock_timestamp()
      AND (sending_until IS NULL OR sending_until <= clock_timestamp())
""")


@dataclass(frozen=True)
class Delays:
    """How long events took to the healthy endpoints, in seconds."""

    median: float
    most: float

    @staticmethod
    def of(delays: Sequence[float]) -> "Delays":
        return Delays(statistics.median(delays), max(delays))

    def __str__(self) -> str:
        return f"median {self.median:.2f} s, most {self.most:.2f} s"


@contextmanager
def subscribed(engine: Engine, made: Sequence[Endpoint]) -> Iterator[None]:
    """Rows for the endpoints, of one tenant, until the end."""
    with Session(engine) as session, session.begin():
        for endpoint in made:
            add_endpoint(session, url=endpoint.url)
    yield
    with Session(engine) as session, session.begin():
        session.execute(delete(WebhookEndpoint))


def end_jobs(engine: Engine, num_jobs: int, *, seconds: float = 0.0) -> list[str]:
    """End so many jobs, evenly over the seconds; returns their events' ids."""
    with Session(engine) as session, session.begin():
        worker_id = add_worker(session, renewed=-86400.0)  # whose lease outlasts the run
    began = time.monotonic()
    for number in range(num_jobs):
        with Session(engine) as session, session.begin():
            job_id = add_job(session).id
            jobs.claim(session, worker_id, [job_id])
            assert jobs.finish(session, [end_of(job_id, worker_id)])
        time.sleep(max(0.0, began + seconds * (number + 1) / num_jobs - time.monotonic()))
    with Session(engine) as session:
        newest = select(WebhookEvent.id).order_by(WebhookEvent.id.desc()).limit(num_jobs)
        return [public_id("evt_", event_id) for event_id in session.scalars(newest)]


def enable_and_replay(engine: Engine, since: datetime) -> int:
    """What the owner does of endpoints that were disabled: enable them, and have what they missed sent again."""
    with Session(engine) as session, session.begin():
        disabled = session.scalars(select(WebhookEndpoint).where(WebhookEndpoint.disabled_at.is_not(None))).all()
        event_ids = list(session.scalars(select(WebhookEvent.id).where(WebhookEvent.created_at >= since)))
        num_deliveries = 0
        for endpoint in disabled:
            endpoint.disabled_at = endpoint.disabled_reason = endpoint.failing_since = None
            session.flush()
            parameters = {"event_ids": event_ids, "endpoint_id": endpoint.id, "any_type": False, "undelivered": True}
            num_deliveries += session.execute(webhook_replays.REPLAY, parameters).scalar_one()
        return num_deliveries


def num_pending(engine: Engine, *, hurries: bool) -> int:
    """How many deliveries have not ended; their waits are over now, if that is wanted."""
    with Session(engine) as session, session.begin():
        if hurries:
            session.execute(HURRY)
        return int(session.execute(PENDING).scalar_one())


def faults_of(made: Sequence[Endpoint], event_ids: Sequence[str]) -> list[str]:
    """What is not as it should be: each endpoint has taken each event exactly once."""
    wanted = dict.fromkeys(event_ids, 1)
    return [
        f"endpoint {number}: {len(wanted.keys() - endpoint.taken.keys())} events missing, "
        f"{sum(endpoint.taken.values()) - len(endpoint.taken)} taken again"
        for number, endpoint in enumerate(made)
        if dict(endpoint.taken) != wanted
    ]


class Run:
    """A run against a tasks worker, which is told once a second to look what is due, as beat does."""

    def __init__(self, settings: Settings, engine: Engine) -> None:
        self._app = make_app(settings)
        self._engine = engine

    def deliver(self, troubles: Sequence[Trouble], *, num_events: int, seconds: float) -> tuple[Delays, list[str]]:
        """Send the events through trouble and its end; returns the healthy endpoints' delays, and what went wrong."""
        since = datetime.now(UTC)
        with (
            endpoints(troubles, slow_seconds=SLOW_SECONDS) as made,
            subscribed(self._engine, made),
            self._beating(),
        ):
            event_ids = end_jobs(self._engine, num_events, seconds=seconds)
            healthy = [endpoint for endpoint in made if endpoint.trouble == Trouble.NONE]
            self._wait(lambda: all(len(endpoint.taken) == num_events for endpoint in healthy))
            delays = Delays.of(self._delays(healthy))
            for endpoint in made:
                endpoint.heal()
            self._wait(lambda: num_pending(self._engine, hurries=True) == 0)
            enable_and_replay(self._engine, since)
            self._wait(lambda: num_pending(self._engine, hurries=True) == 0)
            return delays, [*faults_of(made, event_ids), *self._unexpected(healthy, since)]

    def _unexpected(self, healthy: Sequence[Endpoint], since: datetime) -> list[str]:
        parameters = {"urls": [endpoint.url for endpoint in healthy], "since": since}
        with Session(self._engine) as session:
            rows = session.execute(UNEXPECTED, parameters).all()
        return [f"{count} attempts failed at healthy endpoints: {error}" for error, count in rows]

    def _delays(self, made: Sequence[Endpoint]) -> list[float]:
        with Session(self._engine) as session:
            rows = session.execute(select(WebhookEvent.id, WebhookEvent.created_at)).all()
        times = {public_id("evt_", event_id): moment.timestamp() for event_id, moment in rows}
        return [at - times[event_id] for endpoint in made for event_id, at in endpoint.arrivals.items()]

    @contextmanager
    def _beating(self) -> Iterator[None]:
        stop = threading.Event()

        def beat() -> None:
            while not stop.wait(1.0):
                self._app.send_task("deliver_due")

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    @staticmethod
    def _wait(is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + QUIET_SECONDS
        while not is_so():
            assert time.monotonic() < deadline, "deliveries do not end"
            time.sleep(0.5)


@contextmanager
def tasks_worker(settings: Settings, log_path: Path) -> Iterator[None]:
    """`headrace tasks`, killed at the end."""
    program, *arguments = tasks_worker_argv(settings)
    argv = [str(Path(sys.executable).with_name(program)), *arguments]
    with log_path.open("ab") as log:
        process = subprocess.Popen(argv, env=environment(settings), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=200.0, help="over which the events come")
    arguments = parser.parse_args()
    load = {"num_events": arguments.events, "seconds": arguments.seconds}
    print(*describe(), sep="\n")
    with run_servers() as servers, tempfile.TemporaryDirectory() as directory:
        migrate.upgrade(servers.settings)
        values = {"data_dir": Path(directory), "webhook_allow_private": True}
        settings = servers.settings.model_copy(update=values)
        run = Run(settings, make_engine(settings))
        with tasks_worker(settings, Path(directory) / "tasks.log"):
            calm, calm_faults = run.deliver([Trouble.NONE] * len(TROUBLES), **load)
            delays, faults = run.deliver(TROUBLES, **load)
    print(f"{arguments.events} events in {arguments.seconds:g} s to {len(TROUBLES)} endpoints")
    print(f"event to arrival, all healthy: {calm}")
    print(f"event to arrival, {NUM_HEALTHY} healthy beside {len(TROUBLES) - NUM_HEALTHY} in trouble: {delays}")
    print(*(calm_faults + faults or ["each endpoint took each event exactly once"]), sep="\n")
    sys.exit(bool(calm_faults or faults) or delays.most - calm.most > MOST_DELAY_SECONDS)


if __name__ == "__main__":
    main()
