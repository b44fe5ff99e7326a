"""The life of `headrace up` from its checks to the last process gone."""

import os
import shutil
import sys
import time
from pathlib import Path

from pydantic import ValidationError

from api.up import checks
from api.up.checks import AlreadyRunning, Refused
from api.up.instance import Instance
from api.up.programs import environment, supervisord_config
from api.up.screen import Screen
from api.up.signals import StopRequested, StopSignals
from api.up.supervisord import Supervisord, SupervisordGone
from db.settings import Settings, get_settings

LAST_SECONDS = 10  # for embedded servers to stop after supervisord was killed


def run() -> int:
    """Run until stopped; the exit code. 0 when it was stopped or runs already, 1 when it cannot run."""
    screen = Screen()
    try:
        settings = _read_settings()
        run_dir = checks.make_data_dir(settings)
        with checks.lock(run_dir, checks.api_url(settings)):
            checks.check_data(settings)
            checks.check_space(settings)
            checks.check_model(settings)
            checks.check_files(settings)
            checks.check_ports(settings)
            checks.make_socket_dir(settings)
            _supervise(settings, run_dir, screen)
    except AlreadyRunning as running:
        screen.say(f"already running at {running}")
    except (Refused, SupervisordGone) as error:
        screen.refuse(str(error))
        return 1
    return 0


def _supervise(settings: Settings, run_dir: Path, screen: Screen) -> None:
    socket = settings.socket_dir / "supervisor.sock"
    for left in (socket, *run_dir.glob("*.pid")):  # by a run that was killed
        left.unlink(missing_ok=True)
    (run_dir / "supervisord.conf").write_text(supervisord_config(settings))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    variables = {**os.environ, **environment(settings), "PATH": path, "PYTHONUNBUFFERED": "1"}
    signals = StopSignals()
    try:
        with Supervisord(run_dir, socket, variables) as supervisord:
            _run_instance(Instance(settings, run_dir, supervisord, screen, signals))
    except StopRequested:
        screen.say("Stopped at once. Unfinished jobs go on at the next start.")
    finally:
        signals.ignore()
        screen.stop_waiting()
        _see_off(run_dir)
        socket.unlink(missing_ok=True)
        if settings.socket_dir != run_dir:
            shutil.rmtree(settings.socket_dir, ignore_errors=True)


def _run_instance(instance: Instance) -> None:
    try:
        instance.start()
        instance.watch()
    except StopRequested:
        instance.signals.heard()
        instance.stop()
        instance.screen.say("Stopped.")
    except Refused:
        instance.stop()
        raise


def _read_settings() -> Settings:
    try:
        return get_settings()
    except ValidationError as error:
        first = error.errors()[0]
        raise Refused(f"HEADRACE_{'_'.join(map(str, first['loc'])).upper()}: {first['msg']}") from error


def _see_off(run_dir: Path) -> None:
    """Wait until none of the processes is left, then remove their pid files."""
    deadline = time.monotonic() + LAST_SECONDS
    for pid_file in run_dir.glob("*.pid"):
        while _is_alive(pid_file.read_text().strip()) and time.monotonic() < deadline:
            time.sleep(0.02)
        pid_file.unlink(missing_ok=True)


def _is_alive(pid: str) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"
