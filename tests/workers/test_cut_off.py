"""A worker that reaches Redis and not Postgres: its jobs run elsewhere, and what it goes on to stream is not seen."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.link import Link
from tests.checkpoints import make_checkpoint
from tests.servers import Servers
from tests.workers.recovery_world import World, recovering
from tests.workers.worker_process import PATIENCE_SECONDS, wait_until

NUM_LAYERS = 10  # a model so slow that a job outlasts the lease by far
NUM_TOKENS = 1300


@dataclass
class Way:
    """The way to Postgres of one worker. Cut, its connections are silent and new ones are refused."""

    link: Link
    target: Path  # a symbolic link to the server's socket
    socket: Path
    do: Callable[[Coroutine[Any, Any, Any]], Future[Any]]

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://headrace@127.0.0.1:{self.link.port}/headrace"

    def cut(self) -> None:
        self.target.unlink()
        self._cutting = self.do(self.link.cut(PATIENCE_SECONDS))

    def mend(self) -> None:
        self.target.symlink_to(self.socket)
        self._cutting.cancel()
        self.do(self.link.cut(0)).result()  # what was silent ends


@pytest.fixture
def world(servers: Servers, tmp_path: Path) -> Iterator[World]:
    model = make_checkpoint(tmp_path / "slow", num_hidden_layers=NUM_LAYERS)
    with recovering(servers, tmp_path, model=str(model)) as world:
        yield world


@pytest.fixture
def way(servers: Servers, tmp_path: Path) -> Iterator[Way]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="link")
    thread.start()

    def do(act: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(act, loop)

    target, socket = tmp_path / "postgres", servers.settings.data_dir.parent / "s" / ".s.PGSQL.5432"
    target.symlink_to(socket)
    link = Link("postgres", target)
    do(link.open()).result()
    yield Way(link, target, socket, do)
    do(link.close()).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_what_a_worker_streams_after_another_took_its_jobs_over_is_never_seen(world: World, way: Way) -> None:
    first, second = world.start("first", database_url=way.url), world.start("second")
    first_id, second_id = world.wait_ready(first), world.wait_ready(second)
    second.freeze()  # so that the first one takes them all
    job_ids = world.submit(3, NUM_TOKENS)
    world.jobs.wait_streamed(job_ids, 2)
    second.thaw()
    way.cut()
    num_streamed = max(map(world.jobs.num_streamed, job_ids))
    world.jobs.wait_streamed(job_ids, num_streamed + 50)  # it goes on
    wait_until(lambda: {row.worker_id for row in world.jobs.rows(job_ids)} == {second_id}, "the other to take over")
    assert {row.status for row in world.jobs.rows(job_ids)} == {"running"}
    way.mend()
    wait_until(lambda: world.ready_ids(first) not in ([], [first_id]), "it to come back under another id")
    world.assert_ended_once(job_ids, attempt=2)
    assert all(row.ended_at > world.lease_end(first_id) for row in world.jobs.rows(job_ids))
