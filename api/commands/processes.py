"""The commands that are processes: `up` runs them all on one machine; the others are what a scheduler runs one by one.

Those that are Celery's or another program's are started by exec, so that signals reach them directly.
"""

import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

PROCESSES = "Processes"  # heading in `headrace --help`


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    for command in (up, api, worker, tasks, batches, beat, flower, migrate):
        app.command(rich_help_panel=PROCESSES)(command)
    for command in (postgres, valkey):
        app.command(hidden=True)(command)


def up() -> None:
    """Run everything on this machine, and start again what dies. Ctrl-C drains and stops it.

    Example: HEADRACE_MODEL=./models/qwen3-0.6b HEADRACE_PORT=9000 headrace up
    """
    from api.up.run import run

    raise typer.Exit(run())


def api(host: Annotated[str | None, typer.Option(help="Address to listen on; default HEADRACE_HOST.")] = None) -> None:
    """Serve the HTTP API on HEADRACE_HOST and HEADRACE_PORT.

    Example: headrace api --host 0.0.0.0
    """
    import gc

    from api.app import create_app
    from api.server import serve
    from db.logs import log_to_stderr
    from db.settings import get_settings

    settings = get_settings()
    log_to_stderr(settings.log_level)
    app = create_app(settings)
    gc.freeze()  # modules and routes never go; a full collection that walks them holds up every request for 50 ms
    serve(app, host=host or settings.host, port=settings.port)


def worker() -> None:
    """Load the model and run jobs: one for each GPU, or one for a machine without.

    Example: HEADRACE_MODEL=Qwen/Qwen3-0.6B headrace worker
    """
    from db.broker import engine_worker_argv
    from db.settings import get_settings

    _exec(engine_worker_argv(get_settings()))


def tasks() -> None:
    """Send webhooks, sweep, and keep house.

    Example: headrace tasks
    """
    from db.broker import tasks_worker_argv
    from db.settings import get_settings

    _exec(tasks_worker_argv(get_settings()))


def batches() -> None:
    """Run batches: submit the lines of uploaded files, and write down what becomes of them. More than one stand by.

    Example: headrace batches
    """
    from api.batches.process import run_batches
    from db.logs import log_to_stderr
    from db.settings import get_settings

    settings = get_settings()
    log_to_stderr(settings.log_level)
    run_batches(settings)


def beat() -> None:
    """Say what is due, to the tasks workers. Run one.

    Example: headrace beat
    """
    from db.settings import get_settings

    settings = get_settings()
    directory = settings.data_dir / "run"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    schedule = directory / "beat-schedule"
    # At INFO it would tell of the task that it sends every second.
    level = "WARNING" if settings.log_level == "INFO" else settings.log_level
    _exec(["celery", "-A", "db.broker", "beat", "--pidfile", "", "--schedule", str(schedule), "--loglevel", level])


def flower(host: Annotated[str | None, typer.Option(help="Address to listen on; default loopback.")] = None) -> None:
    """Serve the Flower dashboard on HEADRACE_FLOWER_PORT. Off loopback it needs HEADRACE_FLOWER_BASIC_AUTH.

    Example: HEADRACE_FLOWER_BASIC_AUTH=admin:secret headrace flower --host 0.0.0.0
    """
    from api.up.checks import flower_host, is_loopback
    from db.settings import get_settings

    settings = get_settings()
    host = host or flower_host(settings)
    argv = ["celery", "-A", "db.broker", "flower", f"--address={host}", f"--port={settings.flower_port}"]
    argv += ["--max-tasks=10000", "--loglevel", settings.log_level]
    if settings.flower_basic_auth:
        # By the environment: arguments show in the process list.
        os.environ["FLOWER_BASIC_AUTH"] = settings.flower_basic_auth
    elif is_loopback(host):
        os.environ["FLOWER_UNAUTHENTICATED_API"] = "1"
    else:
        _refuse(f"Flower on {host} needs a password: set HEADRACE_FLOWER_BASIC_AUTH to user:password")
    _exec(argv)


def migrate() -> None:
    """Bring the database's tables to this version and, where there is no API key yet, make the first.

    Example: HEADRACE_DATABASE_URL=postgresql://user:password@host/headrace headrace migrate
    """
    from api.up.checks import Refused
    from api.up.database import Database
    from db.settings import get_settings

    try:
        with Database(get_settings()) as database:
            database.prepare()
    except Refused as refused:
        _refuse(str(refused))


def postgres() -> None:
    """Run the embedded PostgreSQL of the data directory."""
    from db import embedded
    from db.settings import get_settings

    settings = get_settings()
    data_dir = settings.data_dir.resolve()
    embedded.init_postgres(data_dir)
    _exec(embedded.postgres_argv(data_dir, settings.socket_dir))


def valkey() -> None:
    """Run the embedded Valkey of the data directory."""
    from db import embedded
    from db.logs import log_to_stderr
    from db.settings import get_settings

    settings = get_settings()
    log_to_stderr(settings.log_level)
    data_dir = settings.data_dir.resolve()
    embedded.init_valkey(data_dir)
    _exec(embedded.valkey_argv(data_dir, settings.socket_dir))


def _exec(argv: list[str]) -> NoReturn:
    """Become the program `argv[0]`: the one beside this Python, or else the one on the PATH."""
    beside = Path(sys.executable).with_name(argv[0])
    program = str(beside) if beside.exists() else argv[0]
    os.execvp(program, [program, *argv[1:]])


def _refuse(reason: str) -> NoReturn:
    print(f"headrace: {reason}", file=sys.stderr)
    raise typer.Exit(1)
