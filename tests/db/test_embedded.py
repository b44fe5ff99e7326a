"""The embedded servers' data: made once and whole, found again, and refused when it is another version's."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from db import embedded
from db.settings import MAX_SOCKET_PATH, Settings
from tests.e2e.instance import wait_until


@pytest.fixture
def directory() -> Iterator[Path]:
    """A short one, with room for socket paths."""
    directory = Path(tempfile.mkdtemp(prefix="hr-"))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with an empty database, to be copied."""
    data_dir = tmp_path_factory.mktemp("cluster")
    embedded.init_postgres(data_dir)
    return data_dir


def start(data_dir: Path, socket_dir: Path) -> "subprocess.Popen[bytes]":
    embedded.make_socket_dir(socket_dir)
    process = subprocess.Popen(embedded.postgres_argv(data_dir, socket_dir), stderr=subprocess.DEVNULL)
    wait_until(lambda: process.poll() is not None or embedded.is_postgres_ready(url(socket_dir)))
    return process


def stop(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 0


def url(socket_dir: Path) -> str:
    return f"postgresql+psycopg://headrace@/headrace?host={socket_dir}"


def test_a_first_start_that_was_killed_is_done_again(directory: Path) -> None:
    (directory / "postgres.unfinished").mkdir()
    (directory / "postgres.unfinished" / "PG_VERSION").write_text("18\n")
    embedded.init_postgres(directory)
    stop(start(directory, directory / "s"))
    assert not (directory / "postgres.unfinished").exists()


def test_a_commit_outlives_a_killed_server(directory: Path, cluster: Path) -> None:
    shutil.copytree(cluster, directory, dirs_exist_ok=True)
    server = start(directory, directory / "s")
    with psycopg.connect(url(directory / "s").replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 7 AS value")
    server.kill()
    server.wait()
    embedded.init_postgres(directory)
    server = start(directory, directory / "s")
    with psycopg.connect(url(directory / "s").replace("+psycopg", "")) as connection:
        assert connection.execute("SELECT value FROM kept").fetchone() == (7,)
    stop(server)


def test_a_lock_whose_process_id_is_another_programs_by_now_is_dropped(directory: Path, cluster: Path) -> None:
    shutil.copytree(cluster, directory, dirs_exist_ok=True)
    (directory / "postgres" / "postmaster.pid").write_text(f"{os.getppid()}\n{directory}/postgres\n")
    embedded.init_postgres(directory)
    stop(start(directory, directory / "s"))


def test_the_lock_of_a_living_server_stays(directory: Path, cluster: Path) -> None:
    shutil.copytree(cluster, directory, dirs_exist_ok=True)
    server = start(directory, directory / "s")
    embedded.init_postgres(directory)
    assert (directory / "postgres" / "postmaster.pid").exists()
    second = subprocess.run(
        embedded.postgres_argv(directory, directory / "s"), capture_output=True, text=True, timeout=20, check=False
    )
    assert "already exists" in second.stderr
    stop(server)


def test_data_of_another_version_is_refused(directory: Path) -> None:
    embedded.check_data_version(directory)
    embedded.check_data_version(directory)
    (directory / "format").write_text("0\n")
    with pytest.raises(embedded.WrongDataVersion, match="format 0; this one needs format 1"):
        embedded.check_data_version(directory)


def test_a_long_or_odd_data_directory_gets_its_sockets_elsewhere(directory: Path) -> None:
    for data_dir in (directory / ("x" * 100), directory / "a b", directory / "50%"):
        socket = Settings(data_dir=data_dir).socket_dir / ".s.PGSQL.5432.lock"
        assert len(os.fsencode(socket)) <= MAX_SOCKET_PATH
        assert " " not in str(socket) and "%" not in str(socket)
    assert Settings(data_dir=directory / "plain").socket_dir == (directory / "plain" / "run").resolve()


def test_a_socket_directory_that_is_a_link_is_refused(directory: Path) -> None:
    (directory / "real").mkdir()
    (directory / "link").symlink_to(directory / "real")
    with pytest.raises(PermissionError, match="another user"):
        embedded.make_socket_dir(directory / "link")
