"""Clients of Celery's control commands that are killed between asking and reading leave nothing in Redis for good."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from sqlalchemy import Engine

from db.control_replies import BINDINGS, REPLIES, REPLY_SECONDS
from db.settings import Settings
from tests.servers import Servers, environment
from tests.workers.worker_process import PATIENCE_SECONDS, WorkerProcess, make_settings, wait_until
from tests.workers.world import Sweeping
from workers.control_replies import BINDING_SECONDS, ControlReplies
from workers.sweep import Sweep

ASK = f"from db.broker import app; print(app.control.inspect(timeout={PATIENCE_SECONDS}, limit=1).ping())"


@pytest.fixture
def world(engine: Engine, redis_client: redis.Redis, settings: Settings) -> Sweeping:
    return Sweeping(engine, redis_client, Sweep(engine, redis_client, settings))


@pytest.fixture
def worker(world: Sweeping, servers: Servers, tmp_path: Path) -> Iterator[WorkerProcess]:
    """One that listens to control commands."""
    with WorkerProcess(make_settings(servers, tmp_path), tmp_path / "worker.log") as worker:
        wait_until(world.redis.pubsub_numpat, "the worker's subscription")
        yield worker


def ask(world: Sweeping, worker: WorkerProcess) -> "subprocess.Popen[str]":
    """A process that has asked, and waits for what the frozen worker answers later."""
    worker.freeze()
    with world.redis.pubsub(ignore_subscribe_messages=True) as commands:
        commands.psubscribe("*celery.pidbox")
        assert commands.get_message(timeout=5) is None  # its own subscription
        asking = subprocess.Popen(
            [sys.executable, "-c", ASK], env=environment(worker.settings), stdout=subprocess.PIPE, text=True
        )
        assert commands.get_message(timeout=PATIENCE_SECONDS) is not None
    return asking


def leave(world: Sweeping, worker: WorkerProcess) -> bytes:
    """The list of a client that was killed before it was answered."""
    asking = ask(world, worker)
    asking.kill()
    asking.communicate()
    worker.thaw()
    wait_until(lambda: lists(world), "the reply")
    [key] = lists(world)
    assert world.redis.ttl(key) == -1
    return key


def lists(world: Sweeping) -> list[bytes]:
    return list(world.redis.scan_iter(f"*.{REPLIES}", _type="list"))


def test_replies_to_a_killed_client_expire_in_minutes_and_its_binding_is_removed(
    world: Sweeping, worker: WorkerProcess
) -> None:
    key = leave(world, worker)
    now = world.now()
    world.sweep.run(now)
    assert 0 < world.redis.ttl(key) <= REPLY_SECONDS
    world.redis.expire(key, 7)
    world.sweep.run(now + BINDING_SECONDS - 1)
    assert world.redis.ttl(key) <= 7  # later rounds put nothing off
    assert world.redis.scard(BINDINGS) == 1

    asking = ask(world, worker)  # alive, and first seen when the other is removed
    world.sweep.run(now + BINDING_SECONDS)
    [binding] = world.redis.smembers(BINDINGS)
    assert not binding.endswith(key)
    worker.thaw()
    answer, _ = asking.communicate(timeout=PATIENCE_SECONDS)
    assert "pong" in answer
    assert world.redis.scard(BINDINGS) == 0


def test_binding_of_a_client_that_asks_again_and_again_is_kept(redis_client: redis.Redis) -> None:
    replies = ControlReplies(redis_client)
    for hours in range(4):  # it is the same for all commands of a process
        redis_client.sadd(BINDINGS, "a")
        replies.run(hours * BINDING_SECONDS)
        assert redis_client.scard(BINDINGS) == 1
        redis_client.srem(BINDINGS, "a")
        replies.run(hours * BINDING_SECONDS + 1)


def test_each_round_looks_at_a_few_keys_and_every_list_is_met(redis_client: redis.Redis) -> None:
    keys = [f"{i}.{REPLIES}" for i in range(60)]
    for key in keys:
        redis_client.rpush(key, "reply")
    redis_client.rpush("somebody-elses", "text")
    replies = ControlReplies(redis_client, num_keys=5)
    replies.run(0.0)
    assert 0 < sum(redis_client.ttl(key) > 0 for key in keys) < 30
    num_rounds = 1
    while any(redis_client.ttl(key) == -1 for key in keys):
        replies.run(0.0)
        num_rounds += 1
        assert num_rounds <= 100
    assert redis_client.ttl("somebody-elses") == -1
