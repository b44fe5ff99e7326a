"""What `headrace up` refuses before it starts anything, and the lock that makes it alone on its data directory."""

import fcntl
import ipaddress
import os
import re
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from db import embedded
from db.file_store import FileStore
from db.settings import Settings

LEAST_FREE_BYTES = 200 * 2**20  # what Postgres and Valkey write before the first job; without it they die one by one
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


class Refused(Exception):
    """It cannot start as configured; the message is one line that says why, and the way out."""


class AlreadyRunning(Exception):
    """Another `headrace up` runs on this data directory; the message is its URL."""


@contextmanager
def lock(run_dir: Path, url: str) -> Iterator[None]:
    """The right to run on a data directory, until left or until this process dies; raises AlreadyRunning."""
    with open(run_dir / "up.lock", "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise AlreadyRunning(file.read().strip()) from None
        file.truncate(0)
        file.write(url)
        file.flush()
        yield


def api_url(settings: Settings) -> str:
    """The API's address as a browser on this machine uses it."""
    return f"http://{_reachable(settings.host)}:{settings.port}"


def flower_host(settings: Settings) -> str:
    """The address that Flower listens on: without a password, loopback only."""
    return settings.host if settings.flower_basic_auth else "127.0.0.1"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def flower_url(settings: Settings) -> str:
    """Flower's address as a browser on this machine uses it."""
    return f"http://{_reachable(flower_host(settings))}:{settings.flower_port}"


def make_data_dir(settings: Settings) -> Path:
    """The directory of logs and pid files, made with all above it; raises Refused."""
    run_dir = settings.data_dir.resolve() / "run"
    try:
        settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        run_dir.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise Refused(f"cannot use data directory {settings.data_dir}: {error}") from error
    return run_dir


def check_space(settings: Settings) -> None:
    """Raise Refused when the disk of the data directory is as good as full."""
    free = shutil.disk_usage(settings.data_dir).free
    if free < LEAST_FREE_BYTES:
        is_free, are_needed = (f"{size // 2**20:,} MB" for size in (free, LEAST_FREE_BYTES))
        raise Refused(
            f"only {is_free} are free on the disk of {settings.data_dir}, and {are_needed} are needed: "
            "free some, or set HEADRACE_DATA_DIR to a directory elsewhere"
        )


def make_socket_dir(settings: Settings) -> None:
    """Make the directory of the sockets, which may lie elsewhere; raises Refused when it is somebody else's."""
    try:
        embedded.make_socket_dir(settings.socket_dir)
    except OSError as error:
        raise Refused(str(error)) from error


def check_data(settings: Settings) -> None:
    """Raise Refused when the data directory was made by another version."""
    if settings.database_url is None or settings.redis_url is None:
        try:
            embedded.check_data_version(settings.data_dir.resolve())
        except (embedded.WrongDataVersion, embedded.EmbeddedMissing) as error:
            raise Refused(str(error)) from error


def check_ports(settings: Settings) -> None:
    """Raise Refused when somebody else listens where we are to listen."""
    if settings.port == settings.flower_port:
        raise Refused(f"HEADRACE_PORT and HEADRACE_FLOWER_PORT are both {settings.port}: set one to another port")
    _check_port(settings.host, settings.port, "HEADRACE_PORT")
    _check_port(flower_host(settings), settings.flower_port, "HEADRACE_FLOWER_PORT")


def check_files(settings: Settings) -> None:
    """Raise Refused when HEADRACE_FILES_URL is of a kind that is not known here. Whether it answers, uploads tell."""
    try:
        FileStore(settings.resolved_files_url)
    except (ImportError, ValueError) as error:
        raise Refused(f"HEADRACE_FILES_URL: {error}") from error


def check_model(settings: Settings) -> None:
    """Raise Refused when HEADRACE_MODEL can be no model. Whether a hub id exists, the engine worker finds out."""
    if settings.model is None:
        return
    path = Path(settings.model).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise Refused(f"HEADRACE_MODEL: {path} has no config.json; name the directory of a model")
    elif path.is_file():
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise Refused(f"HEADRACE_MODEL: {path} is not a GGUF file")
    elif not _may_be_hub_id(settings.model):
        raise Refused(f"HEADRACE_MODEL: {path} does not exist; name a directory, a GGUF file or a hub id (owner/name)")


def _may_be_hub_id(model: str) -> bool:
    is_path = model.endswith(".gguf") or Path(model).parent.is_dir() and Path(model).parent != Path(".")
    return HUB_ID.fullmatch(model) is not None and not is_path


def _check_port(host: str, port: int, variable: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the servers do: no wait after a restart
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            reason = os.strerror(error.errno).lower() if error.errno else str(error)
            raise Refused(f"cannot listen on {host} port {port} ({reason}): set {variable} to another port") from error


def _reachable(host: str) -> str:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.is_unspecified:
        return "127.0.0.1" if address.version == 4 else "[::1]"
    return f"[{host}]" if address.version == 6 else host
