"""Batches made by the `openai` client, run by a runner that goes round when it is told to."""

import json
from typing import Any

import openai
from openai.types import Batch
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from api.batches.runner import BatchRunner
from api.services import Services
from db.ids import public_id
from db.models import Job, Status
from tests.api.hand_worker import HandWorker

URL = "/v1/completions"


def request(custom_id: str, **body: Any) -> dict[str, Any]:
    """A line of an input file."""
    fields = {"model": "tiny", "prompt": "the mill", "max_tokens": 4} | body
    return {"custom_id": custom_id, "method": "POST", "url": URL, "body": fields}


def jsonl(lines: list[Any]) -> bytes:
    return "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines).encode()


class BatchWorld:
    """Short ways to make batches, to let their jobs run, and to look."""

    def __init__(self, services: Services, engine: Engine, sdk: openai.AsyncOpenAI, worker: HandWorker) -> None:
        self.services = services
        self.runner = BatchRunner(services)
        self.engine = engine
        self.sdk = sdk
        self.worker = worker

    async def create(self, lines: list[Any], **fields: Any) -> str:
        """Upload the lines and make a batch of them; returns its id."""
        file = await self.sdk.files.create(file=("requests.jsonl", jsonl(lines)), purpose="batch")
        values = {"endpoint": URL, "completion_window": "24h"} | fields
        return (await self.sdk.batches.create(input_file_id=file.id, **values)).id

    async def rounds(self, number: int = 1) -> None:
        """Advance each batch so many times."""
        for _ in range(number):
            assert await self.runner.round(patience_seconds=30)

    async def begin(self, lines: list[Any], **fields: Any) -> str:
        """A batch whose first lines are in the queue."""
        batch_id = await self.create(lines, **fields)
        await self.rounds(2)  # checked, then fed
        return batch_id

    def jobs(self, *statuses: Status) -> list[str]:
        """Ids of the jobs in these states, the oldest first."""
        with Session(self.engine) as session:
            found = session.scalars(select(Job.id).where(Job.status.in_(statuses)).order_by(Job.id))
            return [public_id("job_", job_id) for job_id in found]

    def run_jobs(self, *texts: str) -> int:
        """Let the worker do what is queued; returns how many jobs that were."""
        job_ids = self.jobs(Status.QUEUED)
        for job_id in job_ids:
            self.worker.run(job_id, *(texts or (" turns",)))
        return len(job_ids)

    async def run_to_end(self, batch_id: str) -> Batch:
        """The batch, once it has ended."""
        while True:
            await self.rounds()
            self.run_jobs()
            batch = await self.sdk.batches.retrieve(batch_id)
            if batch.status in ("completed", "failed", "expired", "cancelled"):
                return batch

    async def content(self, file_id: str | None) -> list[dict[str, Any]]:
        """The lines of a file, as JSON; none of a file that there is not."""
        if file_id is None:
            return []
        text = (await self.sdk.files.content(file_id)).text
        return [json.loads(line) for line in text.splitlines()]
