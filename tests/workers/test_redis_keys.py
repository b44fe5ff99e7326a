"""Redis holds no more after many jobs and inspections than after few, but for streams, which expire."""

from pathlib import Path
from uuid import UUID

import redis

from db import stream
from db.broker import make_app
from db.settings import Settings
from db.stream import ENDED_SECONDS
from tests.servers import Servers
from tests.workers.worker_process import PATIENCE_SECONDS, Jobs, WorkerProcess, make_settings, prompts, wait_until

FEW, MANY = 10, 300


def test_keys_that_do_not_expire_are_as_many_after_many_jobs_and_inspections_as_after_few(
    servers: Servers, tmp_path: Path
) -> None:
    settings = make_settings(servers, tmp_path)
    jobs = Jobs(settings)
    with WorkerProcess(settings, tmp_path / "worker.log"):
        use(jobs, FEW)
        before = lasting(jobs)
        job_ids = use(jobs, MANY)
        assert lasting(jobs) == before
    assert all(0 < jobs.redis.ttl(stream.key_of(job_id)) <= ENDED_SECONDS for job_id in job_ids)
    jobs.close()


def test_bindings_of_workers_and_clients_that_are_gone_are_dropped_by_kombu(
    settings: Settings, redis_client: redis.Redis
) -> None:
    with make_app(settings) as app, app.connection() as connection:
        mailbox, channel = app.control.mailbox(connection), connection.default_channel
        for control_queue in (mailbox.get_queue("worker@gone"), mailbox.get_reply_queue()):
            control_queue(channel).declare()
        bindings = {b"_kombu.binding.celery.pidbox", b"_kombu.binding.reply.celery.pidbox"}
        assert bindings < set(redis_client.keys())
        redis_client.zadd("_kombu.binding_deadlines", {"celery.pidbox": 0, "reply.celery.pidbox": 0})  # long ago
        channel.sweep_bindings()  # as every worker does
    assert redis_client.keys() == []


def use(jobs: Jobs, num: int) -> list[UUID]:
    """So many jobs, to the end of their streams, and inspections."""
    job_ids = jobs.submit(prompts(num), max_tokens=2)
    jobs.wait_ended(job_ids)
    for _ in range(num):  # each by a client of its own, as command lines are
        with make_app(jobs.settings) as app:
            assert app.control.inspect(timeout=PATIENCE_SECONDS, limit=1).ping()
    wait_until(lambda: all(jobs.redis.ttl(f"stream:{job_id.hex}") <= ENDED_SECONDS for job_id in job_ids), "the ends")
    return job_ids


def lasting(jobs: Jobs) -> dict[bytes, int]:
    """The keys that nothing but their writer will remove, with the number of their members."""
    keys = [key for key in jobs.redis.scan_iter() if jobs.redis.ttl(key) == -1]
    return {key: num_members(jobs.redis, key) for key in keys}


def num_members(client: redis.Redis, key: bytes) -> int:
    count = {b"set": client.scard, b"list": client.llen, b"hash": client.hlen, b"zset": client.zcard}
    return int(count.get(client.type(key), client.strlen)(key))
