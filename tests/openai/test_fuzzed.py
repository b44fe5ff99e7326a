"""What the API answers to requests that are drawn from its own reference, with a real worker behind it.

HEADRACE_FUZZ_SECONDS=600 HEADRACE_FUZZ_SEED=2 make test PYTEST_ARGS=tests/openai/test_fuzzed.py
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from db.settings import Settings
from tests.chat_templates import QWEN
from tests.servers import Servers
from tests.workers.service import Service, running_service
from tests.workers.worker_process import WorkerProcess, make_settings

SECONDS = int(os.environ.get("HEADRACE_FUZZ_SECONDS", "60"))
SEED = os.environ.get("HEADRACE_FUZZ_SEED", "1")
CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance")


@pytest.fixture
def service(servers: Servers, settings: Settings, tmp_path: Path) -> Iterator[Service]:
    """On emptied stores: of a model that tests before left behind the reference's examples would wait for ever."""
    settings = make_settings(servers, tmp_path, dtype="float32", chat_template=QWEN)
    with running_service(settings) as service, WorkerProcess(settings, tmp_path / "worker.log"):
        [job_id] = service.jobs.submit([[5, 80, 33, 7]], max_tokens=1)
        service.jobs.wait_ended([job_id])
        yield service


@pytest.mark.timeout(SECONDS + 240)
def test_no_request_finds_a_server_error_or_an_answer_that_the_reference_does_not_have(service: Service) -> None:
    command = [
        *(str(Path(sys.executable).with_name("schemathesis")), "run", f"{service.url}/openapi.json"),
        *("--header", f"Authorization: Bearer {service.key}", "--seed", SEED, "--max-time", str(SECONDS)),
        *("--checks", ",".join(CHECKS), "--phases", "examples,coverage,fuzzing", "--request-timeout", "30"),
    ]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-20_000:] + run.stderr[-2_000:]
    assert "Tested:" in run.stdout
