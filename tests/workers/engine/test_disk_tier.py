"""Blocks in a directory: found again after a restart, bounded, and never believed when they are damaged."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from workers.engine import disk_tier
from workers.engine.block_file import NUM_HEADER_BYTES, BadBlockFile, block_path, read_block, write_block
from workers.engine.disk_tier import DiskTier
from workers.engine.eviction import PolicyName

LAYOUT = b"a model, an epoch, a dtype"
KEYS = [bytes([i]) * 32 for i in range(100)]
NUM_BYTES = 1000 + NUM_HEADER_BYTES  # of one file


class OpenTier(DiskTier):
    """A tier whose directory has been looked at."""

    open: list["OpenTier"] = []

    def __init__(
        self, directory: Path, *, num_files: int = 10, layout: bytes = LAYOUT, policy: PolicyName = "lru"
    ) -> None:
        super().__init__(directory, max_bytes=num_files * NUM_BYTES, layout=layout, policy=policy)
        self.open.append(self)
        assert self.wait_until_idle(30)

    def put(self, *keys: bytes) -> None:
        for key in keys:
            self.write(key, payload_of(key))
            assert self.wait_until_idle(30)

    def get(self, key: bytes) -> bytearray | None:
        """The payload, if there is one."""
        self.prefetch(key)
        self.wait(30)
        [(ended, is_good)] = self.poll()
        assert ended == key
        return self.take(key) if is_good else None


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    while OpenTier.open:
        OpenTier.open.pop().close()


def payload_of(key: bytes) -> bytes:
    return key[:1] * 1000


def test_a_written_block_is_read_back(tmp_path: Path) -> None:
    tier = OpenTier(tmp_path / "kv")
    assert not tier.has(KEYS[0])
    tier.put(KEYS[0])
    assert tier.has(KEYS[0])
    assert tier.get(KEYS[0]) == payload_of(KEYS[0])
    assert tier.poll() == []
    assert block_path(tier.directory, KEYS[0]).stat().st_mode & 0o077 == 0


def test_a_block_that_still_waits_to_be_written_is_read_from_memory(tmp_path: Path) -> None:
    tier = OpenTier(tmp_path)
    for key in KEYS[:8]:
        tier.write(key, payload_of(key))
        assert tier.has(key)
        assert tier.get(key) == payload_of(key)


def test_blocks_are_found_again_after_a_restart(tmp_path: Path) -> None:
    OpenTier(tmp_path).put(*KEYS[:3])
    OpenTier.open.pop().close()
    tier = OpenTier(tmp_path)
    assert tier.num_bytes == 3 * NUM_BYTES
    assert [tier.get(key) for key in KEYS[:3]] == [payload_of(key) for key in KEYS[:3]]


def test_what_waits_when_the_tier_closes_is_written(tmp_path: Path) -> None:
    tier = OpenTier(tmp_path)
    for key in KEYS[:5]:
        tier.write(key, payload_of(key))
    tier.close()
    assert all(map(OpenTier(tmp_path).has, KEYS[:5]))


def test_blocks_of_other_weights_and_other_files_are_left_alone(tmp_path: Path) -> None:
    OpenTier(tmp_path, layout=b"another").put(KEYS[0])
    notes = {"notes.txt": "mine", "notes.kv": "mine", f"{KEYS[1].hex()}.kv": "not a block", "ff.kv": ""}
    for name, text in notes.items():
        (tmp_path / name).write_text(text)
    (tmp_path / f"{KEYS[2].hex()}.kv").mkdir()
    tier = OpenTier(tmp_path)
    assert not any(map(tier.has, KEYS))
    assert tier.get(KEYS[0]) is None
    assert read_block(tmp_path, KEYS[0], layout=b"another") == payload_of(KEYS[0])
    assert {name: (tmp_path / name).read_text() for name in notes} == notes


@pytest.mark.parametrize("num_bytes", [0, 8, NUM_HEADER_BYTES - 1, NUM_HEADER_BYTES, NUM_BYTES - 1])
def test_a_torn_file_is_no_block(tmp_path: Path, num_bytes: int) -> None:
    write_block(tmp_path, KEYS[0], payload_of(KEYS[0]), layout=LAYOUT)
    os.truncate(block_path(tmp_path, KEYS[0]), num_bytes)
    tier = OpenTier(tmp_path)
    assert not tier.has(KEYS[0])
    assert tier.get(KEYS[0]) is None
    tier.put(KEYS[0])
    assert tier.get(KEYS[0]) == payload_of(KEYS[0])


@pytest.mark.parametrize("position", [0, 8, 40, 72, 80, NUM_HEADER_BYTES - 1, NUM_HEADER_BYTES, NUM_BYTES - 1])
def test_one_altered_bit_anywhere_is_found_and_the_file_removed(tmp_path: Path, position: int) -> None:
    tier = OpenTier(tmp_path)
    tier.put(KEYS[0])
    path = block_path(tmp_path, KEYS[0])
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)
    with pytest.raises(BadBlockFile):
        read_block(tmp_path, KEYS[0], layout=LAYOUT)
    assert tier.get(KEYS[0]) is None
    assert not tier.has(KEYS[0]) and not path.exists()
    assert (tier.num_bytes, tier.num_failures) == (0, 1)


def test_a_block_under_the_name_of_another_is_no_block(tmp_path: Path) -> None:
    write_block(tmp_path, KEYS[0], payload_of(KEYS[0]), layout=LAYOUT)
    block_path(tmp_path, KEYS[0]).rename(block_path(tmp_path, KEYS[1]))
    assert not OpenTier(tmp_path).has(KEYS[1])


def test_what_a_killed_writer_left_unfinished_is_removed(tmp_path: Path) -> None:
    unfinished = tmp_path / f"{KEYS[0].hex()}.1.unfinished"
    unfinished.write_bytes(b"half")
    OpenTier(tmp_path)
    assert not unfinished.exists()


def test_the_bytes_are_bounded_and_the_least_recently_used_go(tmp_path: Path) -> None:
    tier = OpenTier(tmp_path, num_files=3)
    tier.put(*KEYS[:3])
    assert tier.get(KEYS[0])
    tier.put(KEYS[3])
    assert [tier.has(key) for key in KEYS[:4]] == [True, False, True, True]
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == tier.num_bytes == 3 * NUM_BYTES


def test_the_frequency_policy_keeps_what_is_read_often(tmp_path: Path) -> None:
    tier = OpenTier(tmp_path, num_files=3, policy="frequency")
    tier.put(KEYS[0])
    assert tier.get(KEYS[0]) and tier.get(KEYS[0])
    tier.put(*KEYS[1:5])
    assert [tier.has(key) for key in KEYS[:5]] == [True, False, False, True, True]


def test_a_smaller_bound_holds_from_the_start(tmp_path: Path) -> None:
    OpenTier(tmp_path).put(*KEYS[:5])
    for i, key in enumerate(KEYS[:5]):
        os.utime(block_path(tmp_path, key), (i, i))
    tier = OpenTier(tmp_path, num_files=2)
    assert [tier.has(key) for key in KEYS[:5]] == [False, False, False, True, True]
    assert len(list(tmp_path.iterdir())) == 2


def test_a_block_larger_than_the_bound_is_not_written(tmp_path: Path) -> None:
    tier = OpenTier(tmp_path, num_files=2)
    tier.put(KEYS[0])
    tier.write(KEYS[1], bytes(3 * NUM_BYTES))
    assert tier.wait_until_idle(30)
    assert (tier.has(KEYS[0]), tier.has(KEYS[1])) == (True, False)


def test_a_revoked_block_is_gone(tmp_path: Path) -> None:
    tier = OpenTier(tmp_path)
    tier.put(KEYS[0])
    tier.revoke(KEYS[0])
    assert tier.wait_until_idle(30)
    assert not tier.has(KEYS[0]) and not list(tmp_path.iterdir())
    tier.put(KEYS[0])
    assert tier.get(KEYS[0]) == payload_of(KEYS[0])


@pytest.mark.parametrize("breaks", ["before", "after"])
def test_a_directory_that_cannot_be_used_is_a_tier_without_blocks(tmp_path: Path, breaks: str) -> None:
    directory = tmp_path / "kv"
    if breaks == "before":
        directory.write_text("a file")
    tier = OpenTier(directory)
    if breaks == "after":
        directory.rmdir()
    tier.put(KEYS[0])
    assert not tier.has(KEYS[0])
    assert tier.get(KEYS[0]) is None
    assert tier.num_failures >= 2


def test_a_file_that_goes_missing_is_a_miss(tmp_path: Path) -> None:
    tier = OpenTier(tmp_path)
    tier.put(KEYS[0])
    block_path(tmp_path, KEYS[0]).unlink()
    assert tier.get(KEYS[0]) is None
    assert not tier.has(KEYS[0])


def test_nobody_waits_for_ever_for_a_disk_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tier = OpenTier(tmp_path)
    tier.put(KEYS[0])
    path = block_path(tmp_path, KEYS[0])
    path.unlink()
    os.mkfifo(path)  # to open it blocks until somebody writes to it
    monkeypatch.setattr(disk_tier, "PATIENCE_SECONDS", 0.0)
    tier.prefetch(KEYS[0])
    ended: list[tuple[bytes, bool]] = []
    while not ended:
        ended = tier.poll()
    assert ended == [(KEYS[0], False)]
    with path.open("wb"):
        pass
    assert tier.wait_until_idle(30)
    assert tier.poll() == []  # what comes too late is nobody's


def test_what_the_disk_is_too_slow_for_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tier = OpenTier(tmp_path)
    monkeypatch.setattr(disk_tier, "MAX_WAITING_WRITES", 0)
    tier.put(KEYS[0])
    assert not tier.has(KEYS[0])
