"""What is built once, by however many threads or processes ask."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from workers.models.cache import build_once


def test_of_many_who_ask_at_once_one_builds(tmp_path: Path) -> None:
    barrier, built = Barrier(4), []

    def build(path: Path) -> None:
        built.append(path)
        path.write_text("made")

    def ask() -> str:
        barrier.wait()
        return build_once(tmp_path / "cache" / "file", build).read_text()

    with ThreadPoolExecutor(4) as pool:
        assert [future.result() for future in [pool.submit(ask) for _ in range(4)]] == ["made"] * 4
    assert len(built) == 1


def test_failed_build_leaves_no_target_and_is_tried_again(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        path.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        build_once(tmp_path / "file", fail)
    assert not (tmp_path / "file").exists()
    assert build_once(tmp_path / "file", Path.touch).exists()
