"""A real engine worker as a child process, and jobs for it: what the API would do, without the API."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from db import jobs, queue, stream, stream_reads
from db.broker import engine_worker_argv
from db.models import ENDED, Job, JobOutput
from db.sampling import Sampling
from db.session import make_async_engine, make_async_redis, make_engine, make_redis
from db.settings import Settings
from db.stream import Token
from tests.checkpoints import make_checkpoint
from tests.servers import Servers, environment

PATIENCE_SECONDS = 60.0  # how long anything may take on a loaded machine before the test fails
LOOK_SECONDS = 0.03  # a look costs a statement, and there are many
NUM_SEATS = 4
LONG = 1500  # tokens: work that is still under way whenever a test looks at it
MIDDLING = 600  # tokens: long enough for something to happen in the middle, and to wait for the end
GREEDY = Sampling(temperature=0.0, ignore_eos=True)


def make_settings(servers: Servers, directory: Path, **changes: Any) -> Settings:
    values = {
        "data_dir": directory,
        "model": str(make_checkpoint(directory / "tiny")),
        "model_name": directory.name,
        "max_num_seqs": NUM_SEATS,
        "kv_cache_tokens": 8192,
        "num_threads": 1,
        "lease_seconds": 6.0,
        "renew_seconds": 1.0,
    }
    return servers.settings.model_copy(update=values | changes)


def prompts(num: int) -> list[list[int]]:
    return [[5 + i, 80, 33, 7] for i in range(num)]


def wait_until(is_so: Callable[[], Any], what: str, *, patience_seconds: float = PATIENCE_SECONDS) -> Any:
    """Look until `is_so` answers something true, and return it. What is awaited happens in another process."""
    deadline = monotonic() + patience_seconds
    while not (answer := is_so()):
        assert monotonic() < deadline, f"waited in vain: {what}"
        sleep(LOOK_SECONDS)
    return answer


class WorkerProcess:
    """`celery -A workers.app worker`, exactly as `headrace worker` starts it; `app` names another module."""

    def __init__(self, settings: Settings, log_path: Path, *, app: str = "workers.app") -> None:
        self.settings = settings
        self.log_path = log_path
        program, *arguments = [app if part == "workers.app" else part for part in engine_worker_argv(settings)]
        with log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [str(Path(sys.executable).with_name(program)), *arguments],
                env=environment(settings) | {"OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def __enter__(self) -> "WorkerProcess":
        return self

    def __exit__(self, *exception: object) -> None:
        if self.process.poll() is None:
            self.kill()

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def kill(self) -> None:
        """As the kernel does when memory runs out."""
        self.process.kill()
        self.process.wait()

    def freeze(self) -> None:
        """As a debugger, a paused container or a machine that swaps does."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def terminate(self) -> int:
        """Drain, and return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=PATIENCE_SECONDS)


@dataclass
class Jobs:
    """Submits jobs as the API does, and looks at their rows."""

    settings: Settings

    def __post_init__(self) -> None:
        self.engine = make_engine(self.settings)
        self.redis = make_redis(self.settings)

    def submit(self, prompts: Sequence[list[int]], **options: Any) -> list[UUID]:
        """One job per prompt, published after the commit."""
        return asyncio.run(self._submit([self._new(prompt, **options) for prompt in prompts]))

    def _new(self, prompt: list[int], **options: Any) -> jobs.NewJob:
        values: dict[str, Any] = {
            "tenant": "t",
            "key_id": UUID(int=1),
            "kind": "job",
            "model": self.settings.served_name,
            "tier": 1,
            "stream": True,
            "prompt": None,
            "messages": None,
            "prompt_token_ids": prompt,
            "sampling": GREEDY,
            "max_tokens": 16,
        } | options
        values["num_blocks"] = -(-(len(prompt) + values["max_tokens"]) // 16)
        return jobs.NewJob(**values)

    async def _submit(self, news: list[jobs.NewJob]) -> list[UUID]:
        engine, client = make_async_engine(self.settings), make_async_redis(self.settings)
        async with AsyncSession(engine, expire_on_commit=False) as session:
            created = [await jobs.create(session, new, key_window=10_000) for new in news]
            await session.commit()
        await queue.push_async(client, [one.ready for one in created if one.ready is not None])
        await client.aclose()
        await engine.dispose()
        return [one.job.id for one in created]

    def row(self, job_id: UUID) -> Job:
        with Session(self.engine) as session:
            return session.scalars(select(Job).where(Job.id == job_id)).one()

    def rows(self, job_ids: Sequence[UUID]) -> list[Job]:
        with Session(self.engine) as session:
            return list(session.scalars(select(Job).where(Job.id.in_(job_ids)).order_by(Job.id)))

    def output(self, job_id: UUID) -> JobOutput:
        with Session(self.engine) as session:
            return session.scalars(select(JobOutput).where(JobOutput.job_id == job_id)).one()

    def wait_ended(self, job_ids: Sequence[UUID]) -> list[Job]:
        """The rows, once every one of them has ended."""

        def ended() -> list[Job] | None:
            rows = self.rows(job_ids)
            return rows if all(row.status in ENDED for row in rows) else None

        rows: list[Job] = wait_until(ended, f"{len(job_ids)} jobs to end")
        return rows

    def num_streamed(self, job_id: UUID) -> int:
        standing = stream.standings(self.redis, [job_id]).get(job_id)
        return 0 if standing is None else standing.num_tokens

    def wait_streamed(self, job_ids: Sequence[UUID], num_tokens: int) -> None:
        """Until each of the jobs has delivered that many tokens."""
        wait_until(lambda: all(self.num_streamed(job_id) >= num_tokens for job_id in job_ids), "tokens")

    def delivered(self, job_id: UUID) -> list[Token]:
        """The tokens of the stream, as a reader gets them who came at the beginning."""

        async def read() -> stream_reads.StreamRead:
            client = make_async_redis(self.settings)
            try:
                return await stream_reads.read(client, job_id, 0)
            finally:
                await client.aclose()

        return asyncio.run(read()).tokens

    def close(self) -> None:
        self.engine.dispose()
        self.redis.close()
