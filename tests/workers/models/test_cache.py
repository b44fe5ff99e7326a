"""What is built once, by however many threads or processes ask."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Event

import pytest

from workers.models.cache import build_once, hold, remove, targets_in


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
    assert [path.name for path in tmp_path.iterdir()] == ["file.lock"]
    assert build_once(tmp_path / "file", Path.touch).exists()


def build_directory(path: Path) -> None:
    path.mkdir()
    (path / "content").write_text("made")


def test_target_stays_as_long_as_somebody_holds_it(tmp_path: Path) -> None:
    target = tmp_path / "cache" / "target"
    first, second = hold(target, build_directory), hold(target, build_directory)
    assert not remove(target)
    del first
    assert not remove(target) and (second.path / "content").read_text() == "made"
    del second
    assert remove(target)
    assert list(target.parent.iterdir()) == []


def test_target_held_by_another_process_stays_until_that_ends(tmp_path: Path) -> None:
    target = tmp_path / "target"
    program = (
        "import sys; from pathlib import Path; from workers.models.cache import hold\n"
        "held = hold(Path(sys.argv[1]), Path.touch); print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, target]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"held\n"
        assert not remove(target)
        other.kill()
        other.wait()
        assert remove(target) and not target.exists()


def test_target_that_is_being_built_is_not_removed(tmp_path: Path) -> None:
    is_building, may_end = Event(), Event()

    def build(path: Path) -> None:
        build_directory(path)
        is_building.set()
        assert may_end.wait(60)

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(hold, tmp_path / "target", build)
        assert is_building.wait(60)
        assert not remove(tmp_path / "target")
        may_end.set()
        assert (future.result().path / "content").exists()


def test_what_a_killed_process_left_half_done_is_listed_and_removed(tmp_path: Path) -> None:
    (tmp_path / "target.lock").touch()
    build_directory(tmp_path / "target.partial")
    assert targets_in(tmp_path) == [tmp_path / "target"]
    assert remove(tmp_path / "target")
    assert list(tmp_path.iterdir()) == []


def test_targets_are_listed_by_when_they_were_last_asked_for(tmp_path: Path) -> None:
    targets = [tmp_path / name for name in "abc"]
    for age, target in enumerate(targets):
        build_once(target, Path.touch)
        os.utime(tmp_path / f"{target.name}.lock", (1000 - age, 1000 - age))
    assert targets_in(tmp_path) == targets
    hold(targets[2], Path.touch)
    assert targets_in(tmp_path) == [targets[2], *targets[:2]]


def test_what_is_held_is_whole_while_others_remove_and_build_it(tmp_path: Path) -> None:
    target, barrier = tmp_path / "target", Barrier(4)

    def hold_often() -> int:
        barrier.wait()
        num_whole = 0
        for _ in range(500):
            held = hold(target, build_directory)
            num_whole += (held.path / "content").read_text() == "made"
            del held
        return num_whole

    def remove_often() -> None:
        barrier.wait()
        num_removed = 0
        while num_removed < 1000:
            num_removed += remove(target)

    with ThreadPoolExecutor(4) as pool:
        removals = [pool.submit(remove_often) for _ in range(2)]
        assert [each.result() for each in [pool.submit(hold_often) for _ in range(2)]] == [500, 500]
        assert [each.result() for each in removals] == [None, None]
