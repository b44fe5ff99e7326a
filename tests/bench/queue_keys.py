"""Whether Redis holds more after many jobs and inspections than after few, but for streams, which expire."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime

from db.broker import make_app
from tests.bench import load
from tests.bench.stack import Stack
from tests.workers.test_redis_keys import num_members
from tests.workers.worker_process import PATIENCE_SECONDS

NUM_THREADS = 4  # each takes two connections of the ten that Celery's clients of one process share
NUM_CONNECTIONS = 32
BEGINNING = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Keys:
    """What Redis holds after so many jobs and as many inspections."""

    num_jobs: int
    num_lasting: int  # keys that nothing but their writer will remove
    num_members: int  # of those
    num_expiring: int


def count_after(stack: Stack, num_jobs: int) -> Keys:
    """Submit what is missing to so many jobs, wait for their ends, inspect as often, and count."""
    num_missing = max(0, num_jobs - stack.done(BEGINNING).num_jobs)
    asyncio.run(load.submit_all(stack, num_connections=NUM_CONNECTIONS, num_jobs=num_missing))
    with ThreadPoolExecutor(NUM_THREADS) as threads:
        list(threads.map(lambda _: _inspect(stack), range(num_jobs)))
    num_ended = stack.wait_done(BEGINNING).num_ended
    keys = list(stack.redis.scan_iter(count=1000))
    lasting = [key for key in keys if stack.redis.ttl(key) == -1]
    members = sum(num_members(stack.redis, key) for key in lasting)
    return Keys(num_ended, len(lasting), members, len(keys) - len(lasting))


def _inspect(stack: Stack) -> None:
    """As a command line does: by a client of its own."""
    with make_app(stack.settings) as app:
        assert app.control.inspect(timeout=PATIENCE_SECONDS, limit=1).ping()
