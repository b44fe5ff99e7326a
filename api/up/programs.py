"""The processes that `headrace up` runs, and supervisord's configuration of them.

Each is `headrace <name>`, so what runs here is what runs in production. The configuration holds no path of the user's:
supervisord would take a `;` or `%` in one for its own. It runs in `<data_dir>/run` and finds the rest in the
environment.
"""

from dataclasses import dataclass
from pathlib import Path

from db.settings import Settings

EMBEDDED = ("postgres", "valkey")
MIN_UPTIME_SECONDS = 10  # a process that dies sooner is started again with a growing pause


@dataclass(frozen=True)
class Program:
    """One process. Those of the highest stage stop first, together."""

    name: str
    stop_stage: int
    stop_signal: str = "TERM"
    stop_seconds: float = 10  # then it is killed


def programs(settings: Settings) -> list[Program]:
    """What this instance runs. Servers that the settings point at elsewhere are not among them."""
    embedded = [
        *([Program("postgres", stop_stage=0, stop_signal="INT")] if settings.database_url is None else []),
        *([Program("valkey", stop_stage=0)] if settings.redis_url is None else []),
    ]
    return [
        *embedded,
        # The API outlives the worker: clients see their tokens to the end of the drain.
        Program("api", stop_stage=1),
        Program("tasks", stop_stage=1, stop_seconds=settings.webhook_timeout_seconds + 5),
        Program("batches", stop_stage=2),
        Program("worker", stop_stage=2, stop_seconds=settings.drain_seconds + 45),
        Program("beat", stop_stage=2),
        Program("flower", stop_stage=2),
    ]


def environment(settings: Settings) -> dict[str, str]:
    """The settings as variables that mean the same in every directory, with the servers' addresses filled in."""
    values = settings.model_dump(exclude_none=True, exclude={"api_key"})
    values["data_dir"] = settings.data_dir.resolve()
    values["database_url"] = settings.resolved_database_url
    values["redis_url"] = settings.resolved_redis_url
    for name in ("model", "chat_template"):
        if name in values and _is_path(values[name]):
            values[name] = Path(values[name]).expanduser().resolve()
    return {f"HEADRACE_{name.upper()}": str(value) for name, value in values.items()}


def supervisord_config(settings: Settings) -> str:
    """The text of supervisord.conf. No program starts by itself: each waits for what it needs."""
    sections = [_SUPERVISORD.format(socket=settings.socket_dir / "supervisor.sock")]
    sections += [_PROGRAM.format(program=program, min_uptime=MIN_UPTIME_SECONDS) for program in programs(settings)]
    return "\n".join(sections)


def _is_path(value: str) -> bool:
    try:
        return Path(value).expanduser().exists()
    except OSError:  # a template's text is too long for a name
        return False


_SUPERVISORD = """\
[supervisord]
nodaemon=true
silent=true
pidfile=supervisord.pid
logfile=supervisord.log
logfile_backups=1

[unix_http_server]
file={socket}
chmod=0700

[rpcinterface:supervisor]
supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface
"""

# A process that supervisord left behind would hold the port and the data: the kernel kills it with its parent.
_PROGRAM = """\
[program:{program.name}]
command=sh -c 'echo $$ > {program.name}.pid; exec setpriv --pdeathsig KILL headrace {program.name}'
autostart=false
autorestart=true
startsecs={min_uptime}
startretries=1000000
stopsignal={program.stop_signal}
stopwaitsecs={program.stop_seconds:.0f}
stopasgroup=false
killasgroup=true
redirect_stderr=true
stdout_logfile={program.name}.log
stdout_logfile_maxbytes=20MB
stdout_logfile_backups=1
"""
