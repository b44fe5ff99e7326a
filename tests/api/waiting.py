"""What tests wait for."""

from typing import Any

import httpx


async def only_job(client: httpx.AsyncClient) -> str:
    """The id of the one job there is, as soon as there is one."""
    (job_id,) = await all_jobs(client, 1)
    return job_id


async def all_jobs(client: httpx.AsyncClient, num_jobs: int) -> list[str]:
    """The ids of all jobs, as soon as there are so many, in the order in which they came."""
    while True:
        jobs = (await client.get("/v1/jobs")).json()["data"]
        if len(jobs) >= num_jobs:
            return [str(job["id"]) for job in reversed(jobs)]


async def job_in_status(client: httpx.AsyncClient, job_id: str, status: str) -> dict[str, Any]:
    """The job once it has that status; the test's timeout is the limit."""
    while True:
        job: dict[str, Any] = (await client.get(f"/v1/jobs/{job_id}", headers={"Prefer": "wait=5"})).json()
        if job["status"] == status:
            return job
