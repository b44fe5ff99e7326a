"""`headrace api` as the process it is: what its log has of what its clients were told."""

import re
from pathlib import Path

import httpx
from sqlalchemy import Engine, text

from db.settings import Settings
from tests.api.api_process import api_process
from tests.api.serving import KEY

BODY = {"model": "tiny", "prompt": "the mill wheel", "max_tokens": 8}


def test_the_log_tells_of_each_job_and_of_each_failure_by_the_id_in_its_reply(
    settings: Settings, keys, worker, engine: Engine, tmp_path: Path
) -> None:
    headers = {"Authorization": f"Bearer {KEY}"}
    with (
        api_process(settings, tmp_path / "api.log") as api,
        httpx.Client(base_url=api.url, headers=headers, timeout=30) as client,
    ):
        job = client.post("/v1/jobs", json=BODY).json()
        rename(engine, "workers", "workers_away")
        try:
            failed = client.get("/v1/queues")
        finally:
            rename(engine, "workers_away", "workers")
    lines = (tmp_path / "api.log").read_text()
    (submitted,) = (line for line in lines.splitlines() if "job submitted" in line)
    job_id = re.search(r"job_id=(\S+)", submitted)
    assert job_id is not None and job_id[1].replace("-", "") == job["id"].removeprefix("job_")
    assert "model=tiny" in submitted and "tier=normal" in submitted
    request_id = failed.headers["x-request-id"]
    assert failed.status_code == 500 and request_id in failed.json()["error"]["message"]
    (told,) = (line for line in lines.splitlines() if "request failed" in line)
    assert f"request_id={request_id}" in told and "path=/v1/queues" in told
    assert 'relation "workers" does not exist' in lines


def rename(engine: Engine, table: str, name: str) -> None:
    with engine.begin() as connection:
        connection.execute(text(f"ALTER TABLE {table} RENAME TO {name}"))
