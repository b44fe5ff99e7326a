"""A real Flower as a child process, and what it answers."""

import subprocess
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx

from db.queue_message import queue_name
from db.settings import TIERS, Settings
from tests.e2e.instance import HEADRACE, free_port
from tests.servers import environment
from tests.workers.worker_process import wait_until


class FlowerProcess:
    """`headrace flower`. Ready when it is entered, and listening for events."""

    def __init__(self, settings: Settings, log_path: Path) -> None:
        self._settings = settings.model_copy(update={"flower_port": free_port()})
        self._log_path = log_path
        self._client = httpx.Client(base_url=f"http://127.0.0.1:{self._settings.flower_port}", trust_env=False)
        with log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [HEADRACE, "flower"],
                env=environment(self._settings),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def __enter__(self) -> "FlowerProcess":
        wait_until(self._is_up, "Flower")
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.kill()
        self.process.wait()
        self._client.close()

    def worker_states(self) -> dict[str, bool]:
        """Whether each worker is online, as the page of workers says."""
        answer: dict[str, bool] = self._get("/api/workers", status="1")
        return answer

    def lengths(self) -> dict[str, int]:
        """How many jobs each tier's queue holds, as the broker page says."""
        lengths = {row["name"]: row["messages"] for row in self._get("/api/queues/length")["active_queues"]}
        return {tier: lengths[queue_name(self._settings.served_name, n)] for n, tier in enumerate(TIERS)}

    def tasks(self) -> dict[UUID, dict[str, Any]]:
        """All tasks that it knows, by id, with every field it shows."""
        return {UUID(task_id): task for task_id, task in self._get("/api/tasks").items()}

    def state(self, task_id: UUID) -> str | None:
        """The task's state; None when it knows no such task."""
        task = self.tasks().get(task_id)
        return None if task is None else task["state"]

    def _is_up(self) -> bool:
        assert self.process.poll() is None, self._log_path.read_text()
        try:
            return self._client.get("/healthcheck").status_code == 200
        except httpx.TransportError:
            return False

    def _get(self, path: str, **parameters: str) -> Any:
        response = self._client.get(path, params=parameters, timeout=30)
        response.raise_for_status()
        return response.json()
