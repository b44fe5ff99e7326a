"""`headrace batches` as a real process."""

import signal
import subprocess
from pathlib import Path

from sqlalchemy import Engine, text

from db.settings import Settings
from tests.chaos.process import beside_python
from tests.servers import environment
from tests.workers.worker_process import PATIENCE_SECONDS, wait_until


def num_locks(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.execute(text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")).scalar_one())


def test_it_takes_the_lock_shows_that_it_lives_and_ends_cleanly(
    settings: Settings, engine: Engine, tmp_path: Path
) -> None:
    with (tmp_path / "batches.log").open("wb") as log:
        argv = [beside_python("headrace"), "batches"]
        process = subprocess.Popen(argv, env=environment(settings), stdout=log, stderr=log)
    try:
        wait_until(lambda: num_locks(engine) == 1, "the lock")
        assert (tmp_path / "run" / "batches-alive").exists()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=PATIENCE_SECONDS) == 0
    finally:
        process.kill()
        process.wait()
    wait_until(lambda: num_locks(engine) == 0, "the lock to be free")
    assert "Traceback" not in (tmp_path / "batches.log").read_text()
