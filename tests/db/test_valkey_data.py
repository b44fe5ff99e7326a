"""The embedded Valkey starts whatever a crash or a full disk has left of its files, with what it held at one moment."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import redis

from db import embedded
from tests.e2e.instance import HEADRACE, wait_until
from tests.servers import Server

NUM_OLD, NUM_NEW = 50, 40  # values in the base file, and in the one of what happened since


class Data:
    """The files of a killed Valkey that held the lists `old` and `new`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.url = f"unix://{directory}/s/valkey.sock"
        embedded.make_socket_dir(directory / "s")
        self.server = Server(
            embedded.valkey_argv(directory, directory / "s"),
            partial(embedded.init_valkey, directory),
            lambda: embedded.is_redis_ready(self.url),
            signal.SIGTERM,
            directory / "valkey.log",
        )

    def write(self) -> None:
        """Start, fill and kill it."""
        self.server.start()
        with redis.Redis.from_url(self.url) as client:
            client.rpush("old", *range(NUM_OLD))
            client.bgrewriteaof()
            wait_until(lambda: self.base.name.startswith("appendonly.aof.2"))
            wait_until(lambda: client.info("persistence")["aof_rewrite_in_progress"] == 0)
            for value in range(NUM_NEW):
                client.rpush("new", f"value-{value}")
        self.server.kill()

    def lengths(self) -> tuple[int, int]:
        """How many values of each list there are after the next start."""
        self.server.start()
        with redis.Redis.from_url(self.url) as client:
            assert client.rpush("written", 1) == 1
            values = [value.decode() for value in client.lrange("new", 0, -1)]
            assert values == [f"value-{index}" for index in range(len(values))], "a gap"
            return client.llen("old"), len(values)

    @property
    def files(self) -> Path:
        return self.directory / "valkey" / "appendonlydir"

    @property
    def set_aside(self) -> Path:
        return self.directory / "valkey" / "appendonlydir.damaged"

    @property
    def manifest(self) -> Path:
        return self.files / "appendonly.aof.manifest"

    @property
    def base(self) -> Path:
        return max(self.files.glob("*.base.rdb"))

    @property
    def increment(self) -> Path:
        return max(self.files.glob("*.incr.aof"))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Undamaged files, to be copied."""
    directory = Path(tempfile.mkdtemp(prefix="hr-"))
    Data(directory).write()
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def data(written: Path) -> Iterator[Data]:
    directory = Path(tempfile.mkdtemp(prefix="hr-"))
    shutil.copytree(written / "valkey", directory / "valkey")
    data = Data(directory)
    yield data
    if data.server.process is not None and data.server.process.poll() is None:
        data.server.kill()
    shutil.rmtree(directory)


def cut(path: Path, num_bytes: int) -> None:
    """Leave out the end."""
    path.write_bytes(path.read_bytes()[:-num_bytes])


def cut_out_the_middle(path: Path) -> None:
    """As a short write does, after which the rest was written all the same."""
    content = path.read_bytes()
    middle = content.index(b"value-20") + 3
    path.write_bytes(content[:middle] + content[middle + 17 :])


def add(path: Path, content: bytes) -> None:
    path.write_bytes(path.read_bytes() + content)


def flip(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-12] + bytes([content[-12] ^ 0xFF]) + content[-11:])


@pytest.mark.parametrize(
    ("damage", "num_new"),
    [
        pytest.param(lambda data: None, 40, id="none"),
        pytest.param(lambda data: cut(data.increment, 5), 39, id="last command cut"),
        pytest.param(lambda data: cut_out_the_middle(data.increment), 20, id="short write in the middle"),
        pytest.param(lambda data: add(data.increment, b"\xfe\x00garbage" * 40), 40, id="garbage at the end"),
        pytest.param(lambda data: add(data.increment, bytes(4096)), 40, id="zeros at the end"),
        pytest.param(lambda data: data.increment.write_bytes(b"garbage"), 0, id="nothing but garbage"),
        pytest.param(lambda data: data.increment.write_bytes(b""), 0, id="empty"),
    ],
)
def test_all_before_the_damage_is_kept(data: Data, damage: Callable[[Data], object], num_new: int) -> None:
    damage(data)
    assert data.lengths() == (NUM_OLD, num_new)
    assert not data.set_aside.exists()


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: cut(data.base, 20), id="base cut"),
        pytest.param(lambda data: flip(data.base), id="base flipped"),
        pytest.param(lambda data: data.base.write_bytes(b""), id="base empty"),
        pytest.param(lambda data: data.base.unlink(), id="base missing"),
        pytest.param(lambda data: data.increment.unlink(), id="increment missing"),
        pytest.param(lambda data: cut(data.manifest, 20), id="manifest cut"),
        pytest.param(lambda data: data.manifest.write_bytes(b""), id="manifest empty"),
        pytest.param(lambda data: data.manifest.write_bytes(bytes(80)), id="manifest zeros"),
        pytest.param(lambda data: data.manifest.write_bytes(b"\xff\n"), id="manifest garbage"),
        pytest.param(lambda data: data.manifest.unlink(), id="manifest missing"),
    ],
)
def test_files_that_cannot_be_mended_are_set_aside_and_it_starts_empty(
    data: Data, damage: Callable[[Data], object], caplog: pytest.LogCaptureFixture
) -> None:
    damage(data)
    assert data.lengths() == (0, 0)
    assert data.set_aside.is_dir()
    assert "set aside" in caplog.text
    data.server.kill()
    data.server.start()  # what it has written since is whole
    with redis.Redis.from_url(data.url) as client:
        assert client.llen("written") == 1


def test_a_cut_before_the_last_file_leaves_no_gap(data: Data) -> None:
    """A rewrite that was killed leaves two files of what happened; the second alone would continue nothing."""
    second = data.files / "appendonly.aof.9.incr.aof"
    second.write_bytes(b"*3\r\n$5\r\nRPUSH\r\n$3\r\nnew\r\n$8\r\nvalue-40\r\n")
    add(data.manifest, f"file {second.name} seq 9 type i\n".encode())
    assert data.lengths() == (NUM_OLD, NUM_NEW + 1)
    data.server.kill()
    cut(data.files / "appendonly.aof.2.incr.aof", 5)
    assert data.lengths() == (0, 0)


def test_only_the_last_set_aside_files_are_kept(data: Data) -> None:
    for _ in range(2):
        data.base.unlink()
        data.lengths()
        data.server.kill()
    assert len(list(data.set_aside.parent.glob("*.damaged*"))) == 1
    assert not list(data.set_aside.glob("*.2.*")), "the first"


def test_the_command_mends_before_it_starts(data: Data) -> None:
    cut_out_the_middle(data.increment)
    environment = os.environ | {"HEADRACE_DATA_DIR": str(data.directory), "HEADRACE_MODEL": "none"}
    url = f"unix://{data.directory}/run/valkey.sock"
    embedded.make_socket_dir(data.directory / "run")
    process = subprocess.Popen([HEADRACE, "valkey"], env=environment, stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: process.poll() is not None or embedded.is_redis_ready(url))
        with redis.Redis.from_url(url) as client:
            assert client.llen("new") == 20
    finally:
        process.kill()
        process.wait()
