"""How long a sweep takes to rebuild the lists of 100,000 queued jobs that Redis lost: `python -m tests.bench.rebuild`.

Lists are whole, in order and without a message too many, or nothing is printed but the difference.
"""

import json
from time import perf_counter
from uuid import UUID

import redis
from sqlalchemy import Engine, func, select, text
from sqlalchemy.orm import Session

from db import migrate, queue
from db.models import Job
from db.queue import queue_name
from db.session import make_engine, make_redis
from db.settings import TIERS
from tests.bench import machine
from tests.db import rows
from tests.servers import run_servers
from workers.sweep import Sweep

NUM_JOBS = 100_000
MODEL = "m"
# An hour of submits, one after the other, in turns of the tiers. Ids are in order, as new ones are.
INSERT = text("""
    INSERT INTO jobs (id, tenant, key_id, kind, model, tier, status, stream, seed, num_prompt_tokens, max_tokens,
        num_blocks, ready_at)
    SELECT CAST(left(CAST(:id AS text), 24) || lpad(to_hex(number), 12, '0') AS uuid), 't', :id, 'job', :model,
        number % 3, 'queued', true, 1, 3, 16, 2,
        clock_timestamp() - interval '1 hour' + number * interval '30 milliseconds'
    FROM generate_series(1, :num_jobs) AS number
""")


def main() -> None:
    with run_servers() as servers:
        migrate.upgrade(servers.settings)
        engine, client = make_engine(servers.settings), make_redis(servers.settings)
        with Session(engine) as session, session.begin():
            worker_id = rows.add_worker(session, model=MODEL)
            session.execute(INSERT, {"id": worker_id, "model": MODEL, "num_jobs": NUM_JOBS})
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("ANALYZE jobs"))
        sweep, seconds = Sweep(engine, client, servers.settings), []
        for _ in range(3):
            client.flushall()
            began = perf_counter()
            report = sweep.run(_now(engine))
            seconds.append(perf_counter() - began)
            assert report.num_restored == NUM_JOBS, report
            _check_order(engine, client)
        assert sweep.run(_now(engine)).num_restored == 0, "what is whole is left alone"
        _print(seconds)
        client.close()
        engine.dispose()


def _now(engine: Engine) -> float:
    with Session(engine) as session:
        return float(session.execute(select(func.extract("epoch", func.clock_timestamp()))).scalar_one())


def _check_order(engine: Engine, client: redis.Redis) -> None:
    """Every list holds its tier's jobs once, in the order in which they became ready."""
    assert sum(queue.depths(client, MODEL).values()) == NUM_JOBS
    for tier in range(len(TIERS)):
        messages = client.lrange(queue_name(MODEL, tier), 0, -1)
        listed = [UUID(json.loads(raw)["headers"]["id"]) for raw in reversed(messages)]
        with Session(engine) as session:
            assert listed == list(session.scalars(select(Job.id).where(Job.tier == tier).order_by(Job.ready_at)))


def _print(seconds: list[float]) -> None:
    for line in machine.describe():
        print(line)
    print(f"workload: {NUM_JOBS:,} queued jobs in {len(TIERS)} tiers, FLUSHALL, one round of the sweep; three times")
    print(f"load average of the last minute: {machine.load_average():.1f}")
    print("rebuilt in " + ", ".join(f"{each:.2f} s" for each in seconds))
    print(f"{NUM_JOBS / min(seconds):,.0f} jobs/s")


if __name__ == "__main__":
    main()
