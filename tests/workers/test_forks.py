"""The engine's process stays one: CUDA does not survive a fork, nor does a lock that another thread holds."""

from pathlib import Path

from db.broker import make_app
from db.sampling import Sampling, StructuredOutput
from tests.servers import Servers
from tests.workers.worker_process import PATIENCE_SECONDS, Jobs, WorkerProcess, make_settings, prompts

FORKED = "this process forks"  # says `fork_watching_app`
CHOICE = StructuredOutput(kind="choice", text='["yes", "no"]')


def test_an_engine_worker_never_forks_from_its_start_to_its_end(servers: Servers, tmp_path: Path) -> None:
    settings = make_settings(servers, tmp_path)
    jobs = Jobs(settings)
    with WorkerProcess(settings, tmp_path / "worker.log", app="tests.workers.fork_watching_app") as worker:
        plain = jobs.submit(prompts(8), max_tokens=20)
        held_to_a_grammar = jobs.submit(prompts(2), sampling=Sampling(structured_output=CHOICE))
        rows = jobs.wait_ended([*plain, *held_to_a_grammar])
        assert [row.status for row in rows] == ["succeeded"] * 10
        with make_app(settings) as app:
            assert app.control.inspect(timeout=PATIENCE_SECONDS, limit=1).stats()
        assert worker.terminate() == 0
        assert FORKED not in worker.log
    jobs.close()
